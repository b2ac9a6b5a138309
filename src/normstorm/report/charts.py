"""Bound against cost, as an altair chart, and how a chart becomes a file."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import altair as alt

from normstorm._shared import files
from normstorm.theory.plan import Plan
from normstorm.theory.planner.planner import plan as make_plan

Kind = Literal["html", "svg", "png", "pdf"]
KINDS: dict[str, Kind] = {".html": "html", ".svg": "svg", ".png": "png", ".pdf": "pdf"}
LABELS = {"paper": "the paper's rule", "sharp": "sharp rule"}
COLOURS = ["#b5502f", "#1f5f99"]
GREY = "#666666"
POINTS_PER_DECADE = 6
SIDE = 2 * POINTS_PER_DECADE
LONGEST_PLAIN_NUMBER = 1e12
MARGIN = 1.15
COLUMNS = ["rule:N", "bound:Q", "sample gradients:Q", "horizon:Q", "beta:Q", "eta:Q"]


def bound_chart(plan: Plan, *, target: float | None = None, certificate: str | None = None) -> alt.LayerChart:
    """Bound against sample gradients for both rules, the plan as a point, the target as a line.

    `certificate` is the one that was asked for by name, if any, so that its curve meets the plan.
    """
    rows = [row for rule in LABELS for row in _curve(plan, rule, certificate)]
    x, y = _cost_axis([row["sample gradients"] for row in rows]), _bound_axis(rows, target)
    scale = alt.Scale(domain=list(LABELS.values()), range=COLOURS)
    legend = alt.Legend(title=None, orient="top", labelFontSize=12, labelLimit=0)
    colour = alt.Color("rule:N", scale=scale, legend=legend)
    lines = _over(rows).mark_line(strokeWidth=2).encode(x, y, colour, tooltip=[*COLUMNS, "certificate:N"])
    layers = [lines, *_marks(plan, target, x, y)]
    return alt.LayerChart(layer=layers, width=560, height=340, title=_title(plan))


def checked_path(file: str | Path) -> Path:
    """The path of a chart to be written, refused before any work if it cannot become one."""
    return files.checked("chart", file, KINDS)


def save(chart: alt.TopLevelMixin, file: str | Path) -> None:
    """Write HTML (self-contained, no network), SVG, PNG or PDF; the file is whole or not there."""
    path = checked_path(file)
    files.write_atomically(path, _rendered(chart, KINDS[path.suffix.lower()]))


def _rendered(chart: alt.TopLevelMixin, kind: Kind) -> bytes:
    if kind == "html":
        actions = {"export": True, "source": False, "compiled": False, "editor": False}
        html: str = chart.to_html(inline=True, embed_options={"actions": actions})
        return html.encode("utf-8")
    if kind == "svg":
        text = io.StringIO()
        chart.save(text, format=kind)
        return text.getvalue().encode("utf-8")
    stream = io.BytesIO()
    chart.save(stream, format=kind, scale_factor=2 if kind == "png" else 1)
    return stream.getvalue()


def _curve(plan: Plan, rule: str, certificate: str | None) -> Iterator[dict[str, Any]]:
    factors = (10 ** (i / POINTS_PER_DECADE) for i in range(-SIDE, SIDE + 1))
    for horizon in sorted({max(1, round(plan.horizon * factor)) for factor in factors}):
        try:
            yield _row(_at_horizon(plan, horizon, rule, certificate))
        except ValueError:  # no bound there, or beyond the longest horizon: the curve ends
            continue


def _at_horizon(plan: Plan, horizon: int, rule: str, certificate: str | None) -> Plan:
    """The rule at the cost of so many steps of the plan; the paper's with its cheapest batches."""
    if rule == "paper" != plan.rule:
        cost = replace(plan, horizon=horizon).sample_gradients
        return make_plan(plan.constants, budget=cost, confidence=plan.confidence, rule=rule)
    return make_plan(
        plan.constants,
        horizon=horizon,
        confidence=plan.confidence,
        rule=rule,
        batch=plan.batch,
        sub_batch=plan.sub_batch,
        certificate=certificate,
    )


def _row(plan: Plan) -> dict[str, Any]:
    return {
        "rule": LABELS[plan.rule],
        "sample gradients": plan.sample_gradients,
        "horizon": plan.horizon,
        "bound": plan.bound,
        "beta": plan.beta,
        "eta": plan.eta,
        "certificate": plan.certificate,
    }


def _marks(plan: Plan, target: float | None, x: alt.X, y: alt.Y) -> Iterator[alt.Chart]:
    label = alt.Text("label:N")
    if target is not None:
        line = _over([{"bound": target, "label": f"target {target:g}"}])
        yield line.mark_rule(strokeDash=[5, 4], color=GREY).encode(y)
        yield line.mark_text(align="left", x=4, dy=-7, color=GREY, fontSize=12).encode(y, label)
    here = _over([_row(plan) | {"label": "this plan"}])
    yield here.mark_point(filled=True, size=90, color="black", opacity=1).encode(x, y)
    yield here.mark_text(align="left", dx=8, dy=-10, fontSize=12).encode(x, y, label)


def _over(rows: list[dict[str, Any]]) -> alt.Chart:
    return alt.Chart(alt.InlineData(values=rows))


def _title(plan: Plan) -> alt.TitleParams:
    c = plan.constants
    names = ("L0", "L1", "sigma0", "sigma1", "gap", "grad_norm")
    known = [(name.replace("_", " "), getattr(c, name)) for name in names]
    sense = "in expectation" if plan.confidence is None else f"with probability {plan.confidence:g}"
    batches = f"batch {plan.batch}, sub-batch {plan.sub_batch}"
    return alt.TitleParams(
        text="What a sample gradient buys: proven bound against cost",
        subtitle=[
            ", ".join(f"{name} = {value:g}" for name, value in known if value is not None),
            f"{sense}; {batches}",
        ],
        anchor="start",
    )


def _cost_axis(costs: list[float]) -> alt.X:
    low, high = min(costs), max(costs)
    decades = range(math.ceil(math.log10(low)), math.floor(math.log10(high)) + 1)
    form = ",d" if high < LONGEST_PLAIN_NUMBER else "~e"
    axis = alt.Axis(values=[10.0**e for e in decades], format=form, titlePadding=10)
    return alt.X("sample gradients:Q", scale=_log_scale(low, high), axis=axis)


def _bound_axis(rows: list[dict[str, Any]], target: float | None) -> alt.Y:
    """Ticks at 1, 2, 5 times the powers of ten, or at the powers alone where those are too many."""
    bounds = [row["bound"] for row in rows] + ([] if target is None else [target])
    low, high = min(bounds), max(bounds)
    exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    leads = (1, 2, 5) if high < 1e3 * low else (1,)
    axis = alt.Axis(values=[lead * 10.0**e for e in exponents for lead in leads], format="~g")
    title = "bound on the average gradient norm"
    return alt.Y("bound:Q", scale=_log_scale(low, high), axis=axis, title=title)


def _log_scale(low: float, high: float) -> alt.Scale:
    return alt.Scale(type="log", domain=[low / MARGIN, high * MARGIN], nice=False)
