"""Every system side by side: the speed of a comparison, the table of the README, and rates of tuned methods.

    python -m benchmarks.lab.comparison [--only speed|table|slopes] [--threads n]

speed    25 algorithms x 3 problems x 200 seeds x 100,000 sample gradients with default settings: seconds, compilation
         included
table    every algorithm, tuned alike, on four problems: sample gradients to a target, and what the budget gives
slopes   tuned methods on the noisy valley at budgets over three decades

Writes results/comparison-*.json with the date and the kind of machine, and puts the tables into README.md and
docs/how-to-choose.md between their markers.
"""

from __future__ import annotations

import argparse
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Any

import jax
import numpy as np

from benchmarks.machine import describe
from benchmarks.pages import (
    RESULTS,
    choice_table,
    comparison_time,
    comparison_words,
    fill,
    finals_table,
    publish,
    rates_table,
    refused_line,
    speed_line,
    taken_home_table,
)
from normstorm._shared.jsonable import jsonable
from normstorm.engine.run import cores
from normstorm.lab.compare.bench import WIDTH, Bench, board
from normstorm.lab.compare.board import AVERAGE, TUNED, Board, Row
from normstorm.lab.compare.lanes import LANES
from normstorm.lab.compare.methods import METHODS, scales
from normstorm.lab.compare.request import CompareRequest
from normstorm.lab.compare.tables import choices, problem_facts, rows, targets, verdicts
from normstorm.problems import registry

# Those that run on every vector problem, and SVRG, SAGA and SARAH left out: they need a finite sum.
QUICK = (
    *("normalized_storm", "momentum_nsgd", "sgd", "momentum_sgd", "normalized_sgd", "nigt", "agnostic_nsgd"),
    *("clipped_sgd", "soft_clipped_sgd", "mixed_clipping", "generalized_signsgd", "sign_storm"),
    *("generalized_signstorm", "adagrad_norm", "super_adam", "storm", "storm_plus", "meta_storm", "meta_storm_sg"),
    *("meta_storm_na", "hybrid_sarah_sgd", "spider_2", "l0l1_spider", "page", "mars"),
)
SPEED = CompareRequest(("exp-quad", "noisy-valley", "dro-chi2"), QUICK, budget=100_000, seeds=200)
TABLE = CompareRequest(
    ("noisy-valley", "dro-chi2", "phase-retrieval", "exp-quad"), budget=100_000, seeds=128, tune=True
)
DECADES = (1_000, 10_000, 100_000, 1_000_000)
RATED = ("normalized_storm", "momentum_nsgd", "normalized_sgd", "sgd", "momentum_sgd", "storm", "meta_storm")


def boards(request: CompareRequest, threads: int | None) -> list[Board]:
    """Two problems at a time: the threads of one are idle whenever its last run of a round is not done."""

    def one(name: str) -> Board:
        started = time.monotonic()
        found = board(request, name, registry.get(name), threads=threads)
        print(f"{name}: {time.monotonic() - started:.0f} s", flush=True)
        return found

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(one, request.problems))


def machine() -> dict[str, Any]:
    return {**describe(), "jax": jax.__version__, "numpy": np.__version__}


def speed(threads: int | None) -> None:
    started, found = time.monotonic(), []
    for name in SPEED.problems:
        problem = registry.get(name)
        known = scales(problem, SPEED.budget)
        bench = Bench(SPEED, name, problem, threads or cores(), None)
        settings = {name: [METHODS[name].default(known)] for name in SPEED.algorithms}
        found += [one for measured in bench.measure("runs", settings, bench.seeds).values() for one in measured]
        print(f"{name}: {time.monotonic() - started:.0f} s", flush=True)
    report = {
        "machine": machine(),
        "spec": asdict(SPEED),
        "seconds": time.monotonic() - started,
        "runs": len(found),
        "sample_gradients": sum(one.cost for one in found),
    }
    text = speed_line(report)
    publish(RESULTS / "comparison-speed.json", report, "how-to-choose.md", "comparison-speed", text)
    print(text)


def table(threads: int | None) -> None:
    started, worked = time.monotonic(), time.process_time()
    found = boards(TABLE, threads)
    report = {
        "machine": machine(),
        "spec": asdict(TABLE),
        "seconds": time.monotonic() - started,
        "core_seconds": time.process_time() - worked,
        "width": WIDTH,
        "lanes": LANES,
        "problems": jsonable([problem_facts(b) for b in found]),
        **{make.__name__: jsonable(make(found)) for make in (rows, targets, choices, verdicts)},
    }
    publish(RESULTS / "comparison-table.json", report, "../README.md", "comparison-table", choice_table(report))
    fill("../README.md", "comparison-words", comparison_words(report))
    fill("how-to-choose.md", "comparison-time", comparison_time(report))
    fill("how-to-choose.md", "comparison-finals", finals_table(report))
    fill("how-to-choose.md", "comparison-taken-home", taken_home_table(report))
    fill("how-to-choose.md", "comparison-refused", refused_line(report))
    print(choice_table(report))


def slopes(threads: int | None) -> None:
    started, found = time.monotonic(), []
    for budget in DECADES:
        request = CompareRequest(("noisy-valley",), RATED, budget=budget, seeds=128, tune=True, targets=(0.1,))
        (one,) = boards(request, threads)
        found.extend(_rate(budget, row, one) for row in one.rows if row.kind == TUNED and AVERAGE in row.goals)
    report = {"machine": machine(), "budgets": DECADES, "seconds": time.monotonic() - started, "rows": found}
    publish(RESULTS / "comparison-slopes.json", report, "how-to-choose.md", "comparison-slopes", rates_table(report))
    print(rates_table(report))


def _rate(budget: int, row: Row, found: Board) -> dict[str, Any]:
    assert row.measured is not None
    seen = found.seen(row, AVERAGE)
    return {"algorithm": row.algorithm, "budget": budget, **seen._asdict(), "settings": row.measured.settings}


PARTS = {"speed": speed, "table": table, "slopes": slopes}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=PARTS)
    parser.add_argument("--threads", type=int)
    given = parser.parse_args()
    for name, part in PARTS.items():
        if given.only in (None, name):
            part(given.threads)


if __name__ == "__main__":
    main()
