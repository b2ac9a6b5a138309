"""The charts of a comparison: who needs how much, and averages against sample gradients."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import altair as alt

from normstorm.lab.compare.board import AVERAGE, LAST, Board, Row
from normstorm.lab.compare.tables import Comparison

from .compare_words import (
    ASTRAY,
    CANNOT,
    DIVERGED,
    NOT_REACHED,
    RUNAWAY,
    average,
    contest,
    interval_text,
    mean_ranks,
    reason,
    short_number,
    state_text,
    value_text,
)

COLOURS = ("#3f8fd6", "#d9793b", "#4a9e5c", "#cc4b42", "#9a6fc4", "#2fa39d", "#b0912f", "#d46a9f")
GREY, BLUE = "#888888", "63, 143, 214"
MARKS = {CANNOT: "–", NOT_REACHED: ">", DIVERGED: "×", RUNAWAY: ASTRAY}
CELL, HEIGHT = 24, 380
ROOM = 10.0  # no chart goes further above the start than so many times


def heat_map(found: Comparison) -> dict[str, Any]:
    """Algorithms by problems: the median to the hardest target that somebody reaches, in multiples of the best.

    A problem none of whose targets anybody reaches has no column.
    """
    boards = [board for board in found.boards if board.hardest is not None]
    cells = [cell for board in boards for cell in _cells(board)]
    ranks = mean_ranks(found)
    order = sorted(ranks, key=lambda name: ranks[name])
    base = alt.Chart(alt.InlineData(values=cells)).encode(
        x=alt.X("problem:N", sort=list(found.request.problems), title=None, axis=_names(len(boards))),
        y=alt.Y("algorithm:N", sort=order, title=None, axis=alt.Axis(grid=False, domain=False, labelLimit=160)),
        tooltip=["algorithm:N", "problem:N", "target:N", "median:N", alt.Tooltip("ratio:Q", format=".3g"), "why:N"],
    )
    most = max((c["ratio"] for c in cells if c["ratio"] is not None), default=1.0)
    # Transparent colours, so that light and dark pages keep the contrast of the numbers in the cells.
    scale = alt.Scale(type="log", domain=[1, max(10.0, most)], range=[f"rgba({BLUE}, 0.75)", f"rgba({BLUE}, 0.07)"])
    title = "sample gradients, in multiples of the best"
    legend = alt.Legend(title=title, orient="top", gradientLength=220, titleLimit=0, titleFontWeight="normal")
    filled = base.mark_rect(cornerRadius=3).encode(color=alt.Color("ratio:Q", scale=scale, legend=legend))
    layers = [
        base.transform_filter("datum.ratio === null").mark_rect(cornerRadius=3, color=GREY, opacity=0.18),
        filled.transform_filter("datum.ratio !== null"),
        base.mark_text(fontSize=12, tooltip=None).encode(text="mark:N"),
    ]
    chart = alt.LayerChart(layer=layers, width="container", height=alt.Step(CELL))
    return chart.to_dict()


def _names(problems: int) -> alt.Axis:
    angle = 0 if problems <= 5 else -35
    return alt.Axis(orient="top", labelAngle=angle, labelLimit=150, domain=False, ticks=False, grid=False)


def _cells(board: Board) -> Iterator[dict[str, Any]]:
    goal = board.hardest
    assert goal is not None
    rows = {row.algorithm: row for row in (*(r for r in board.rows if r.measured is None), *contest(board))}
    best = min(seen.value for _, seen in board.contest(goal))
    for name, row in rows.items():
        missing = state_text(board, row, goal)
        cell = {"algorithm": name, "problem": board.problem_spec, "target": f"{goal:g}"}
        if missing is None:
            seen = board.seen(row, goal)
            ratio = seen.value / best
            yield cell | {"median": interval_text(seen, goal), "ratio": ratio, "mark": short_number(ratio), "why": ""}
        else:
            why = reason(row) if row.measured is None else _shortfall(board, row)
            yield cell | {"median": missing, "ratio": None, "mark": MARKS[missing], "why": why}


def _shortfall(board: Board, row: Row) -> str:
    assert row.measured is not None
    at_end = f"average at the budget {interval_text(board.seen(row, AVERAGE), AVERAGE)}"
    if board.astray(row):
        at_end += f", F at the last point {value_text(board.value_seen(row, LAST))} above F(x1)"
    return f"{at_end}, {row.measured.diverged} seeds diverged"


def legend(board: Board) -> list[tuple[str, str]]:
    """Names and colours of the best, the best first."""
    return [(row.algorithm, colour) for row, colour in zip(contest(board), COLOURS, strict=False)]


def curves(found: Comparison, board: Board) -> dict[str, Any]:
    """Median and 5 to 95 % of the average against sample gradients: the best in colours, all others in grey."""
    rows = contest(board)
    chosen = {(row.algorithm, row.kind, row.label) for row in rows}
    points = [
        {name: b[name] for name in ("algorithm", "setting", "cost", "q05", "median", "q95")}
        for b in found.bands
        if b["problem"] == board.problem_spec and (b["algorithm"], b["kind"], b["setting"]) in chosen
    ]
    low, top = _range(points)
    values = [_drawn(point, top) for point in points]
    named = dict(legend(board))
    x = alt.X("cost:Q", title="sample gradients of one run", axis=_axis("~s"), scale=alt.Scale(type="log", nice=False))
    scale = alt.Scale(type="log", domain=[low, top], nice=False)
    title = "average gradient norm so far"
    y = {n: alt.Y(f"{n}:Q", title=title, scale=scale, axis=_axis("~g")) for n in ("median", "q05")}
    colour = alt.Color("algorithm:N", scale=alt.Scale(domain=list(named), range=list(named.values())), legend=None)
    tips = [alt.Tooltip(f"{name}:N") for name in ("algorithm", "setting", "sample gradients", "median of", "90 % of")]
    base = alt.Chart(alt.InlineData(values=values)).encode(x)
    best = base.transform_filter(alt.FieldOneOfPredicate(field="algorithm", oneOf=list(named)))
    layers = [
        base.mark_line(strokeWidth=0.8, color=GREY, opacity=0.6, clip=True).encode(y["median"], detail="algorithm:N"),
        best.mark_area(opacity=0.13, clip=True).encode(y["q05"], alt.Y2("q95:Q"), colour),
        best.mark_line(strokeWidth=2, clip=True).encode(y["median"], colour),
        base.mark_point(opacity=0, size=60, clip=True).encode(y["median"], tooltip=tips),
        *(layer for target in board.targets for layer in _line(target, scale)),
    ]
    chart = alt.LayerChart(layer=layers, width="container", height=HEIGHT)
    return chart.to_dict()


def _range(points: list[dict[str, Any]]) -> tuple[float, float]:
    """From the smallest value to the largest, but for what has left the start far behind."""
    values = [p[name] for p in points for name in ("q05", "median", "q95") if 0 < p[name] < math.inf] or [1.0]
    starts: dict[str, float] = {}
    for p in points:
        starts.setdefault(p["algorithm"], p["median"])
    start = min((v for v in starts.values() if math.isfinite(v)), default=max(values))
    return 0.9 * min(values), 1.1 * min(max(values), ROOM * start)


def _drawn(point: dict[str, Any], top: float) -> dict[str, Any]:
    """Infinite medians end a line, and infinite ends of a band lie at the top."""
    q05, median, q95 = (average(point[name]) for name in ("q05", "median", "q95"))
    return {
        **{name: point[name] for name in ("algorithm", "setting", "cost")},
        **{name: float(f"{min(point[name], 1e3 * top):.4g}") for name in ("q05", "q95")},
        "median": float(f"{point['median']:.4g}") if math.isfinite(point["median"]) else None,
        "sample gradients": f"{point['cost']:,}",
        "median of": median,
        "90 % of": f"{q05} to {q95}",
    }


def _line(target: float, scale: alt.Scale) -> Iterator[alt.Chart]:
    over = alt.Chart(alt.InlineData(values=[{"y": target, "label": f"{target:g}"}]))
    height = alt.Y("y:Q", scale=scale)
    yield over.mark_rule(color=GREY, strokeDash=[5, 4], opacity=0.8).encode(height)
    yield over.mark_text(align="left", x=4, dy=-7, fontSize=11, opacity=0.8).encode(height, text="label:N")


def _axis(form: str) -> alt.Axis:
    return alt.Axis(format=form, tickCount=6, titlePadding=10)
