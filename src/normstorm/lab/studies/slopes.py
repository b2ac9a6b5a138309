"""Rates: the slope of log(average gradient norm) against log T, when each method follows its published rule.

**What is measured.** For each T of a grid, n seeds of its own run T steps with the parameters that the rule gives for
this T; y(T) is the mean over seeds of the average of ||grad F(x_t)|| over all t = 1..T. The slope is that of least
squares through (log T, log y). Its interval comes from drawing seeds anew, with replacement, at each T: it speaks of
the seeds, not of how straight the line is, which the slopes between neighbouring T show.

**The rules**, with the mean-square constants of the problem and nothing tuned:
normalized_storm   the paper's theorem in expectation with the smallest K that it admits and k = K. sigma0 > 0:
                   alpha and eta fall like T^(-2/3), bound T^(-1/3). sigma0 = 0: alpha = 1, eta falls like T^(-1/2),
                   bound T^(-1/2).
momentum_nsgd      Cutkosky and Mehta (2020): alpha = min(1, sqrt(L0 gap)/(sigma0 sqrt T)) and
                   eta = sqrt(gap alpha/(L0 T)), that is T^(-1/2) and T^(-3/4), bound T^(-1/4). Only F has to be
                   smooth here, so L0 is that of Definition 1.

**Why these slopes appear.** Steps have the length eta, so sum_t eta ||grad F(x_t)|| is about the gap while the method
descends: the travel costs gap/(eta T). Afterwards m_t is driven to 0, so ||grad F(x_t)|| stays near the error of m_t:
sqrt(alpha) sigma0 from fresh noise, eta L/sqrt(alpha) from noise that moves with x (normalized_storm) or the lag
eta L/alpha (momentum_nsgd). The rules make all of them fall alike: T^(-1/3) with correction, T^(-1/4) without, and
with sigma0 = 0 only travel and the step itself, eta L, are left, T^(-1/2). The travel's slope is a matter of the
schedule alone, the other part's is not. So the `floor`, the mean over the steps t > T/2, is reported too: from a run
of half the length with the same parameters and seeds, which are the same steps.

**Settings.** FourierNoise moves with x and does not cancel in grad f(x_t, s) - grad f(x_{t-1}, s); at the frequency
here it adds visibly to L0. With sigma0 = 0 the noise has to vanish with the gradient:
CoordinateNoise, which turns the direction too (a random factor in front of the gradient would be normalised away).
Settings that are not judged are here to show where the horizons of the grid are too short for the rate.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from numpy.typing import ArrayLike, NDArray

from normstorm.algorithms.catalogue import momentum_nsgd, normalized_storm
from normstorm.algorithms.core import Algorithm
from normstorm.engine.run import run
from normstorm.problems import synthetic
from normstorm.problems.base import Certified
from normstorm.problems.noise import coordinate, fourier
from normstorm.problems.protocol import Problem
from normstorm.theory.rules import expectation_batch, paper_expectation

HORIZONS = (1_000, 3_162, 10_000, 31_623, 100_000, 316_228, 1_000_000)
SEEDS, LEVEL = 16, 0.95
RESAMPLES, LAST = 2000, 3


@dataclass(frozen=True)
class Law:
    """A rule and what it promises. `parameters(problem, T)` gives alpha, eta and K."""

    name: str
    slope: float
    tolerance: float
    algorithm: Callable[..., Algorithm]
    parameters: Callable[[Any, int], dict[str, Any]]


@dataclass(frozen=True)
class Setting:
    law: Law
    objective: str
    problem: Callable[[], Problem]
    judged: bool = True


def paper_rule(problem: Problem, T: int) -> dict[str, Any]:
    constants = problem.constants(None, "mean-square")
    K = expectation_batch(constants.sigma1)
    alpha, eta = paper_expectation(constants, T, K, K)
    return {"alpha": alpha, "eta": eta, "K": K}


def momentum_rule(problem: Problem, T: int) -> dict[str, Any]:
    assert isinstance(problem, Certified)  # L0 of F alone is known of built-in problems
    c, L0 = problem.constants(None, "mean-square"), problem.objective_smoothness()[0]
    alpha = min(1.0, math.sqrt(L0 * c.gap) / (c.sigma0 * math.sqrt(T)))
    return {"alpha": alpha, "eta": math.sqrt(c.gap * alpha / (L0 * T)), "K": 1}


STORM = Law("normalized_storm", -1 / 3, 0.03, normalized_storm, paper_rule)
MOMENTUM = Law("momentum_nsgd", -1 / 4, 0.03, momentum_nsgd, momentum_rule)
GROWTH = Law("normalized_storm, sigma0 = 0", -1 / 2, 0.05, normalized_storm, paper_rule)


def _settings() -> Iterator[Setting]:
    moving = (fourier(0.5, 20.0),)
    for law in (STORM, MOMENTUM):
        yield Setting(law, "quadratic", lambda: synthetic.quadratic(noise=moving))
        yield Setting(law, "cosh", lambda: synthetic.cosh(noise=moving))
        yield Setting(law, "double-well", lambda: synthetic.double_well(noise=moving))
        yield Setting(law, "exp-quad", lambda: synthetic.exp_quad(noise=moving))
        yield Setting(law, "noisy-valley", lambda: synthetic.noisy_valley(noise=moving), judged=False)
    vanishing = (coordinate(),)
    yield Setting(GROWTH, "quadratic", lambda: synthetic.quadratic(dim=3, noise=vanishing))
    yield Setting(GROWTH, "cosh", lambda: synthetic.cosh(dim=3, noise=vanishing))
    yield Setting(GROWTH, "double-well", lambda: synthetic.double_well(dim=3, noise=vanishing))


SETTINGS = tuple(_settings())


def table(
    settings: Sequence[Setting] = SETTINGS,
    *,
    horizons: Sequence[int] = HORIZONS,
    seeds: int = SEEDS,
    threads: int | None = None,
) -> Iterator[dict[str, Any]]:
    """`measure` for every setting, as they come."""
    for setting in settings:
        yield measure_slope(setting, horizons=horizons, seeds=seeds, threads=threads)


def measure_slope(
    setting: Setting, *, horizons: Sequence[int] = HORIZONS, seeds: int = SEEDS, threads: int | None = None
) -> dict[str, Any]:
    """Slope, interval and everything that they were computed from, for one setting."""
    law, problem, started = setting.law, setting.problem(), time.monotonic()
    given, means, floors = [], np.empty((len(horizons), seeds)), np.empty((len(horizons), seeds))
    for i, T in enumerate(horizons):
        given.append(law.parameters(problem, T))
        own, half = range(i * seeds, (i + 1) * seeds), T // 2
        with jax.enable_x64(True):
            whole, early = (
                run(problem, law.algorithm(**given[-1]), problem.start(), steps, own, threads=threads).mean_grad_norm
                for steps in (T, half)
            )
        means[i], floors[i] = whole, (T * whole - half * early) / (T - half)
    y = means.mean(axis=1)
    low, high = interval(horizons, means)
    return {
        "law": law.name,
        "problem": setting.objective,
        "judged": setting.judged,
        "predicted": law.slope,
        "tolerance": law.tolerance,
        "constants": problem.constants(None, "mean-square").to_dict(),
        "horizons": list(horizons),
        "seeds": seeds,
        "parameters": given,
        "mean": y.tolist(),
        "q10": np.quantile(means, 0.1, axis=1).tolist(),
        "q90": np.quantile(means, 0.9, axis=1).tolist(),
        "floor": floors.mean(axis=1).tolist(),
        "slope": slope(horizons, y),
        "low": low,
        "high": high,
        "local": (np.diff(np.log(y)) / np.diff(np.log(horizons))).tolist(),
        "floor_slope": slope(horizons[-LAST:], floors[-LAST:].mean(axis=1)),
        "seconds": round(time.monotonic() - started, 1),
    }


def slope(horizons: Sequence[int], values: ArrayLike) -> float:
    """Of the least-squares line through (log T, log value)."""
    return float(_weights(horizons) @ np.log(values))


def interval(
    horizons: Sequence[int],
    samples: ArrayLike,
    *,
    level: float = LEVEL,
    resamples: int = RESAMPLES,
    seed: int = 0,
    summary: Callable[[NDArray[np.float64]], NDArray[np.float64]] | None = None,
) -> tuple[float, float]:
    """Percentile bootstrap for the slope of the row means; samples has a row per horizon, a column per seed.

    `summary` takes the place of the mean; it reduces the last axis.
    """
    data, rng = np.asarray(samples, np.float64), np.random.default_rng(seed)
    rows, n = data.shape
    drawn = data[np.arange(rows)[:, None], rng.integers(0, n, (resamples, rows, n))]
    values = drawn.mean(axis=2) if summary is None else summary(drawn)
    found = np.log(values) @ _weights(horizons)
    low, high = np.quantile(found, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def _weights(horizons: Sequence[int]) -> NDArray[np.float64]:
    """The slope is linear in the logarithms of the values; these are its coefficients."""
    x = np.log(np.asarray(horizons, np.float64))
    x = x - x.mean()
    return np.asarray(x / (x @ x))


def is_seen(row: dict[str, Any]) -> bool:
    """Whether the slope and all of its interval lie within the tolerance."""
    return all(abs(row[key] - row["predicted"]) <= row["tolerance"] for key in ("slope", "low", "high"))


def markdown(rows: Sequence[dict[str, Any]]) -> str:
    """The table as a page shows it."""
    columns = (
        *("rule", "objective", "predicted", "slope", "95 % interval", "first and last local slope"),
        *("floor's slope, last three", "floor / mean, longest", "within tolerance"),
    )
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for r in rows:
        share = r["floor"][-1] / r["mean"][-1]
        limits, ends = f"{r['low']:.3f} to {r['high']:.3f}", f"{r['local'][0]:.3f}, {r['local'][-1]:.3f}"
        judged = "" if r["judged"] else " (not judged)"
        promise = f"{r['predicted']:.3f} ± {r['tolerance']:g}"
        figures = promise, f"{r['slope']:.3f}", limits, ends, f"{r['floor_slope']:.3f}", f"{share:.2f}"
        cells = r["law"], r["problem"], *figures, ("yes" if is_seen(r) else "no") + judged
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)
