"""What it costs to be watched: runs with the trajectory certificate beside the same runs without, CPU time on one core.

    python -m benchmarks.engine.observer [--only NAME,NAME] [--seconds 0.5] [--turns 5]
        [--out benchmarks/results/engine-observer.json]

For every problem of the registry, 1 and 32 seeds, and batches K = k = 1, K = k = 8, K = 32 with k = 8. Both take turns,
and the ratio is that of the best of their turns. Ranges come from the problem and from its constants, as in `minimize`.
"""

from __future__ import annotations

import argparse
import datetime
import json
import statistics
from pathlib import Path
from typing import Any

import jax

from benchmarks.engine.registry import spent
from benchmarks.machine import describe, one_core_in_double
from benchmarks.pages import RESULTS
from normstorm.algorithms import normalized_storm
from normstorm.algorithms.observers import follow
from normstorm.engine import run
from normstorm.engine.execution import program
from normstorm.problems import registry

BATCHES = ((1, 1), (8, 8), (32, 8))
SEEDS = (1, 32)
BUDGET = 100_000


def cell(name: str, K: int, k: int, seeds: int, seconds: float, turns: int) -> dict[str, Any]:
    jax.clear_caches()  # a process can hold only so many compiled programs
    program.cache_clear()
    problem = registry.get(name)
    x, plain = problem.start(), normalized_storm(alpha=0.05, eta=1e-3, K=K, k=k)
    known = {"steps": BUDGET // (K + k), "delta": 0.05, "constants": problem.constants(None, "almost-sure")}
    both = plain, follow(plain, problem, x, **known)

    def work(algorithm: Any, steps: int) -> float:
        return spent(lambda T: run(problem, algorithm, x, T, seeds, records=8, candidates=1, threads=1), steps)

    for algorithm in both:
        work(algorithm, 64)
    steps = max(64, int(1000 * seconds / max(work(plain, 1000), 1e-3)))
    turned = [[work(algorithm, steps) for algorithm in both] for _ in range(turns)]
    unwatched, watched = (min(column) for column in zip(*turned, strict=True))
    return {"problem": name, "K": K, "k": k, "seeds": seeds, "steps": steps, "ratio": watched / unwatched}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", type=lambda text: text.split(","), default=list(registry.PROBLEMS))
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--out", type=Path, default=RESULTS / "engine-observer.json")
    given = parser.parse_args()
    one_core_in_double()
    cells = []
    for name in given.only:
        for seeds in SEEDS:
            for K, k in BATCHES:
                cells.append(cell(name, K, k, seeds, given.seconds, given.turns))
                c = cells[-1]
                print(f"{name:22} {seeds:3} seeds, K = {K}, k = {k}: {c['ratio']:.2f}", flush=True)
    medians = {
        f"{seeds} seeds, K = {K}": statistics.median(c["ratio"] for c in cells if (c["seeds"], c["K"]) == (seeds, K))
        for seeds in SEEDS
        for K, _ in BATCHES
    }
    print("medians: " + ", ".join(f"{name}: {value:.2f}" for name, value in medians.items()))
    report = {"date": datetime.date.today().isoformat(), "machine": describe(), "medians": medians, "cells": cells}
    given.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
