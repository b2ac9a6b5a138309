"""Hybrid SARAH-SGD beside SGD, SVRG and SPIDER on logistic regression with a non-convex regulariser."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from normstorm.algorithms.core import Algorithm
from normstorm.algorithms.finite_sum import sarah, svrg
from normstorm.algorithms.sgd import sgd
from normstorm.algorithms.storm import hybrid_sarah_sgd
from normstorm.problems import linear
from normstorm.problems.protocol import Problem

from .base import Chart, Claim, Rule, Seen, largest, line, run_from_start

STEPS = tuple(2.0**-e for e in (5, 4, 3, 2, 1, 0, -1))
OWN, RIVALS = "hybrid SARAH-SGD", ("SGD", "SVRG", "SPIDER")
LEVEL = "gradient norm, last quarter"
Maker = Callable[[float], Algorithm]
Vector = NDArray[np.float64]


def _methods(n: int, batch: int, samples: int) -> dict[str, tuple[Maker, int]]:
    """What makes the algorithm from eta, and the steps that the samples pay for."""
    period = max(n // (2 * batch), 1)
    T = max((samples - batch) // (3 * batch), 1)
    first = max(round((T + 1) ** (1 / 3)), 1)
    alpha = 1 / math.sqrt(first * (T + 1))
    return {
        OWN: (
            lambda eta: hybrid_sarah_sgd(alpha=alpha, eta=eta, first_batch=batch * first, K=batch),
            T,
        ),
        "SGD": (lambda eta: sgd(eta=eta, K=batch), samples // batch),
        "SVRG": (lambda eta: svrg(eta=eta, period=period, K=batch), period * samples // (n + 2 * batch * period)),
        "SPIDER": (
            lambda eta: sarah(eta=eta, period=period, K=batch),
            period * samples // (n + 2 * batch * (period - 1)),
        ),
    }


def hybrid(n: int = 5000, dim: int = 20, batch: int = 16, passes: Sequence[int] = (2, 8), seeds: int = 4) -> Seen:
    problem = linear.logistic_nonconvex(n=n, dim=dim, lam=0.01)
    rows, points, figures = [], [], {}
    for share in passes:
        levels = {}
        for name, (make, steps) in _methods(n, batch, share * n).items():
            levels[name], step, costs, norms = _tuned(problem, make, steps, seeds)
            rows.append({"passes": share, "method": name, "best step x L": step, LEVEL: levels[name]})
            if share == passes[-1]:
                points += line(name, costs / n, norms)
        for name in RIVALS:
            figures[f"over_{name}_{share}_passes"] = levels[OWN] / levels[name]
    figures["largest_over_SGD"] = largest(v for k, v in figures.items() if k.startswith("over_SGD"))
    figures["largest_over_best"] = largest(figures.values())
    return Seen(figures, rows, Chart("passes over the data", "gradient norm", points, ("linear", "log")))


def _tuned(problem: Problem, make: Maker, steps: int, seeds: int) -> tuple[float, float, Vector, Vector]:
    """The best step of the grid: its gradient norm over the last quarter, itself, and the run as costs and norms."""
    L, found = problem.constants().L0, []
    for step in STEPS:
        trace = run_from_start(problem, make(step / L), steps, seeds, records=48, average=False)
        costs, norms = trace.record_cost[0].astype(float), np.sqrt(np.mean(trace.grad_norm**2, axis=0))
        level = float(np.sqrt(np.mean(norms[costs >= 0.75 * costs[-1]] ** 2)))
        found.append((level if math.isfinite(level) else math.inf, step, costs, norms))
    return min(found, key=lambda f: f[0])


HYBRID = Claim(
    "hybrid",
    "Published: hybrid SARAH-SGD on logistic regression with a non-convex regulariser",
    "Tran-Dinh, Pham, Phan and Nguyen (2019)",
    "The hybrid estimator, a convex combination of SARAH's and SGD's, is comparable with SGD, SVRG and SPIDER and in "
    "many cases ahead of them.",
    hybrid,
    (
        Rule(
            "tuned, its gradient norm over the last quarter of the run is below that of tuned SGD, after 2 and after "
            "8 passes over the data",
            lambda f: f["largest_over_SGD"] < 1,
            judged=False,
        ),
        Rule(
            "and at most twice that of the best of the others",
            lambda f: f["largest_over_best"] <= 2,
            judged=False,
        ),
    ),
    (
        "Not judged: the source speaks of real data sets, with step sizes and numbers of passes that we do not have, "
        "and names no ordering for a synthetic one. Here 5000 unit rows in 20 dimensions with flipped labels stand in.",
        "All methods have a batch of 16 and a step from the same seven multiples of 1/L, each its own best one. alpha "
        "and the first batch of the hybrid are of the published order with constants of ours. SPIDER has a plain step "
        "here. SVRG and SPIDER ask full gradients, which is what a finite sum of this size allows; after many passes "
        "they converge, while a method with a constant weight on fresh gradients keeps its noise. A pilot "
        "with 16 passes showed the same at a larger distance.",
    ),
)
