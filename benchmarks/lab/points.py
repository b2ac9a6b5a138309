"""How many fresh samples the test of a point takes, and whether it is ever wrong more often than it says.

    python -m benchmarks.lab.points [--only sphere|problems|coverage] [--runs n] [--out benchmarks/results/points.json]

sphere     noise uniform on the unit sphere, gradient zero, confidence .99: samples in units of 2 log(1/delta)
           trace/target^2, of which a fixed number needs 1.97 (to leading order, with the best one known in advance)
problems   two problems of the registry at a nearly stationary point, found by steps along the full gradient; beside the
           smallest fixed number that would do, known in advance, with the trace and with the top eigenvalue
coverage   the true norm is just above the target, so that every certification is false: its frequency over delta

Prints all of it, writes it with the date and the kind of machine, and puts tables into docs/theory/fresh-samples.md.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.machine import describe, one_core_in_double
from benchmarks.pages import RESULTS, points_table, publish
from normstorm import Constants, certify
from normstorm.problems import from_loss, get
from normstorm.problems.noise import unit
from normstorm.theory.fresh_samples import Summary, upper_bound
from normstorm.theory.sequential_test import PointTest, SampleRange

DELTA = 0.01
SPHERES = ((10, 0.1, 15), (10, 0.03, 15), (10, 0.01, 15), (1000, 0.1, 5), (1000, 0.03, 5), (1000, 0.01, 5))
PROBLEMS = (("dro-regression", 0.0244, 0.2), ("logistic-nonconvex", 0.02, 1.0))
STEPS, SEEDS = 3000, 41
COVERED = {"delta": 0.1, "target": 0.2, "dimension": 3, "block": 64, "blocks": 40}
Noise = Callable[[np.random.Generator, int, PointTest | None], np.ndarray]


def on_sphere(key: jax.Array, n: int, dim: int) -> jax.Array:
    return unit(jax.random.normal(key, (n, dim)))


def sphere(dim: int, target: float, runs: int) -> dict[str, Any]:
    known = Constants(L0=1, L1=0, sigma0=1 + 1e-12, sigma1=0, gap=1, grad_norm=0, noise="almost-sure")
    problem = from_loss(jnp.dot, partial(on_sphere, dim=dim), start=np.zeros(dim), constants=known)
    found = [certify(problem, np.zeros(dim), 1 - DELTA, 10**7, target=target, seed=s) for s in range(runs)]
    assert all(c.certified for c in found)
    scale = 2 * math.log(1 / DELTA) / target**2
    ratios = [c.samples / scale for c in found]
    methods = sorted({c.method for c in found})
    return {"dimension": dim, "target": target, "runs": runs, "method": ", ".join(methods)} | spread(ratios)


def shipped(name: str, target: float, step: float) -> dict[str, Any]:
    problem = get(name)
    x = jax.lax.fori_loop(0, STEPS, lambda _, z: z - step * problem.full_grad(z), problem.start())
    found = [certify(problem, x, 1 - DELTA, 10**7, target=target, seed=s, exact=False) for s in range(SEEDS)]
    assert all(c.certified for c in found)
    rows = np.asarray(jax.vmap(lambda i: problem.grad(x, i[None]))(jnp.arange(problem.size)))
    covariance = np.cov(rows.T, bias=True)
    trace, top = float(np.trace(covariance)), float(np.linalg.eigvalsh(covariance)[-1])
    known = problem.constants(None, "almost-sure")
    fixed = {what: fewest(trace, v, known.sigma0, known.sigma1, target) for what, v in (("trace", trace), ("top", top))}
    norm = float(jnp.linalg.norm(problem.full_grad(x)))
    exact = certify(problem, x, 1 - DELTA, target=target)
    row = {"problem": name, "target": target, "norm": norm, "runs": SEEDS, "fixed": fixed, "exact": exact.samples}
    return row | spread([c.samples for c in found])


def fewest(trace: float, top: float, sigma0: float, sigma1: float, target: float) -> int:
    """The smallest fixed number whose bound reaches the target, if the mean has the length that noise gives it."""
    low, high = 2, 10**9
    while low < high:
        n = (low + high) // 2
        bound = upper_bound(Summary(n, math.sqrt(trace / n), trace, (), top), sigma0, sigma1, DELTA, "almost-sure")
        low, high = (low, n) if bound <= target else (n + 1, high)
    return low


def spread(values: list[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "least": min(values), "most": max(values)}


def noises(dim: int, norm: float) -> dict[str, Noise]:
    """Noise of length at most 1 and mean zero given the past; the gradient is norm times the first unit vector."""
    first = np.eye(dim)[0]

    def two_point(rng: np.random.Generator, n: int, q: float) -> np.ndarray:
        return np.where(rng.random(n) < q, 1.0, -q / (1 - q))[:, None] * first

    def round_(rng: np.random.Generator, n: int, _: PointTest | None) -> np.ndarray:
        g = rng.normal(size=(n, dim))
        return g / np.linalg.norm(g, axis=1, keepdims=True)

    def skewed(rng: np.random.Generator, n: int, _: PointTest | None) -> np.ndarray:
        along = np.where(rng.random(n) < 0.9, -0.1, 0.9)
        rest = rng.normal(size=(n, dim)) * (1 - first)
        return along[:, None] * first + rest / np.linalg.norm(rest, axis=1, keepdims=True) * np.sqrt(
            1 - along[:, None] ** 2
        )

    def adversarial(rng: np.random.Generator, n: int, test: PointTest | None) -> np.ndarray:
        """Calm with rare jumps while the mean of the past is too long, coins when it is too short."""
        high = test is not None and test.mean_norm > norm
        return two_point(rng, n, 0.03 if high else 0.5)

    return {
        "sphere": round_,
        "sign": lambda rng, n, _: two_point(rng, n, 0.5),
        "rare jumps": lambda rng, n, _: two_point(rng, n, 0.02),
        "skewed": skewed,
        "adversarial": adversarial,
    }


def coverage(runs: int) -> Iterator[dict[str, Any]]:
    dim, target, delta, block = (COVERED[k] for k in ("dimension", "target", "delta", "block"))
    norm = target * (1 + 1e-6)
    for name, noise in noises(dim, norm).items():
        for method in ("top", "pairs"):
            wrong = sum(false_certificate(noise, dim, norm, target, delta, block, method, seed) for seed in range(runs))
            yield {"noise": name, "method": method, "runs": runs, "wrong": wrong, "over_delta": wrong / runs / delta}


def false_certificate(
    noise: Noise, dim: int, norm: float, target: float, delta: float, block: int, method: str, seed: int
) -> bool:
    rng, gradient = np.random.default_rng(seed), norm * np.eye(dim)[0]
    test = PointTest(dim, target, delta, SampleRange(1.0, 0.0), method)
    test.pilot(gradient + noise(rng, block, None))
    for _ in range(COVERED["blocks"]):
        if test.bound <= target:
            return True
        test.add(gradient + noise(rng, block, test))
    return test.bound <= target


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=["sphere", "problems", "coverage"])
    parser.add_argument("--runs", type=int, default=400)
    parser.add_argument("--out", type=Path, default=RESULTS / "points.json")
    given = parser.parse_args()
    one_core_in_double()
    parts: dict[str, Callable[[], Iterator[dict[str, Any]]]] = {
        "sphere": lambda: (sphere(*case) for case in SPHERES),
        "problems": lambda: (shipped(*case) for case in PROBLEMS),
        "coverage": lambda: coverage(given.runs),
    }
    report = json.loads(given.out.read_text(encoding="utf-8")) if given.out.exists() else {}
    report |= {"machine": describe(), "delta": DELTA, "covered": COVERED}
    for name, rows in parts.items():
        if given.only in (None, name):
            report[name] = []
            for row in rows():
                report[name].append(row)
                print(name, row, flush=True)
    report.pop("date", None)
    publish(given.out, report, "theory/fresh-samples.md", "points", points_table(report))


if __name__ == "__main__":
    main()
