"""The engine beside the plain loop of `plain_loop`, on every problem of the registry: CPU seconds on one core.

    python -m benchmarks.engine.registry [--only NAME,NAME] [--seconds 0.5] [--turns 3]
        [--out benchmarks/results/engine-registry.json]

For 1, 32 and 1024 seeds, with K = k = 1 and with the batches of the problem's default plan. All take turns; a rate is
the best of its turns in seed-steps per CPU second (others on the machine only take), starting and ending a run
included. The first call is compilation and all. The averages of both are compared to rounding.

The plain loop writes no record and keeps no candidate, so the ratio is that of an engine that writes few (8 records,
one candidate); `usual` is the ratio with 64 and 8, which the engine's user gets and the plain loop's does not. `bare`
is what the plain loop would gain by keeping nothing but the mean: how much there is to be had.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.engine.plain_loop import bare_loop, plain_loop
from benchmarks.machine import describe, one_core_in_double
from benchmarks.pages import RESULTS, engine_registry_table, publish
from normstorm.algorithms import normalized_storm
from normstorm.engine import run
from normstorm.engine.execution import program
from normstorm.problems import registry
from normstorm.random import seed_words
from normstorm.theory import plan

SEEDS = (1, 32, 1024)
FEW = 200  # steps of the first call
RATIOS = {"ratio": "engine", "usual": "usual", "bare": "bare"}  # names of ratios, and whose rate it is over the plain


def spent(work: Callable[[int], Any], steps: int) -> float:
    start = time.process_time()
    jax.block_until_ready(work(steps))
    return time.process_time() - start


def batches(problem: Any) -> dict[str, tuple[int, int]]:
    """K and k: one sample, and those of the plan for 100,000 sample gradients."""
    found = plan(problem.constants(), budget=100_000)
    return {"K = k = 1": (1, 1), "plan": (found.batch, found.sub_batch)}


def cell(name: str, K: int, k: int, seeds: int, seconds: float, turns: int) -> dict[str, Any]:
    problem = registry.get(name)
    algorithm, x0, words = normalized_storm(alpha=0.1, eta=1e-3, K=K, k=k), problem.start(), seed_words(range(seeds))

    def plain(steps: int) -> Any:
        return plain_loop(problem, algorithm, x0, steps, jnp.asarray(words))

    def bare(steps: int) -> Any:
        return bare_loop(problem, algorithm, x0, steps, jnp.asarray(words))

    def usual(steps: int) -> Any:
        return run(problem, algorithm, x0, steps, seeds, threads=1).mean_grad_norm

    def engine(steps: int) -> Any:
        return run(problem, algorithm, x0, steps, seeds, threads=1, records=8, candidates=1).mean_grad_norm

    jax.clear_caches()  # what another cell compiled must not make this one's first call cheap
    program.cache_clear()
    first = {"plain": spent(plain, FEW), "engine": spent(usual, FEW)}
    engine(FEW), bare(FEW)
    _, (total, *_) = plain(FEW)
    np.testing.assert_allclose(engine(FEW), np.asarray(total) / FEW, rtol=1e-6)
    width = run(problem, algorithm, x0, 1, seeds).width
    steps = FEW
    while (took := spent(plain, steps)) < seconds / 4:
        steps = int(steps * min(16, max(2, seconds / max(took, 1e-3))))
    steps = max(FEW, int(steps * seconds / took))
    rates: dict[str, float] = {}
    for _ in range(turns):
        for who, work in {"plain": plain, "engine": engine, "usual": usual, "bare": bare}.items():
            rates[who] = max(rates.get(who, 0.0), seeds * steps / spent(work, steps))
    row = {"problem": name, "seeds": seeds, "K": K, "k": k, "width": width, "steps": steps, "rates": rates}
    ratios = {who: rates[key] / rates["plain"] for who, key in RATIOS.items()}
    return row | ratios | {"first_call": first["engine"] / first["plain"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default=",".join(registry.PROBLEMS))
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--out", type=Path, default=RESULTS / "engine-registry.json")
    given = parser.parse_args()
    one_core_in_double()
    jax.jit(lambda x: x + 1)(1.0)
    rows = []
    for name in given.only.split(","):
        for which, (K, k) in batches(registry.get(name)).items():
            for seeds in SEEDS:
                row = cell(name, K, k, seeds, given.seconds, given.turns) | {"batches": which}
                rows.append(row)
                print(
                    f"{name:22s} {which:10s} K={K:3d} k={k:3d} seeds={seeds:5d} width={row['width']:4d} "
                    f"engine / plain {row['ratio']:.2f}, usual {row['usual']:.2f}, bare {row['bare']:.2f}  "
                    f"first call {row['first_call']:.2f}",
                    flush=True,
                )
    for seeds in SEEDS:
        for ratio in RATIOS:
            found = [row[ratio] for row in rows if row["seeds"] == seeds]
            print(f"{seeds} seeds, {ratio}: median {statistics.median(found):.2f}, least {min(found):.2f}")
    print(f"first call: largest {max(row['first_call'] for row in rows):.2f}")
    report = {"machine": {**describe(), "jax": jax.__version__}, "rows": rows}
    if given.only == ",".join(registry.PROBLEMS):
        publish(given.out, report, "how-the-engine-runs.md", "engine-registry", engine_registry_table(report))


if __name__ == "__main__":
    main()
