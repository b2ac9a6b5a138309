"""Quantiles over seeds against cost, as altair charts of a run.

A diverged seed counts as infinite in every quantile: it is never dropped, and a curve that reaches it ends there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import altair as alt
import numpy as np

from normstorm.engine.results import Trace
from normstorm.theory.plan import round_up

BLUE, ORANGE, RED, GREY = "#3f8fd6", "#d9793b", "#cc4b42", "#888888"
HEIGHT = 320
CALM = 0.01  # a median that has moved by no more of itself has not moved
CLOSE = 0.05  # lines nearer than this share of the bound are one line with two names
NOW, MEAN = "||grad F(x_t)||", "its average over steps 1..t"


def gradient_chart(trace: Trace, bound: float, source: str, target: float | None) -> alt.LayerChart:
    """||grad F(x_t)|| and its running average, if known, with a bound ("proven", say) and the target as lines."""
    cost, averaged = costs(trace), not np.isnan(trace.running_mean).all()
    rows = [*band(cost, trace.grad_norm, NOW), *(band(cost, trace.running_mean, MEAN) if averaged else ())]
    label = f"{source} bound {round_up(bound)}"
    lines = []
    if target is not None and abs(target - bound) < CLOSE * bound:
        label += f", target {target:g}"
    elif target is not None:
        lines = [{"y": target, "label": f"target {target:g}", "colour": GREY}]
    lines.append({"y": bound, "label": label, "colour": RED})
    first = float(np.max(trace.grad_norm[:, 0]))
    if np.isfinite(first) and first > 0:
        lines.append({"y": first, "label": f"at the start {first:.4g}", "colour": GREY})
    return _chart(rows, lines, "gradient norm", {NOW: BLUE} | ({MEAN: ORANGE} if averaged else {}))


def value_chart(trace: Trace, infimum: float | None, kind: str) -> alt.LayerChart:
    """F(x_t) minus what is known of its infimum."""
    title = "F(x_t)" if infimum is None else f"F(x_t) - {'F*' if kind == 'exact' else kind + ' of F'}"
    values = trace.value if infimum is None else trace.value - infimum
    first = float(values[0, 0])
    lines = [{"y": first, "label": f"at the start {first:.4g}", "colour": GREY}] if np.isfinite(first) else []
    return _chart([*band(costs(trace), values, title)], lines, title, {title: BLUE})


def error_chart(trace: Trace) -> alt.LayerChart:
    """||m_t - grad F(x_t)||, the error of the estimate that a step follows."""
    title = "||m_t - grad F(x_t)||"
    return _chart([*band(costs(trace), trace.error, title)], [], title, {title: ORANGE})


def lines(given: Mapping[str, Any]) -> alt.Chart:
    """Lines with marks through points (x, y, series); a y of None is left out."""
    points = [point for point in given["points"] if point["y"] is not None]
    names = list(dict.fromkeys(point["series"] for point in points))
    kinds = [_usable(kind, [p[key] for p in points]) for key, kind in zip("xy", given["scales"], strict=True)]
    x, y = (
        channel(f"{key}:Q", title=given[key], scale=_scale(kind), axis=axis(form))
        for channel, key, kind, form in ((alt.X, "x", kinds[0], "~s"), (alt.Y, "y", kinds[1], "~g"))
    )
    legend = None if len(names) == 1 else alt.Legend(title=None, orient="bottom", columns=1, labelLimit=0)
    colour = alt.Color("series:N", scale=alt.Scale(domain=names, scheme="tableau10"), legend=legend)
    tips = ["series:N", alt.Tooltip("x:Q", title=given["x"]), alt.Tooltip("y:Q", title=given["y"], format=".4g")]
    chart = alt.Chart(alt.InlineData(values=points), width="container", height=HEIGHT)
    drawn: alt.Chart = chart.mark_line(strokeWidth=2, point={"size": 30}).encode(x, y, colour, tooltip=tips)
    return drawn


def _usable(kind: str, values: Sequence[float]) -> Any:
    return kind if all(value > 0 for value in values) else "linear"


def _scale(kind: Any) -> alt.Scale:
    """From the least to the largest number; a logarithmic one has no zero to leave out."""
    return alt.Scale(type="log", nice=False) if kind == "log" else alt.Scale(type=kind, zero=False, nice=False)


def costs(trace: Trace) -> np.ndarray:
    """Sample gradients of steps 1..t at the recorded t, the same for every seed that is not over."""
    found: np.ndarray = trace.record_cost.max(0)
    return found


def while_all_run(trace: Trace) -> Trace:
    """The records until the first seed was ended by its observer."""
    ended = trace.stopped_at[trace.stopped_at > 0]
    shown = trace.record_steps <= (ended.min() if ended.size else trace.steps)
    names = ("grad_norm", "running_mean", "value", "error", "record_cost")
    cut = {name: getattr(trace, name)[:, shown] for name in names}
    return replace(trace, record_steps=trace.record_steps[shown], **cut)


def band(cost: np.ndarray, values: np.ndarray, series: str) -> Iterator[dict[str, Any]]:
    """Rows of 5 %, median, 95 % and maximum over the seeds; None where they are infinite."""
    counted = np.where(np.isfinite(values), values, np.inf)
    levels = {"low": (0.05, "lower"), "median": (0.5, "higher"), "high": (0.95, "higher"), "maximum": (1.0, "higher")}
    found = {name: np.quantile(counted, q, axis=0, method=how) for name, (q, how) in levels.items()}  # type: ignore[call-overload]
    for i, asked in enumerate(cost):
        row = {name: float(column[i]) for name, column in found.items()}
        yield {"cost": int(asked), "series": series} | {n: v if np.isfinite(v) else None for n, v in row.items()}


def eventful(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Without the steps at the beginning in which no median moves by a hundredth, but for the last of them."""
    moved = []
    for series in dict.fromkeys(row["series"] for row in rows):
        own = [row for row in rows if row["series"] == series and row["median"] is not None]
        far = [row["cost"] for row in own if abs(row["median"] - own[0]["median"]) > CALM * abs(own[0]["median"])]
        moved += far[:1]
    if not moved:
        return rows
    before = [row["cost"] for row in rows if row["cost"] < min(moved)]
    return [row for row in rows if row["cost"] >= max(before, default=0)]


