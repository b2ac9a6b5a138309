"""Steps x seeds per second of Normalized STORM on a GPU, in single precision, and equality of its two loops.

    python -m benchmarks.engine.gpu [--repeats 3] [--parts speed ordinary ...] [--out results/engine-gpu.json]

`speed`: quadratic plus quartic with noise that depends on x, d = 10, K = k = 1. Side by side: `run` with the loop on
chip, `run` with the ordinary loop, and naive JAX: all seeds in one `fori_loop` over steps that draws, steps, and keeps
the running mean, the minimum and the iterate with the smallest estimate. `ordinary`: the last two on problems of
the registry that are too large for the chip, or kept off it. Whole runs are timed, recording included, compilation left
out; medians of `--repeats`. Equality is that of single problems run both ways in double and in single precision, of one
seed alone, in a crowd and in pieces, and of every algorithm of the catalogue on the GPU and on the CPU.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.pages import RESULTS, gpu_table, publish
from normstorm._shared.pytrees import pytree
from normstorm.algorithms import Algorithm, normalized_storm
from normstorm.algorithms.geometries import norm
from normstorm.algorithms.sgd import momentum_nsgd
from normstorm.engine import run
from normstorm.engine.execution import prepare
from normstorm.engine.gpu import kernel
from normstorm.problems.registry import get
from normstorm.random import normal

S0, S1, ALPHA, ETA, DIM = 1.0, 0.3, 0.1, 0.01, 10
TYPES = ("float64", "float32")
TARGETS = {1_000: 1e9, 100_000: 8e9}
STEPS = {1_000: (1_000_000, 40_000, 20_000), 10_000: (400_000, 40_000, 20_000), 100_000: (400_000, 20_000, 10_000)}
SECONDS = 3.0  # of a run of `ordinary`, about
ORDINARY = {  # problem: its size, and the numbers of seeds
    "quartic": ({"dim": 10}, (1_000, 100_000)),
    "quadratic": ({"dim": 200}, (1_000, 10_000)),
    "noisy-valley": ({}, (1_000, 10_000)),
    "least-squares": ({}, (1_000, 10_000)),
    "dro-chi2": ({}, (1_000, 10_000)),
    "tanh-network": ({}, (100, 1_000)),
    "matrix-regression": ({}, (1_000,)),
}


@pytree
@dataclass(frozen=True)
class Problem:
    """F(x) = sum x^2/2 + x^4/4;  grad f(x, (e, z)) = (1 + S1 e) grad F(x) + S0 z."""

    d: int = field(metadata={"static": True})

    def sample(self, key: jax.Array, n: int) -> jax.Array:
        return normal(key, (n, self.d + 1))

    def grad(self, x: jax.Array, batch: jax.Array) -> jax.Array:
        batch = batch.astype(x.dtype)
        return jnp.mean((1 + S1 * batch[:, :1]) * self.full_grad(x) + S0 * batch[:, 1:], axis=0)

    def full_grad(self, x: jax.Array) -> jax.Array:
        return x + x * x * x

    def start(self) -> jax.Array:
        return jnp.ones(self.d)


def storm(K: int = 1, k: int = 1) -> Algorithm:
    return normalized_storm(alpha=ALPHA, eta=ETA, K=K, k=k)


def single(x: Any) -> Any:
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), x)


def engine(problem: Any, seeds: int, steps: int) -> None:
    run(problem, storm(), single(problem.start()), steps, seeds, records=16, candidates=1)


@partial(jax.jit, static_argnums=1)
def _naive(problem: Any, seeds: int, steps: Any, start: Any) -> Any:
    """As one would first write it; `jax.random` draws if the problem lets it."""
    keys = jax.random.split(jax.random.key(0), seeds)

    def one(t: Any, key: jax.Array, x: Any, x_prev: Any, m: Any, kept: Any) -> Any:
        total, least, best, best_x = kept
        batch = problem.sample(jax.random.fold_in(key, t), 1)
        g, g_old, size = problem.grad(x, batch), problem.grad(x_prev, batch), norm(problem.full_grad(x))
        m = jax.tree.map(lambda m, g, old: ALPHA * g + (1 - ALPHA) * (m + g - old), m, g, g_old)
        length = norm(m)
        better = length < best
        best_x = jax.tree.map(lambda new, old: jnp.where(better, new, old), x, best_x)
        kept = total + size, jnp.minimum(least, size), jnp.minimum(best, length), best_x
        return jax.tree.map(lambda x, m: x - ETA * m / length, x, m), x, m, kept

    def step(t: Any, state: Any) -> Any:
        return jax.vmap(partial(one, t))(keys, *state)

    x = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (seeds, *leaf.shape)), start)
    zero = jnp.zeros(seeds, jnp.float32)
    kept = zero, zero + jnp.inf, zero + jnp.inf, x
    return jax.lax.fori_loop(0, steps, step, (x, x, jax.tree.map(jnp.zeros_like, x), kept))


def naive(problem: Any, seeds: int, steps: int) -> None:
    jax.block_until_ready(_naive(problem, seeds, steps, single(problem.start())))


class OffChip:
    """Switch the loop on chip off."""

    def __enter__(self) -> None:
        self.fits, kernel.fits = kernel.fits, lambda *_: False

    def __exit__(self, *_: Any) -> None:
        kernel.fits = self.fits


def off_chip(problem: Any, seeds: int, steps: int) -> None:
    with OffChip():
        engine(problem, seeds, steps)


Contender = Callable[[Any, int, int], None]


def seconds(contender: Contender, problem: Any, seeds: int, steps: int, repeats: int) -> float:
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        contender(problem, seeds, steps)
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def speed(repeats: int) -> list[dict[str, Any]]:
    rows, problem = [], Problem(DIM)
    contenders: dict[str, Contender] = {"chip": engine, "plain": off_chip, "first thought": naive}
    for seeds, counts in STEPS.items():
        rates = {}
        for (name, contender), steps in zip(contenders.items(), counts, strict=True):
            seconds(contender, problem, seeds, 1_100, 1)
            rates[name] = seeds * steps / seconds(contender, problem, seeds, steps, repeats)
        print(f"{seeds} seeds: " + "  ".join(f"{n} {r:.3g}/s" for n, r in rates.items()), flush=True)
        rows.append({"seeds": seeds, "seed_steps_per_second": rates, "target": TARGETS.get(seeds)})
    return rows


def ordinary(repeats: int) -> list[dict[str, Any]]:
    """The ordinary loop against naive JAX: as many steps as take a few seconds, the same for both."""
    problems = {name: get(name, **options) for name, (options, _) in ORDINARY.items()}
    cases = [(name, seeds) for name, (_, counts) in ORDINARY.items() for seeds in counts]
    contenders: dict[str, Contender] = {"plain": engine, "naive": naive}

    def compiled(name: str, seeds: int) -> str | None:
        try:
            for contender in contenders.values():
                contender(problems[name], seeds, 300)
        except Exception as error:  # one problem that does not fit in memory must not cost all figures
            return f"{type(error).__name__}: {str(error)[:200]}"
        return None

    rows: list[dict[str, Any]] = []
    with OffChip():
        with ThreadPoolExecutor(8) as pool:
            errors = list(pool.map(compiled, *zip(*cases, strict=True)))
        for (name, seeds), error in zip(cases, errors, strict=True):
            row: dict[str, Any] = {"problem": name, "numbers": _numbers(problems[name].start()), "seeds": seeds}
            row |= {"error": error} if error else _against(contenders, problems[name], seeds, repeats)
            print(row, flush=True)
            rows.append(row)
    return rows


def _against(contenders: dict[str, Contender], problem: Any, seeds: int, repeats: int) -> dict[str, Any]:
    steps = int(min(60_000, max(512, 300 * SECONDS / seconds(naive, problem, seeds, 300, 3))))
    taken = {name: seconds(contender, problem, seeds, steps, repeats) for name, contender in contenders.items()}
    rates = {name: seeds * steps / took for name, took in taken.items()}
    return {"steps": steps, "seed_steps_per_second": rates, "plain over naive": rates["plain"] / rates["naive"]}


def _numbers(x: Any) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(x))


def equality() -> list[dict[str, Any]]:
    """The largest relative difference of the two loops after a few hundred steps."""
    cases = [("quadratic", 1, 1), ("quartic", 8, 3), ("cosh-cosine", 5, 1), ("exp-quad", 1, 1), ("noisy-valley", 1, 1)]
    cases += [("separable-logistic", 4, 2), ("dro-chi2", 1, 1)]
    jobs = [(name, dtype, storm(K, k)) for dtype in TYPES for name, K, k in cases]
    jobs += [(name, "float64", momentum_nsgd(alpha=0.1, eta=0.01, K=3)) for name in ("quartic", "double-well")]
    with ThreadPoolExecutor(8) as pool:
        ours = list(pool.map(_short_run, jobs))
        with OffChip():
            plain = list(pool.map(_short_run, jobs))
    rows = []
    for (name, dtype, algorithm), (a, chip), (b, _) in zip(jobs, ours, plain, strict=True):
        row: dict[str, Any] = {"problem": name, "algorithm": algorithm.name, "dtype": dtype, "chip": chip}
        row |= {f: _difference(getattr(a, f), getattr(b, f)) for f in ("last", "running_mean", "value")}
        print(row, flush=True)
        rows.append(row)
    return rows


def _short_run(job: tuple[str, str, Algorithm]) -> tuple[Any, bool]:
    """A run, and whether it went on chip."""
    name, dtype, algorithm = job
    with jax.enable_x64(True):
        problem = get(name)
        x, kept = jnp.asarray(problem.start(), dtype), {"records": 9, "candidates": 8, "average": True, "width": None}
        config = prepare(problem, algorithm, x, 300, list(range(40)), **kept).config
        found = run(problem, algorithm, x, 300, 40, **kept)
    return found, config.on_chip and found.width == config.width


def _difference(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.nanmax(np.abs(a - b)) / (np.nanmax(np.abs(b)) + 1e-30))


def identity() -> dict[str, bool]:
    """Whether seed 7 gives the same bits alone, among 3000 in batches of the same width, and in pieces."""
    problem, algorithm, fields = Problem(DIM), storm(3, 2), ("last", "running_mean", "value", "mean_grad_norm")
    go = partial(run, problem, algorithm, jnp.ones(DIM, jnp.float32), 2_000, width=1_024)
    alone = go([7])
    others = {"crowd": go(list(range(3_000))[::-1]), "pieces": go([7], progress_steps=37)}
    found = {}
    for name, other in others.items():
        i = int(np.flatnonzero(other.seeds == 7)[0])
        pairs = ((getattr(alone, f)[0], getattr(other, f)[i]) for f in fields)
        found[name] = all(np.array_equal(a, b, equal_nan=True) for a, b in pairs)
    print(found, flush=True)
    return found


def catalogue() -> list[dict[str, Any]]:
    """Every algorithm with its default setting, in double precision: this machine's GPU against its CPU."""
    from normstorm.lab.compare.methods import METHODS, build, scales

    vectors, matrices = get("dro-chi2"), get("matrix-regression")

    def go(name: str) -> dict[str, Any]:
        problem = vectors
        algorithm = build(name, METHODS[name].default(scales(problem, 10_000)))
        if algorithm.refusal(problem, problem.start()) is not None:
            problem = matrices
            algorithm = build(name, METHODS[name].default(scales(problem, 10_000)))
        with jax.enable_x64(True):
            x, found = problem.start(), {}
            for kind in ("gpu", "cpu"):
                with jax.default_device(jax.devices(kind)[0]):
                    found[kind] = run(problem, algorithm, x, 100, 20, records=9, average=False, threads=1)
        row = {"algorithm": name, "problem": problem.name}
        fields = ("last", "grad_norm", "value")
        return row | {f: _difference(getattr(found["gpu"], f), getattr(found["cpu"], f)) for f in fields}

    with ThreadPoolExecutor(8) as pool:
        rows = list(pool.map(go, METHODS))
    for row in rows:
        print(row, flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, default=RESULTS / "engine-gpu.json")
    parser.add_argument("--parts", nargs="*", default=["speed", "ordinary", "identity", "equality", "catalogue"])
    given = parser.parse_args()
    machine = {"device": jax.devices()[0].device_kind, "jax": jax.__version__}
    report: dict[str, Any] = {"machine": machine, "repeats": given.repeats}
    parts: dict[str, Callable[[], Any]] = {
        "speed": partial(speed, given.repeats),
        "ordinary": partial(ordinary, given.repeats),
        "identity": identity,
        "equality": equality,
        "catalogue": catalogue,
    }
    given.out.parent.mkdir(parents=True, exist_ok=True)
    for name in given.parts:
        began = time.perf_counter()
        report[name] = parts[name]()
        print(f"{name}: {time.perf_counter() - began:.0f} s", flush=True)
        given.out.write_text(json.dumps(report, indent=2), encoding="utf-8")
    if set(given.parts) == set(parts):
        publish(given.out, report, "how-the-engine-runs.md", "engine-gpu", gpu_table(report))


if __name__ == "__main__":
    main()
