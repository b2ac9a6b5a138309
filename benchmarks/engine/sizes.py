"""Whether the engine's speed has cliffs: CPU time of a step over sizes of the quadratic and over batches, on one core.

    python -m benchmarks.engine.sizes [--seconds 0.1] [--turns 3] [--out benchmarks/results/engine-sizes.json]

d = 1 ... 20,000 with K = k = 1, and K = 1 ... 64 with d = 10, for 1 and 16 seeds; neighbours differ by a factor of
about 1.4. The time of a step is the slope between a short and a long run, the least of the turns each. At a neighbour
r times as large a step may take 1.5 r times as long, or be 1.5 times faster, and no more: a jump in either direction
is a cliff.
"""

from __future__ import annotations

import argparse
import datetime
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import jax

from benchmarks.engine.plain_loop import plain_loop
from benchmarks.engine.registry import spent
from benchmarks.machine import describe, one_core_in_double
from benchmarks.pages import RESULTS
from normstorm.algorithms import normalized_storm
from normstorm.engine import run
from normstorm.problems import registry
from normstorm.random import seed_words

DIMS = (1, 2, 3, 4, 6, 8, 11, 16, 22, 32, 45, 64, 90, 128, 180, 256, 360, 512, 720, 1024, 1450, 2048, 2900, 4096)
DIMS += (5800, 8192, 11_600, 16_384, 20_000)
BATCHES = (1, 2, 3, 4, 5, 6, 8, 11, 16, 22, 32, 45, 64)
SEEDS = (1, 16)
ALLOWED = 1.5


def slope(work: Any, seconds: float, turns: int) -> float:
    """Seconds of one step; what a first call compiles, for its number of records too, is not among them."""
    few = steps = 256
    while min(spent(work, steps) for _ in range(2)) < seconds and steps < 2**22:
        steps *= 4
    steps = max(steps, 4 * few)
    shortest, longest = (min(spent(work, n) for _ in range(turns)) for n in (few, steps))
    return (longest - shortest) / (steps - few)


def step_times(dim: int, K: int, seeds: int, seconds: float, turns: int) -> dict[str, Any]:
    problem = registry.get("quadratic", dim=dim)
    algorithm, x0, words = normalized_storm(alpha=0.1, eta=1e-3, K=K), problem.start(), seed_words(range(seeds))
    width = run(problem, algorithm, x0, 1, seeds).width
    engine = slope(lambda steps: run(problem, algorithm, x0, steps, seeds, threads=1).cost, seconds, turns)
    plain = slope(lambda steps: plain_loop(problem, algorithm, x0, steps, words), seconds, turns)
    return {"d": dim, "K": K, "seeds": seeds, "width": width, "seconds": engine, "plain": plain}


def cliffs(rows: list[dict[str, Any]], size: str) -> list[str]:
    found = []
    for one, other in pairwise(rows):
        ratio, larger = other["seconds"] / one["seconds"], other[size] / one[size]
        if not 1 / ALLOWED <= ratio <= ALLOWED * larger:
            found.append(f"{one['seeds']} seeds, {size} = {one[size]} to {other[size]}: {ratio:.2f} times as long")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=0.1)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--out", type=Path, default=RESULTS / "engine-sizes.json")
    given = parser.parse_args()
    one_core_in_double()
    rows: list[dict[str, Any]] = []
    found: list[str] = []
    for seeds in SEEDS:
        for size, cases in (("d", [(d, 1) for d in DIMS]), ("K", [(10, K) for K in BATCHES])):
            part = []
            for d, K in cases:
                part.append(step_times(d, K, seeds, given.seconds, given.turns))
                print(", ".join(f"{name} {value:.3g}" for name, value in part[-1].items()), flush=True)
            found += cliffs(part, size)
            rows += part
    print("\n".join(found) or "no cliff")
    report = {"date": datetime.date.today().isoformat(), "machine": {**describe(), "jax": jax.__version__}}
    given.out.write_text(json.dumps(report | {"rows": rows, "cliffs": found}, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