def _chart(
    rows: list[dict[str, Any]], lines: list[dict[str, Any]], title: str, colours: dict[str, str]
) -> alt.LayerChart:
    numbers = [v for row in rows for k, v in row.items() if k not in ("cost", "series") and v is not None]
    kind: Any = "log" if all(v > 0 for v in numbers) else "linear"
    x = alt.X("cost:Q", title="sample gradients of one seed", scale=alt.Scale(type="log", nice=False), axis=axis("~s"))
    scale = _scale(kind)
    y = {name: alt.Y(f"{name}:Q", title=title, scale=scale, axis=axis("~g")) for name in ("low", "median", "maximum")}
    legend = None if len(colours) == 1 else alt.Legend(title=None, orient="top", labelLimit=0, columns=1)
    domain = alt.Scale(domain=list(colours), range=list(colours.values()))
    colour = alt.Color("series:N", scale=domain, legend=legend)
    tooltip = [alt.Tooltip(f"{n}:Q", format=".4g") for n in ("median", "low", "high", "maximum")]
    tips = ["series:N", alt.Tooltip("cost:Q", title="sample gradients", format=","), *tooltip]
    base = alt.Chart(alt.InlineData(values=eventful(rows))).encode(x, colour)
    layers = [
        base.mark_area(opacity=0.22).encode(y["low"], alt.Y2("high:Q")),
        base.mark_line(strokeWidth=1, strokeDash=[2, 2]).encode(y["maximum"]),
        base.mark_line(strokeWidth=2).encode(y["median"]),
        base.mark_point(opacity=0, size=120).encode(y["median"], tooltip=tips),
        *(layer for line in lines for layer in rule(line, scale)),
    ]
    return alt.LayerChart(layer=layers, width="container", height=HEIGHT)


def rule(line: dict[str, Any], scale: alt.Scale) -> Iterator[alt.Chart]:
    """A level with its name."""
    over = alt.Chart(alt.InlineData(values=[line]))
    height = alt.Y("y:Q", scale=scale)
    yield over.mark_rule(color=line["colour"], strokeWidth=1.5, strokeDash=[6, 4]).encode(height)
    yield over.mark_text(align="left", x=6, dy=-8, fontSize=12, color=line["colour"]).encode(height, text="label:N")


def axis(form: str) -> alt.Axis:
    """Numbers in this form, a few of them."""
    return alt.Axis(format=form, tickCount=6, titlePadding=10)
