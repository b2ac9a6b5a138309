"""What a race costs until its point is certified, beside the plan and beside what nobody can do without.

    python -m benchmarks.lab.race [--only targets|splits|rules] [--problems a,b] [--seeds n] [--out results/race.json]

targets   every problem, targets .3, .1 and .03 of ||grad F(x_1)||, confidence .99: sample gradients of the race (median
          and largest of the seeds), of the plan with its tests, and of the promise; points whose exact gradient exceeds
          what is certified; and the limit: the search to half of the target, by exact gradients that nobody counts,
          with the cheaper of kalman_storm's two forms, and 2 log(1/delta) trace/(target/2)^2 samples, or all rows if
          they are fewer
splits    with a budget: what is certified by the rule, over what fixed parts of the budget for the search give
rules     with a target: the cost where tests begin at other heights of the error bar

Prints rows as they are found, keeps those that are not measured now, writes all with the date and the kind of machine,
and puts tables into docs/race.md.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.machine import describe, one_core_in_double
from benchmarks.pages import RESULTS, fill, race_rules_table, race_splits_table, race_summary, race_table
from normstorm import minimize
from normstorm.algorithms.kalman import kalman_storm
from normstorm.problems import get, registry
from normstorm.solve import fast_arm
from normstorm.solve.fresh import FRESH, Gradients, whole_size
from normstorm.solve.stages import Stages

DELTA = 0.01
PARTS = (0.3, 0.1, 0.03)
SPLIT = ("quadratic", "exp-quad", "noisy-valley", "double-well", "quartic-sum")
BUDGET, FIXED = 20_000, (0.05, 0.1, 0.2, 0.3, 0.4, 0.5)
RULED, HEIGHTS = ("quadratic", "quartic-sum", "double-well", "noisy-valley", "cosh-cosine"), (0.7, 0.85, 1.0, 1.2, 1.5)
LONGEST = 3_000_000  # steps of a search whose gradients nobody counts


def targets(problems: list[str], seeds: int) -> Iterator[dict[str, Any]]:
    for name in problems:
        problem = get(name)
        first = float(jnp.linalg.norm(problem.full_grad(problem.start())))
        goals = [part * first for part in PARTS]
        searches = cheapest_searches(problem, goals, min(seeds, 8))
        for part, goal, search in zip(PARTS, goals, searches, strict=True):
            found = minimize(problem, target=goal, confidence=1 - DELTA, seeds=seeds, progress=False)
            yield row_of(name, part, goal, found, search)


def row_of(name: str, part: float, goal: float, found: Any, search: float | None) -> dict[str, Any]:
    race, rows = found.race, found.race.rows
    samples = 2 * math.log(1 / DELTA) * variance(get(name), found.x) / (goal / 2) ** 2
    test = samples if rows is None else min(samples, rows)
    limit = None if search is None else search + test
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
        "limit": limit,
        "over_limit": None if limit is None else cost / limit,
        "ended_by": dict(Counter([race.ended_by])),
    }


def cheapest_searches(problem: Any, goals: list[float], seeds: int) -> list[float | None]:
    """Of both forms of kalman_storm: the median cost at which ||grad F(x_t)|| is first at most half of each goal."""
    forms = [kalman_storm(), *([kalman_storm(table=True)] if whole_size(problem) is not None else [])]
    each = [first_costs(problem, form, goals, seeds) for form in forms]
    return [min((cost for cost in costs if cost is not None), default=None) for costs in zip(*each, strict=True)]


def first_costs(problem: Any, algorithm: Any, goals: list[float], seeds: int) -> list[float | None]:
    norms = jax.jit(jax.vmap(lambda x: jnp.linalg.norm(jnp.ravel(problem.full_grad(x)))))
    stages = Stages(problem, algorithm, problem.start(), LONGEST, seeds)
    reached = np.full((len(goals), seeds), np.nan)
    while stages.t < LONGEST and np.isnan(reached).any():
        stages.go(min(max(stages.t + 1, math.ceil(1.05 * stages.t)), LONGEST))
        below = np.asarray(norms(stages.point))[None] <= np.array(goals)[:, None] / 2
        reached = np.where(np.isnan(reached) & below, stages.cost, reached)
    return [float(np.median(row)) if np.isfinite(row).all() else None for row in reached]


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


def identity(row: dict[str, Any]) -> tuple[str, float]:
    return row["problem"], row.get("part", 0.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=["targets", "splits", "rules"])
    parser.add_argument("--problems", type=lambda text: text.split(","), default=list(registry.PROBLEMS))
    parser.add_argument("--seeds", type=int, default=50)
    parser.add_argument("--out", type=Path, default=RESULTS / "race.json")
    given = parser.parse_args()
    one_core_in_double()
    report = json.loads(given.out.read_text(encoding="utf-8")) if given.out.exists() else {}
    parts = {
        "targets": lambda: targets(given.problems, given.seeds),
        "splits": lambda: splits(given.seeds),
        "rules": lambda: rules(given.seeds),
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
        tables = {"race": race_table, "race-summary": race_summary, "race-splits": race_splits_table}
        for name, table in (tables | {"race-rules": race_rules_table}).items():
            fill("race.md", name, table(report))


if __name__ == "__main__":
    main()
