"""Steps x seeds per second of Normalized STORM on a GPU, in single precision, and equality of its two loops.

    python benchmarks/engine_gpu.py [--repeats 5] [--out benchmarks/results/engine-gpu.json]

Quadratic plus quartic with noise that depends on x, d = 10, K = k = 1. Side by side: `run` with the loop on chip, `run`
with the ordinary loop, and the loop as one would first write it in JAX (all seeds in one `fori_loop`, a key folded at
every step). Whole runs are timed, recording included, compilation left out; medians of `--repeats`. Equality is that of
single problems run both ways in double and in single precision, of one seed alone, in a crowd and in pieces, and of
every algorithm of the catalogue on the GPU and on the CPU.
"""

from __future__ import annotations

import argparse
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from pages import gpu_table, publish

from normstorm._shared.pytrees import pytree
from normstorm.algorithms import normalized_storm
from normstorm.algorithms.geometries import norm
from normstorm.algorithms.sgd import momentum_nsgd
from normstorm.engine import job, run
from normstorm.engine.gpu import kernel as chip
from normstorm.random import normal

S0, S1, ALPHA, ETA, DIM = 1.0, 0.3, 0.1, 0.01, 10
TYPES = ("float64", "float32")
TARGETS = {1_000: 1e9, 100_000: 8e9}
STEPS = {1_000: (1_000_000, 20_000, 20_000), 10_000: (400_000, 10_000, 20_000), 100_000: (400_000, 2_000, 10_000)}


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


def engine(seeds: int, steps: int) -> None:
    run(Problem(DIM), normalized_storm(alpha=ALPHA, eta=ETA), jnp.ones(DIM, jnp.float32), steps, seeds, records=16)


@partial(jax.jit, static_argnums=0)
def _first_thought(seeds: int, steps: Any) -> Any:
    problem, keys = Problem(DIM), jax.random.split(jax.random.key(0), seeds)

    def step(t: Any, state: Any) -> Any:
        def one(key: jax.Array, x: Any, x_prev: Any, m: Any, total: Any, least: Any) -> Any:
            batch = jax.random.normal(jax.random.fold_in(key, t), (1, DIM + 1))
            g, g_old, size = problem.grad(x, batch), problem.grad(x_prev, batch), norm(problem.full_grad(x))
            m = ALPHA * g + (1 - ALPHA) * (m + g - g_old)
            return x - ETA * m / norm(m), x, m, total + size, jnp.minimum(least, size)

        return jax.vmap(one)(keys, *state)

    x, zero = jnp.ones((seeds, DIM)), jnp.zeros(seeds)
    return jax.lax.fori_loop(0, steps, step, (x, x, jnp.zeros_like(x), zero, zero + jnp.inf))


def first_thought(seeds: int, steps: int) -> None:
    jax.block_until_ready(_first_thought(seeds, steps))


class Plain:
    """Switch the loop on chip off."""

    def __enter__(self) -> None:
        self.fits, chip.fits = chip.fits, lambda *_: False
        job._FOUND.clear()

    def __exit__(self, *_: Any) -> None:
        chip.fits = self.fits
        job._FOUND.clear()


def speed(repeats: int) -> list[dict[str, Any]]:
    rows = []
    for seeds, counts in STEPS.items():
        rates: dict[str, float] = {}
        for name, contender, steps in zip(
            ("chip", "plain", "first thought"), (engine, engine, first_thought), counts, strict=True
        ):
            if name == "plain":
                with Plain():
                    rates[name] = _rate(contender, seeds, steps, 1)
            else:
                rates[name] = _rate(contender, seeds, steps, repeats)
        print(f"{seeds} seeds: " + "  ".join(f"{n} {r:.3g}/s" for n, r in rates.items()), flush=True)
        rows.append({"seeds": seeds, "seed_steps_per_second": rates, "target": TARGETS.get(seeds)})
    return rows


def _rate(contender: Any, seeds: int, steps: int, repeats: int) -> float:
    contender(seeds, 1_100)
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        contender(seeds, steps)
        times.append(time.perf_counter() - start)
    return seeds * steps / statistics.median(times)


def equality() -> list[dict[str, Any]]:
    """The largest relative difference of the two loops after a few hundred steps."""
    from normstorm.problems.registry import get

    cases = [("quadratic", 1, 1), ("quartic", 8, 3), ("cosh-cosine", 5, 1), ("exp-quad", 1, 1), ("noisy-valley", 1, 1)]
    cases += [("separable-logistic", 4, 2), ("dro-chi2", 1, 1)]
    storm = [(name, dtype, normalized_storm(alpha=0.1, eta=0.01, K=K, k=k)) for dtype in TYPES for name, K, k in cases]
    momentum = [(name, "float64", momentum_nsgd(alpha=0.1, eta=0.01, K=3)) for name in ("quartic", "double-well")]
    return [_equality(get(name), dtype, algorithm) for name, dtype, algorithm in storm + momentum]


def _equality(problem: Any, dtype: str, algorithm: Any) -> dict[str, Any]:
    go = partial(run, problem, algorithm, jnp.asarray(problem.start(), dtype), 300, 40, records=9)
    job._FOUND.clear()
    ours = go()
    row = {"problem": problem.name, "algorithm": algorithm.name, "dtype": dtype}
    row["chip"] = next(iter(job._FOUND.values()))[0].chip
    with Plain():
        plain = go()
    row |= {f: _difference(getattr(ours, f), getattr(plain, f)) for f in ("last", "running_mean", "value")}
    print(row, flush=True)
    return row


def _difference(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.nanmax(np.abs(a - b)) / (np.nanmax(np.abs(b)) + 1e-30))


def identity() -> dict[str, bool]:
    """Whether seed 7 gives the same bits alone, among 3000, in pieces."""
    problem, algorithm = Problem(DIM), normalized_storm(alpha=ALPHA, eta=ETA, K=3, k=2)
    go = partial(run, problem, algorithm, jnp.ones(DIM, jnp.float32), 2_000)
    alone = go([7])
    others = {"crowd": go(list(range(3_000))[::-1]), "pieces": go([7], chunk=37)}
    found = {}
    for name, other in others.items():
        i = int(np.flatnonzero(other.seeds == 7)[0])
        same = [
            np.array_equal(getattr(alone, f)[0], getattr(other, f)[i], equal_nan=True)
            for f in ("last", "running_mean", "value")
        ]
        found[name] = all(same) and alone.mean_grad_norm[0] == other.mean_grad_norm[i]
    print(found, flush=True)
    return {name: bool(v) for name, v in found.items()}


def catalogue() -> list[dict[str, Any]]:
    """Every algorithm with its default setting, in double precision: this machine's GPU against its CPU."""
    from normstorm.lab.compare.methods import METHODS, build, scales
    from normstorm.problems.registry import get

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
                    found[kind] = run(problem, algorithm, x, 100, 20, records=9, average=False)
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
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "engine-gpu.json")
    given = parser.parse_args()
    rows = speed(given.repeats)
    same = identity()
    with jax.enable_x64(True):
        equal = equality()
    every = catalogue()
    machine = {"device": jax.devices()[0].device_kind, "jax": jax.__version__}
    report = {"machine": machine, "repeats": given.repeats, "speed": rows, "identity": same, "equality": equal}
    report["catalogue"] = every
    publish(given.out, report, "how-the-engine-runs.md", "engine-gpu", gpu_table(report))


if __name__ == "__main__":
    main()
