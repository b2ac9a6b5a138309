"""What is guaranteed beforehand against what is observed and certified, over sample gradients, as an altair chart."""

from __future__ import annotations

import math
from typing import Any

import altair as alt
import numpy as np

from normstorm.solve import Race
from normstorm.theory.constants import Constants
from normstorm.theory.plan import Plan, round_up
from normstorm.theory.planner.planner import plan as make_plan

from . import curves
from .curves import BLUE, GREY, HEIGHT, RED
from .race_rows import race_of
from .run_report import RunReport

SEEN, CERTIFIED, PROMISED = "observed in the search", "certified, each seed", "guaranteed before the run"
POINTS, HORIZONS = 40, 8
PURPLE = "#8a63c9"
MARGIN = 1.2  # of the axis beyond what it shows


def race_chart(found: RunReport) -> alt.LayerChart:
    """Observed norms as a band, certified bounds as points, the promise as a line; start and target as rules."""
    result, race = found.result, race_of(found)
    certified = [{"cost": c, "median": b} for c, b in zip(race.costs, race.bounds, strict=True) if math.isfinite(b)]
    rows: list[dict[str, Any]] = [row | {"series": CERTIFIED} for row in certified]
    rows += [{"cost": cost, "median": bound, "series": PROMISED} for cost, bound in promised(found)]
    if found.problem.is_exact:
        trace = curves.while_all_run(result.trace)
        rows += curves.band(curves.costs(trace), trace.grad_norm, SEEN)
    rules = [("target", found.request.target), ("at the start", race.start_norm)]
    lines = [{"y": y, "label": f"{words} {round_up(y)}", "colour": GREY} for words, y in rules if y]
    colours = {SEEN: BLUE, CERTIFIED: RED, PROMISED: PURPLE}
    shown = {name: colours[name] for name in colours if any(row["series"] == name for row in rows)}
    return _drawn([row for row in rows if row["median"] is None or row["median"] > 0], lines, shown)


def promised(found: RunReport) -> list[tuple[float, float]]:
    """(cost, guaranteed gradient norm) of what was promised, up to its cost."""
    result, race = found.result, race_of(found)
    if result.plan is None or race.promise_cost is None:
        return []
    if race.promised_by == "exact descent" and race.rows:
        return _descent(result.plan.constants, race)
    return _planned(result.plan)


def _descent(c: Constants, race: Race) -> list[tuple[float, float]]:
    """After T exact gradients the shortest is at most the root eps of T eps^2 = 2 gap (L0 + L1 eps), and the first."""
    assert race.promise_cost is not None and race.rows is not None
    smooth, first = c.in_mean_square, race.start_norm or c.first_gradient
    found = []
    for cost in np.geomspace(race.rows, race.promise_cost, POINTS):
        T = cost / race.rows
        half = c.gap * smooth.L1
        eps = (half + math.sqrt(half**2 + 2 * c.gap * smooth.L0 * T)) / T
        found.append((float(cost), min(first, eps)))
    return found


def _planned(plan: Plan) -> list[tuple[float, float]]:
    """Plans of the same form for fewer steps, by their bounds of the average gradient norm."""
    found = []
    for k in range(HORIZONS):
        horizon = max(1, plan.horizon >> (2 * (HORIZONS - 1 - k)))
        same: dict[str, Any] = {"confidence": plan.confidence, "batch": plan.batch, "sub_batch": plan.sub_batch}
        try:
            one = make_plan(plan.constants, horizon=horizon, **same)
        except ValueError:  # no bound for so few steps
            continue
        found.append((float(one.sample_gradients), min(one.bound, plan.constants.first_gradient)))
    return found


def _drawn(rows: list[dict[str, Any]], lines: list[dict[str, Any]], colours: dict[str, str]) -> alt.LayerChart:
    x = alt.X("cost:Q", title="sample gradients", scale=alt.Scale(type="log", nice=False), axis=curves.axis("~s"))
    heights = [row[name] for row in rows for name in ("low", "median", "high") if row.get(name)]
    heights += [line["y"] for line in lines]
    scale = alt.Scale(type="log", domain=[min(heights) / MARGIN, max(heights) * MARGIN], nice=False)
    y, low = (
        alt.Y(f"{name}:Q", title="gradient norm", scale=scale, axis=curves.axis("~g")) for name in ("median", "low")
    )
    legend = alt.Legend(title=None, orient="top", labelLimit=0, columns=1)
    colour = alt.Color("series:N", scale=alt.Scale(domain=list(colours), range=list(colours.values())), legend=legend)
    tips = ["series:N", alt.Tooltip("cost:Q", format=","), alt.Tooltip("median:Q", title="norm", format=".4g")]
    base = alt.Chart(alt.InlineData(values=rows)).encode(x, colour)
    layers = [
        base.transform_filter(f"datum.series == '{SEEN}'").mark_area(opacity=0.22).encode(low, alt.Y2("high:Q")),
        base.transform_filter(f"datum.series != '{CERTIFIED}'").mark_line(strokeWidth=2).encode(y),
        base.transform_filter(f"datum.series == '{CERTIFIED}'")
        .mark_point(filled=True, size=40, opacity=0.8)
        .encode(y, tooltip=tips),
        *(layer for line in lines for layer in curves.rule(line, scale)),
    ]
    return alt.LayerChart(layer=layers, width="container", height=HEIGHT)
