"""One page that needs nothing else: the frame, tables, and charts that the reader's browser draws."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from html import escape
from importlib import resources
from typing import Any

Row = tuple[str, ...]
POLICY = "default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval'; style-src 'unsafe-inline'; img-src data: blob:"
CONFIG = {
    "background": None,
    "font": "system-ui, sans-serif",
    "axis": {"gridColor": "#888", "gridOpacity": 0.2, "domainColor": "#888", "tickColor": "#888"}
    | {"labelFontSize": 12, "titleFontSize": 13, "titleFontWeight": "normal"},
    "legend": {"labelFontSize": 13, "symbolStrokeWidth": 3, "symbolType": "stroke", "symbolOpacity": 1},
    "view": {"stroke": None},
}


def document(title: str, heading: str, aside: str, body: str, charts: Mapping[str, dict[str, Any]]) -> str:
    """The whole page. Title, heading and aside are escaped here; the body comes from the functions below.

    `charts` are Vega-Lite specs by the names of their figures.
    """
    style = resources.files("normstorm.report").joinpath("style.css").read_text(encoding="utf-8")
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<title>{escape(title)}</title>
<style>
{style}</style>
</head>
<body>
<main>
<h1>{escape(heading)} <small>{escape(aside)}</small></h1>
{body}
</main>
{_scripts(charts)}
</body>
</html>
"""


def figure(name: str, title: str, caption: str, *, level: int = 2, above: str = "", least: int = 0) -> str:
    """The place of a chart; an empty title or caption is left out, `above` is HTML.

    A screen narrower than `least` rem scrolls it in a box of its own.
    """
    box = f'<div class="chart" id="{name}"></div>'
    if least:
        box = f'<div class="scroll"><div style="min-width: {least}rem">{box}</div></div>'
    below = f"<figcaption>{escape(caption)}</figcaption>" if caption else ""
    return f"<figure>{_heading(title, level)}{above}{box}{below}</figure>"


def table(
    title: str, head: Row, rows: Sequence[Row], *, level: int = 2, wide: bool = False, kinds: Sequence[str] = ()
) -> str:
    """A heading and a table; an empty title leaves the heading out, an empty head makes a table of pairs.

    Every cell is escaped. A wide one scrolls in a box of its own; `kinds` are classes of the rows, if any.
    """

    def cells(tag: str, row: Row) -> str:
        return "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in row)

    opened = [f'<tr class="{kind}">' for kind in kinds] or ["<tr>"] * len(rows)
    top = f"<thead><tr>{cells('th', head)}</tr></thead>" if any(head) else ""
    lines = "\n".join(f"{tr}{cells('td', row)}</tr>" for tr, row in zip(opened, rows, strict=True))
    kind = ' class="wide"' if wide else "" if any(head) else ' class="pairs"'
    found = f"<table{kind}>{top}<tbody>\n{lines}\n</tbody></table>"
    return _heading(title, level) + (f'<div class="scroll long" tabindex="0">{found}</div>' if wide else found)


def _heading(title: str, level: int) -> str:
    return f"<h{level}>{escape(title)}</h{level}>\n" if title else ""


def tiles(pairs: Sequence[tuple[str, str]]) -> str:
    """Large values with small labels, given as (label, value)."""
    cells = "".join(f"<div><dd>{escape(value)}</dd><dt>{escape(label)}</dt></div>" for label, value in pairs)
    return f'<dl class="tiles">{cells}</dl>'


def _scripts(charts: Mapping[str, dict[str, Any]]) -> str:
    if not charts:
        return ""
    calls = "\n".join(_call(name, spec) for name, spec in charts.items())
    return f"<script>{_library()}</script>\n<script>\n{calls}\n</script>"


@cache
def _library() -> str:
    """Vega, which draws the charts in the reader's browser."""
    import altair  # here, because a page without charts does without them
    import vl_convert

    version = altair.SCHEMA_VERSION.rpartition(".")[0]
    return vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", vl_version=version)


def _call(name: str, spec: dict[str, Any]) -> str:
    options = {"renderer": "svg", "actions": False}
    text = json.dumps(spec | {"config": CONFIG}, allow_nan=False).replace("<", "\\u003c")
    return f'vegaEmbed("#{name}", {text}, {json.dumps(options)});'
