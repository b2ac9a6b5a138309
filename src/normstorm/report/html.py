"""One page that needs nothing else, from templates that escape whatever they are given.

The words and the order of a page stand in its template, numbers and rows come from its module. A value that is HTML
already is a `Markup`; everything else is escaped, so that a name or a path cannot become a part of the page.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from normstorm._shared.jsonable import jsonable

Row = tuple[str, ...]
SNIPPET = "window.vegaEmbed = vegaEmbed;"
BUNDLER = (
    "import sys, vl_convert; sys.stdout.reconfigure(encoding='utf-8'); "
    "print(vl_convert.javascript_bundle(*sys.argv[1:]))"
)
CONFIG = {
    "background": None,
    "font": "system-ui, sans-serif",
    "axis": {"gridColor": "#888", "gridOpacity": 0.2, "domainColor": "#888", "tickColor": "#888"}
    | {"labelFontSize": 12, "titleFontSize": 13, "titleFontWeight": "normal"},
    "legend": {"labelFontSize": 13, "symbolStrokeWidth": 3, "symbolType": "stroke", "symbolOpacity": 1},
    "view": {"stroke": None},
}


def render(
    template: str, title: str, heading: str, aside: str, charts: Mapping[str, dict[str, Any]], **values: Any
) -> str:
    """The page of a template; `charts` are Vega-Lite specs by the names of their figures."""
    drawn = {name: jsonable(spec) | {"config": CONFIG} for name, spec in charts.items()}
    library = _library() if charts else ""
    page = _environment().get_template(template)
    return page.render(
        title=title, heading=heading, aside=aside, charts=drawn, library=library, style=_style(), **values
    )


@cache
def _environment() -> Environment:
    made = Environment(
        loader=PackageLoader("normstorm.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.policies["json.dumps_kwargs"] = {"allow_nan": False}
    return made


def _style() -> Markup:
    return Markup(resources.files("normstorm.report").joinpath("style.css").read_text(encoding="utf-8"))


def prepare_library() -> None:
    """Begin to bundle Vega, in a process beside this one, for a page that comes later."""
    _bundling()


@cache
def _library() -> Markup:
    """Vega, which draws the charts in the reader's browser."""
    found = _bundling().communicate()[0]
    return Markup(found or _bundled())


@cache
def _bundling() -> subprocess.Popen[str]:
    """Its bundler keeps Python from anything else for a second, an interruption included."""
    return subprocess.Popen(
        [sys.executable, "-c", BUNDLER, SNIPPET, _vega_lite()],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        encoding="utf-8",
    )


def _bundled() -> str:
    import vl_convert

    bundle: str = vl_convert.javascript_bundle(SNIPPET, _vega_lite())
    return bundle


def _vega_lite() -> str:
    """The version that altair writes for, as 5.20."""
    import altair  # here, because a page without charts does without them

    return altair.SCHEMA_VERSION.rpartition(".")[0]
