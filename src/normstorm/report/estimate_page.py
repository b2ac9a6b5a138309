"""Estimated constants as a table for a terminal and as a page with the two plots that they were read off."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import altair as alt
import numpy as np
from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from normstorm._shared import files
from normstorm._shared.versions import versions
from normstorm.solve.estimate import SENSES, EstimatedConstants

from . import html
from .curves import BLUE, HEIGHT, ORANGE
from .estimate_request import EstimateRequest
from .requests import command

HEAD = ("number", "sense", "value", "from", "to", "what it is", "how")
SERIES = {"almost-sure": "largest of the samples", "mean-square": "root mean square"}
COLOURS = {SERIES["almost-sure"]: ORANGE, SERIES["mean-square"]: BLUE}
SMOOTH, NOISE = "||grad f(x, s) - grad f(y, s)||/||x - y||", "||grad f(x, s) - grad F(x)||"
POINTS_OF_LINE = 33


def rows_of_numbers(found: EstimatedConstants) -> list[html.Row]:
    """One row for every number."""
    return [
        (
            n.name,
            n.sense,
            _short(n.value),
            _short(n.low),
            "open" if n.high is None else _short(n.high),
            n.word,
            n.method,
        )
        for n in found.numbers
    ]


def parts(found: EstimatedConstants, page: Path) -> Iterator[RenderableType]:
    """What the command prints."""
    yield Text(found.guarantee)
    table = Table(title=found.problem, title_justify="left", title_style="bold", box=box.SIMPLE)
    table.show_edge = False
    for column in HEAD[:-1]:
        table.add_column(column, justify="left" if column in ("number", "sense", "what it is") else "right")
    for row in rows_of_numbers(found):
        table.add_row(*row[:-1])
    yield table
    yield Text(f"{found.sample_gradients:,} sample gradients; report: {page}")


def save(found: EstimatedConstants, path: Path, request: EstimateRequest, date: datetime) -> None:
    """Write the page; the file is whole or not there."""
    files.write_atomically(path, page(found, request, date))


def page(found: EstimatedConstants, request: EstimateRequest, date: datetime) -> str:
    """The whole page, of templates/estimate.html."""
    tiles = [(f"{n.name}, {n.sense}: {n.word}", _short(n.value)) for n in found.numbers if n.sense == "almost-sure"]
    return html.render(
        "estimate.html",
        f"normstorm estimate: {found.problem}",
        found.problem,
        f"{date:%d %B %Y}",
        {"secants": chart(found, "L").to_dict(), "deviations": chart(found, "sigma").to_dict()},
        guarantee=found.guarantee,
        tiles=tiles,
        head=HEAD,
        rows=rows_of_numbers(found),
        counts=_counts(found),
        versions=[*versions().items()],
        command=command("estimate", request),
    )


def _counts(found: EstimatedConstants) -> list[html.Row]:
    asked = ("points", found.points), ("samples at each", found.samples), ("sample gradients", found.sample_gradients)
    return [(name, f"{value:,}") for name, value in asked]


def chart(found: EstimatedConstants, family: str) -> alt.LayerChart:
    """Secants (L) or deviations (sigma) against ||grad F||, with the lines that lie above them."""
    seen, title = (found.secants, SMOOTH) if family == "L" else (found.deviations, NOISE)
    places = zip(SENSES, (1, 2), strict=True)
    points = [{"G": float(row[0]), "y": float(row[place]), "series": SERIES[s]} for s, place in places for row in seen]
    across = np.linspace(0, max(float(np.max(seen[:, 0])), 1e-300), POINTS_OF_LINE)
    lines = [
        {"G": float(g), "y": _line(found, family, sense, g), "series": SERIES[sense]}
        for sense in SENSES
        for g in across
    ]
    scale = alt.Scale(domain=list(COLOURS), range=list(COLOURS.values()))
    colour = alt.Color("series:N", scale=scale, legend=alt.Legend(title=None, orient="top", labelLimit=0))
    x = alt.X("G:Q", title="||grad F(x)||", axis=_axis())
    y = alt.Y("y:Q", title=title, axis=_axis(), scale=alt.Scale(zero=True))
    tips = ["series:N", alt.Tooltip("G:Q", title="||grad F||", format=".4g"), alt.Tooltip("y:Q", format=".4g")]
    layers: list[Any] = [
        alt.Chart(alt.InlineData(values=points)).mark_point(filled=True, size=45).encode(x, y, colour, tooltip=tips),
        alt.Chart(alt.InlineData(values=lines)).mark_line(strokeWidth=2).encode(x, y, colour),
    ]
    return alt.LayerChart(layer=layers, width="container", height=HEIGHT)


def _line(found: EstimatedConstants, family: str, sense: str, g: float) -> float:
    """What the numbers of this family bound at ||grad F|| = g."""
    pair = [number.value for i in (0, 1) if (number := found.number(f"{family}{i}", sense)) is not None]
    if family == "sigma" and sense == "mean-square":
        return float(np.hypot(pair[0], pair[1] * g))
    return float(pair[0] + pair[1] * g)


def _short(value: float | None) -> str:
    return "open" if value is None else f"{value:.4g}"


def _axis() -> alt.Axis:
    return alt.Axis(format="~g", tickCount=6, titlePadding=10)
