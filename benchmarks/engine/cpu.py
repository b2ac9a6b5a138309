"""Steps x seeds per CPU second of Normalized STORM, side by side with NumPy, Numba and an optax loop, on one core.

    python -m benchmarks.engine.cpu [--repeats 5] [--out benchmarks/results/engine-cpu.json]

Quadratic plus quartic with noise that depends on x, K = k = 1, float64; everybody also keeps the running mean and the
minimum of ||grad F(x_t)||. The contenders take turns; rates and ratios are medians over turns. CPU seconds of this
process, so that a busy machine matters less; compilation and the seeding of generators are left out. Runs are long;
what a short one takes is given apart. A contender that is not installed is skipped. One chosen problem: an ablation
beside `registry`, which has all of them.
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.machine import describe, one_core_in_double
from benchmarks.pages import RESULTS, engine_table, publish
from normstorm.algorithms import normalized_storm
from normstorm.algorithms.geometries import norm
from normstorm.engine import run
from normstorm.random import normal

S0, S1, ALPHA, ETA = 1.0, 0.3, 0.1, 0.01
CASES = {  # name: (d, seeds, steps of ours and of Numba, steps of NumPy, steps of optax)
    "d=10, 1 seed": (10, 1, 400_000, 8_000, 4_000),
    "d=10, 1000 seeds": (10, 1000, 100_000, 400, 200),
    "d=1000, 10 seeds": (1000, 10, 40_000, 1_000, 500),
}
SHORT = 100  # steps of a short run
TARGETS = {"d=10, 1 seed": {"numpy": 40.0}, "d=10, 1000 seeds": {"numpy": 2.0, "numba": 1.0}}
TARGETS["d=1000, 10 seeds"] = {"numpy": 2.0}


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Problem:
    """F(x) = sum x^2/2 + x^4/4;  grad f(x, (e, z)) = (1 + S1 e) grad F(x) + S0 z."""

    d: int = field(metadata={"static": True})

    def sample(self, key: jax.Array, n: int) -> jax.Array:
        return normal(key, (n, self.d + 1), jnp.float64)

    def grad(self, x: jax.Array, batch: jax.Array) -> jax.Array:
        return jnp.mean((1 + S1 * batch[:, :1]) * self.full_grad(x) + S0 * batch[:, 1:], axis=0)

    def full_grad(self, x: jax.Array) -> jax.Array:
        return x + x * x * x


def engine(d: int, seeds: int, steps: int) -> None:
    run(Problem(d), normalized_storm(alpha=ALPHA, eta=ETA), jnp.ones(d), steps, seeds, threads=1)


def numpy_batched(d: int, seeds: int, steps: int) -> None:
    draw = np.random.default_rng(0).standard_normal
    x = x_prev = np.ones((seeds, d))
    m, total, least = np.zeros((seeds, d)), np.zeros(seeds), np.full(seeds, np.inf)
    for _ in range(steps):
        scale, shift = 1 + S1 * draw((seeds, 1)), S0 * draw((seeds, d))
        full = x + x * x * x
        size = np.sqrt(np.einsum("ij,ij->i", full, full))
        total += size
        least = np.minimum(least, size)
        g, g_old = scale * full + shift, scale * (x_prev + x_prev * x_prev * x_prev) + shift
        m = ALPHA * g + (1 - ALPHA) * (m + g - g_old)
        length = np.sqrt(np.einsum("ij,ij->i", m, m))[:, None]
        x_prev, x = x, x - ETA * m / np.where(length > 0, length, 1)


def numba_contender() -> Callable[[int, int, int], None]:
    import numba

    @numba.njit
    def one_seed(rng: Any, x: Any, x_prev: Any, m: Any, steps: int) -> Any:
        total, least = 0.0, np.inf
        for _ in range(steps):
            scale = 1 + S1 * rng.standard_normal()
            squares = length = 0.0
            for i in range(x.size):
                shift = S0 * rng.standard_normal()
                full = x[i] + x[i] * x[i] * x[i]
                squares += full * full
                g = scale * full + shift
                g_old = scale * (x_prev[i] + x_prev[i] * x_prev[i] * x_prev[i]) + shift
                m[i] = ALPHA * g + (1 - ALPHA) * (m[i] + g - g_old)
                length += m[i] * m[i]
            size = math.sqrt(squares)
            total += size
            least = min(least, size)
            factor = ETA / math.sqrt(length) if length > 0 else 0.0
            for i in range(x.size):
                x_prev[i] = x[i]
                x[i] -= factor * m[i]
        return total, least

    generators = [np.random.Generator(np.random.SFC64(seed)) for seed in range(1000)]

    def contender(d: int, seeds: int, steps: int) -> None:
        for rng in generators[:seeds]:
            one_seed(rng, np.ones(d), np.ones(d), np.zeros(d), steps)

    return contender


def optax_contender() -> Callable[[int, int, int], None]:
    import optax

    optimizer = optax.chain(optax.normalize_by_update_norm(), optax.sgd(ETA))

    @partial(jax.jit, static_argnums=0)
    def step(problem: Problem, params: Any, key: jax.Array, state: Any) -> Any:
        def one(params: Any, key: jax.Array, state: Any) -> Any:
            x_prev, m, inner, total, least = state
            batch = jax.random.normal(key, (1, problem.d + 1), jnp.float64)
            g, g_old = problem.grad(params, batch), problem.grad(x_prev, batch)
            m = ALPHA * g + (1 - ALPHA) * (m + g - g_old)
            size = norm(problem.full_grad(params))
            updates, inner = optimizer.update(m, inner, params)
            return optax.apply_updates(params, updates), (params, m, inner, total + size, jnp.minimum(least, size))

        return jax.vmap(one)(params, jax.random.split(key, params.shape[0]), state)

    def contender(d: int, seeds: int, steps: int) -> None:
        params, zeros = jnp.ones((seeds, d)), jnp.zeros(seeds)
        state = (params, jnp.zeros((seeds, d)), jax.vmap(optimizer.init)(params), zeros, zeros + jnp.inf)
        key = jax.random.key(0)
        for _ in range(steps):
            key, now = jax.random.split(key)
            params, state = step(Problem(d), params, now, state)
        params.block_until_ready()

    return contender


def contenders() -> dict[str, Callable[[int, int, int], None]]:
    found: dict[str, Callable[[int, int, int], None]] = {"engine": engine, "numpy": numpy_batched}
    for name, make in (("numba", numba_contender), ("optax", optax_contender)):
        if importlib.util.find_spec(name) is None:
            print(f"{name}: skipped, it is not installed")
        else:
            found[name] = make()
    return found


def measure(case: str, found: dict[str, Callable[[int, int, int], None]], repeats: int) -> dict[str, list[float]]:
    """Steps x seeds per CPU second of every contender, turn by turn."""
    d, seeds, ours, numpys, optaxs = CASES[case]
    steps = {"numpy": numpys, "optax": optaxs}
    rates: dict[str, list[float]] = {name: [] for name in found}
    for turn in range(repeats + 1):
        for name, contender in found.items():
            count = steps.get(name, ours) if turn else 300
            start = time.process_time()
            contender(d, seeds, count)
            if turn:  # the first turn compiles
                rates[name].append(seeds * count / (time.process_time() - start))
    return rates


def compared(ours: list[float], theirs: list[float]) -> float:
    """The median ratio within a turn, which a machine that is slow for a while leaves alone."""
    return statistics.median(a / b for a, b in zip(ours, theirs, strict=True))


def short_run(case: str, repeats: int) -> float:
    """Median CPU milliseconds of a short run of the engine."""
    d, seeds, *_ = CASES[case]
    spent = []
    for _ in range(repeats):
        start = time.process_time()
        engine(d, seeds, SHORT)
        spent.append(1e3 * (time.process_time() - start))
    return statistics.median(spent)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, default=RESULTS / "engine-cpu.json")
    given = parser.parse_args()
    one_core_in_double()
    found, rows = contenders(), []
    for case in CASES:
        turns = measure(case, found, given.repeats)
        rates = {name: statistics.median(values) for name, values in turns.items()}
        ratios = {name: compared(turns["engine"], values) for name, values in turns.items() if name != "engine"}
        targets = TARGETS[case]
        short = short_run(case, given.repeats)
        row = {"case": case, "per_cpu_second": rates, "engine_over": ratios, "targets": targets, "short_run_ms": short}
        rows.append(row)
        shown = "  ".join(f"{name} {rate:.3g}/s" for name, rate in rates.items())
        print(f"{case}:  {shown}  (a run of {SHORT} steps: {short:.1f} ms)")
        for name, ratio in ratios.items():
            target = f"  (target {targets[name]:g})" if name in targets else ""
            print(f"    engine / {name}: {ratio:.2f}{target}", flush=True)
    machine = {**describe(), "jax": jax.__version__, "numpy": np.__version__}
    report = {"machine": machine, "repeats": given.repeats, "rows": rows}
    publish(given.out, report, "how-the-engine-runs.md", "engine-cpu", engine_table(report))


if __name__ == "__main__":
    main()
