"""What is certified along a run, of the average of ||grad F(x_t)||, from what was observed on the way."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import jax
import numpy as np

from normstorm.algorithms.core import Algorithm
from normstorm.algorithms.observers import Trajectory, follow
from normstorm.algorithms.schedules import Constant
from normstorm.algorithms.storm import measured_storm
from normstorm.engine.results import Trace
from normstorm.problems.protocol import Problem
from normstorm.theory.constants import Constants
from normstorm.theory.plan import round_up
from normstorm.theory.trajectory import average_bound, steps_to_settle

Tree = Any
BATCH, SUB_BATCH = 100, 30  # of a run that ends when its certificate reaches a target
USUAL_STEPS = 1000  # for which its instances are made


@dataclass(frozen=True)
class TrajectoryCertificate:
    """The certificate of docs/theory/trajectory.md for one run.

    bound       of the weighted average of ||grad F(x_t)|| over the steps of the first seed; infinite: there is none
    bounds      of every seed's; each holds with this confidence, all of them together with less
    confidence  probability of the guarantee
    ranges      where sure bounds of the samples came from
    weights     of the steps in the average
    steps       that were taken by the first seed
    averages    the true average of every seed with the same weights, of a run that may end at a target; else empty
    reason      why there is no certificate, and what would give one; empty if there is one
    """

    bound: float
    bounds: tuple[float, ...]
    confidence: float
    ranges: str
    weights: str
    steps: int
    reason: str = ""
    averages: tuple[float, ...] = ()

    @property
    def guarantee(self) -> str:
        """The guarantee in one sentence."""
        if self.reason:
            return f"Along the run nothing is certified: {self.reason}."
        return (
            f"With probability at least {self.confidence!r}, the average of ||grad F(x_t)|| over the {self.steps} "
            f"steps of this run, {self.weights}, is at most {round_up(self.bound)}, by what was observed; sure bounds "
            f"of the samples come from {self.ranges}."
        )

    def to_dict(self) -> dict[str, Any]:
        shown = [average if math.isfinite(average) else None for average in self.averages]
        return asdict(self) | {"bounds": list(self.bounds), "averages": shown, "guarantee": self.guarantee}


def watched(
    algorithm: Algorithm,
    problem: Problem,
    x: Tree,
    steps: int,
    confidence: float,
    constants: Constants,
    target: float | None = None,
) -> tuple[Algorithm, str]:
    """The algorithm with its observer, and why it has none."""
    known = constants if constants.noise != "mean-square" else None
    try:
        return follow(algorithm, problem, x, steps=steps, delta=1 - confidence, constants=known, target=target), ""
    except ValueError as error:
        if target is not None:
            raise
        return algorithm, str(error).removeprefix("follow: ")


def until_certified(problem: Problem, x: Tree, constants: Constants) -> Algorithm:
    """Steps for a run that ends when its certificate reaches a target: the same rule for every problem."""
    c = constants
    stated = getattr(problem, "range", None)
    noise = c.sigma0 + c.sigma1 * c.first_gradient
    spread = min(noise, math.inf if stated is None else float(stated(x, 0.0)[0]))
    L = c.L0 + c.L1 * c.first_gradient
    longest = spread / L if spread > 0 else 1 / max(c.L1, c.L0)
    return measured_storm(L0=L, longest=longest, K=BATCH, k=SUB_BATCH)


def certificate_of(algorithm: Algorithm, trace: Trace, confidence: float, reason: str) -> TrajectoryCertificate:
    """What the observer has seen, in a sentence and numbers."""
    taken = np.where(trace.stopped_at > 0, trace.stopped_at, trace.steps)
    watch = getattr(algorithm.observer, "trajectory", algorithm.observer)  # if there is a witness beside it
    if not isinstance(watch, Trajectory):
        none = (math.inf,) * len(taken)
        return TrajectoryCertificate(math.inf, none, confidence, "nothing", "of no weight", int(taken[0]), reason)
    seeds = [jax.tree.map(lambda leaf, i=i: leaf[i], trace.observer.followed) for i in range(len(taken))]
    found = (float(average_bound(np, watch.fixed, seed)) for seed in seeds)
    bounds = tuple(b if math.isfinite(b) else math.inf for b in found)
    origins = {"the constants": watch.closure, "the problem's own method": watch.local, "all rows": watch.exact}
    sources = [name for name, used in origins.items() if used]
    weights = "with weights near 1"
    if isinstance(algorithm.schedule, Constant):
        begins = steps_to_settle(watch.first_w, algorithm.schedule.alpha)
        weights = "all with the same weight" + (f" but the first {begins}, which have less or none" if begins else "")
    kept = getattr(trace.observer, "watched", trace.observer)
    rows = (jax.tree.map(lambda leaf, i=i: leaf[i], kept) for i in range(len(taken)))
    averages = () if watch.target is None else tuple(map(watch.average, rows))
    along = " and ".join(sources)
    return TrajectoryCertificate(bounds[0], bounds, confidence, along, weights, int(taken[0]), averages=averages)
