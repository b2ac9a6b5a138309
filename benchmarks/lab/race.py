"""What a race costs until its point is certified, beside the plan and beside what nobody can do without.

    python -m benchmarks.lab.race [--only targets|limits|splits|rules|watch] [--problems a,b] [--seeds n] [--out FILE]

targets   every problem, targets .3, .1 and .03 of ||grad F(x_1)||, confidence .99: sample gradients of the race (median
          and largest of the seeds), of the plan with its tests, and of the promise; points whose exact gradient exceeds
          what is certified
limits    beside them: the cheapest search to half of the target, by exact gradients that nobody counts, with tuned
          methods (race_limit.py) and both forms of kalman_storm, and 2 log(1/delta) trace/(target/2)^2 samples, or all
          rows if they are fewer
splits    with a budget: what is certified by the rule, over what fixed parts of the budget for the search give
rules     with a target: the cost where tests begin at other heights of the error bar
watch     how much longer steps of 1, 8 and 32 samples take where each is held to stated constants, for one seed and 32

Prints rows as they are found, keeps those that are not measured now, writes all with the date and the kind of machine,
and puts tables into docs/race.md.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.lab.race_limit import tuned_searches
from benchmarks.machine import describe, one_core_in_double
from benchmarks.pages import (
    RESULTS,
    fill,
    race_limits_table,
    race_rules_table,
    race_splits_table,
    race_summary,
    race_table,
)
from normstorm import minimize
from normstorm.algorithms.kalman import kalman_storm
from normstorm.problems import get, registry
from normstorm.solve import fast_arm
from normstorm.solve.fresh import FRESH, Gradients, whole_size
from normstorm.solve.stages import Stages
from normstorm.solve.witness import witnessed

DELTA = 0.01
PARTS = (0.3, 0.1, 0.03)
LIMITED = PARTS[:2]  # to search for the third with every setting takes hours
SPLIT = ("quadratic", "exp-quad", "noisy-valley", "double-well", "quartic-sum")
BUDGET, FIXED = 20_000, (0.05, 0.1, 0.2, 0.3, 0.4, 0.5)
RULED, HEIGHTS = ("quadratic", "quartic-sum", "double-well", "noisy-valley", "cosh-cosine"), (0.7, 0.85, 1.0, 1.2, 1.5)
WATCHED, TURNS = ("quadratic", "noisy-valley", "dro-regression", "logistic-nonconvex"), 5
BATCHES = (1, 8, 32)
LONGEST = 3_000_000  # steps of a search whose gradients nobody counts


def targets(problems: list[str], seeds: int) -> Iterator[dict[str, Any]]:
    for name in problems:
        problem = get(name)
        first = float(jnp.linalg.norm(problem.full_grad(problem.start())))
        for part in PARTS:
            goal = part * first
            found = minimize(problem, target=goal, confidence=1 - DELTA, seeds=seeds, progress=False)
            yield row_of(name, part, goal, found)


def row_of(name: str, part: float, goal: float, found: Any) -> dict[str, Any]:
    race = found.race
    cost = median(race.costs)
    return {
        "problem": name,
        "part": part,
        "target": goal,
        "seeds": len(race.costs),
        "certified": sum(bound <= goal for bound in race.bounds),
        "violations": race.violations,
        "cost": cost,
        "most": max(race.costs),
        "search": race.search,
        "testing": race.testing,
        "method": found.certificate.method,
        "plan": race.plan_cost,
        "promised_by": race.promised_by,
        "promise": race.promise_cost,
        "plan_over_race": None if race.plan_cost is None else race.plan_cost / cost,
        "most_over_promise": max(race.costs) / (2 * race.promise_cost),
        "ended_by": dict(Counter([race.ended_by])),
    }


def limits(problems: list[str], seeds: int) -> Iterator[dict[str, Any]]:
    """The cheapest search of all, for every problem and target, and the test behind it."""
    for name in problems:
        problem = get(name)
        first = float(jnp.linalg.norm(problem.full_grad(problem.start())))
        goals = [part * first for part in LIMITED]
        searches, x = {}, None
        for form in ("plain", "table") if whole_size(problem) is not None else ("plain",):
            costs, x = first_costs(problem, kalman_storm(table=form == "table"), goals, seeds)
            searches["kalman_storm" if form == "plain" else "kalman_storm, table"] = costs
        reached = [cost for costs in searches.values() for cost in costs if cost is not None]
        searches |= tuned_searches(problem, goals, seeds, max(reached, default=float(LONGEST)))
        for j, (part, goal) in enumerate(zip(LIMITED, goals, strict=True)):
            each = {method: costs[j] for method, costs in searches.items()}
            by = min((cost, method) for method, cost in each.items() if cost is not None)
            samples = 2 * math.log(1 / DELTA) * variance(problem, x) / (goal / 2) ** 2
            rows = whole_size(problem)
            row = {"problem": name, "part": part, "seeds": seeds, "searches": each, "by": by[1], "search": by[0]}
            yield row | {"test": samples if rows is None else min(samples, rows)}


def first_costs(problem: Any, algorithm: Any, goals: list[float], seeds: int) -> tuple[list[float | None], Any]:
    """Of each goal, and a point of the end."""
    norms = jax.jit(jax.vmap(lambda x: jnp.linalg.norm(jnp.ravel(problem.full_grad(x)))))
    stages = Stages(problem, algorithm, problem.start(), LONGEST, seeds)
    reached = np.full((len(goals), seeds), np.nan)
    while stages.t < LONGEST and np.isnan(reached).any():
        stages.go(min(max(stages.t + 1, math.ceil(1.05 * stages.t)), LONGEST))
        below = np.asarray(norms(stages.point))[None] <= np.array(goals)[:, None] / 2
        reached = np.where(np.isnan(reached) & below, stages.cost, reached)
    costs = [float(np.median(row)) if np.isfinite(row).all() else None for row in reached]
    return costs, jax.tree.map(lambda leaf: leaf[0], stages.point)


def variance(problem: Any, x: Any) -> float:
    source = Gradients(problem, x, 1, FRESH)
    rows = np.concatenate(list(source.rows() if whole_size(problem) is not None else source.draw(4096)))
    return float(np.sum(np.var(rows, axis=0)))


def arm(name: str, seeds: int, allowed: fast_arm.Allowance) -> fast_arm.FastArm:
    problem = get(name)
    start = problem.start()
    return fast_arm.run_fast_arm(problem, start, fast_arm.fast_algorithm(problem, start), seeds, allowed)


def splits(seeds: int) -> Iterator[dict[str, Any]]:
    allowed = fast_arm.Allowance(None, DELTA, BUDGET // 2, BUDGET // 2)
    for name in SPLIT:
        ruled = arm(name, seeds, allowed)
        bounds = {}
        for part in FIXED:
            with mock.patch.object(fast_arm._Arm, "_enough", lambda self, bar, cost, p=part: cost >= p * BUDGET):
                bounds[str(part)] = median_bound(arm(name, seeds, allowed))
        row = {"problem": name, "budget": BUDGET, "seeds": seeds, "bound": median_bound(ruled), "fixed": bounds}
        yield row | {"search": float(np.median(ruled.standing.search))}


def median_bound(found: fast_arm.FastArm) -> float:
    return median(one.upper_bound for one in found.certificates if one is not None)


def rules(seeds: int) -> Iterator[dict[str, Any]]:
    for name in RULED:
        problem = get(name)
        goal = 0.1 * float(jnp.linalg.norm(problem.full_grad(problem.start())))
        costs = {}
        for height in HEIGHTS:
            with mock.patch.object(fast_arm, "BAR", height):
                found = arm(name, seeds, fast_arm.Allowance(goal, DELTA, 10**8, 10**8)).standing
            costs[str(height)] = float(np.mean(found.search + found.spent))
        yield {"problem": name, "target": goal, "seeds": seeds, "costs": costs}


def watch() -> Iterator[dict[str, Any]]:
    """Medians of turns that alternate, as the machine may have other work."""
    for name in WATCHED:
        problem = get(name)
        for K in BATCHES:
            plain = kalman_storm(K=K)
            forms = plain, witnessed(plain, problem.constants(None, "almost-sure"))
            for seeds, steps in ((1, 20_000), (32, 2_000)):
                times = np.array([[seconds(problem, form, seeds, steps) for form in forms] for _ in range(TURNS)])
                ratio = float(np.median(times[:, 1] / times[:, 0]))
                row = {"problem": name, "K": K, "width": seeds, "watched": ratio}
                yield row | {"microseconds": float(np.median(times[:, 0])) / steps * 1e6}


def seconds(problem: Any, algorithm: Any, seeds: int, steps: int) -> float:
    stages = Stages(problem, algorithm, problem.start(), 10**7, seeds)
    stages.go(1000)
    begun = time.perf_counter()
    stages.go(1000 + steps)
    return time.perf_counter() - begun


def identity(row: dict[str, Any]) -> tuple[str, float, int]:
    return row["problem"], row.get("part", row.get("width", 0.0)), row.get("K", 0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=["targets", "limits", "splits", "rules", "watch"])
    parser.add_argument("--problems", type=lambda text: text.split(","), default=list(registry.PROBLEMS))
    parser.add_argument("--seeds", type=int, default=50)
    parser.add_argument("--out", type=Path, default=RESULTS / "race.json")
    given = parser.parse_args()
    one_core_in_double()
    report = json.loads(given.out.read_text(encoding="utf-8")) if given.out.exists() else {}
    parts = {
        "targets": lambda: targets(given.problems, given.seeds),
        "limits": lambda: limits(given.problems, min(given.seeds, 8)),
        "splits": lambda: splits(given.seeds),
        "rules": lambda: rules(given.seeds),
        "watch": watch,
    }
    for name, measured in parts.items():
        if given.only not in (None, name):
            continue
        for row in measured():
            print(name, row, flush=True)
            kept = {identity(one): one for one in report.get(name, ())} | {identity(row): row}
            order = list(registry.PROBLEMS)
            report[name] = sorted(kept.values(), key=lambda one: (order.index(one["problem"]), -one.get("part", 0.0)))
            report |= {"machine": {**describe(), "jax": jax.__version__}, "delta": DELTA}
            report["date"] = datetime.date.today().isoformat()
            given.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    if given.out == RESULTS / "race.json":
        tables = {
            "race": race_table,
            "race-limits": race_limits_table,
            "race-summary": race_summary,
            "race-splits": race_splits_table,
        }
        for name, table in (tables | {"race-rules": race_rules_table}).items():
            fill("race.md", name, table(report))


if __name__ == "__main__":
    main()
