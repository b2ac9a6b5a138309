"""What a plan promises for a point before any gradient is asked: a candidate below the target, and a test of it.

With probability at least 1 - delta the average of ||grad F(x_t)|| over t = 1..T is at most the plan's bound B. Of R
candidates, one uniformly random iterate from each of R slices of 1..T, one is then at most c B,

    c = T/(R floor(T/R)) delta^(-1/R),

but for a probability of delta; n fresh samples at it give a bound of at most eps, but for another delta, if c B <=
kappa eps and

    sqrt(n) (q - kappa) eps >= (sigma0 + sigma1 kappa eps) (1 + sqrt(2 log(1/delta)))
                               + (sigma0 + sigma1 q eps) sqrt(2 log(2/delta_r)).

q = .99: the rest is for rounding. delta_r is what the test of a candidate may spend. Proofs: docs/theory/race.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

from .constants import Constants
from .plan import Plan
from .planner.planner import plan as make_plan

CANDIDATES = 8
AIM, MOST = 0.8, 0.9  # parts of the target that the candidate is planned to have, and may have
TRUSTED = 0.99  # part of the target that a test has to reach
ROUNDS = 6


@dataclass(frozen=True)
class TwoPhase:
    """A plan whose candidates contain a point that passes, and the samples at each of them."""

    plan: Plan
    samples: int
    candidates: int

    @property
    def cost(self) -> int:
        """Sample gradients of the run and of all tests."""
        return self.plan.sample_gradients + self.candidates * self.samples


def candidate_factor(T: int, delta: float) -> float:
    """c: slices of unequal length weigh unequally in the average; floor(T/R) is the shortest."""
    R = min(CANDIDATES, T)
    return T / (R * (T // R)) * math.pow(delta, -1 / R)


def candidate_samples(constants: Constants, target: float, part: float, delta: float, share: float) -> int:
    """n for a candidate with ||grad F|| <= part target, if its test may spend `share`."""
    s0, s1 = constants.sigma0, constants.sigma1
    mean = (s0 + s1 * part * target) * (1 + math.sqrt(2 * math.log(1 / delta)))
    test = (s0 + s1 * TRUSTED * target) * math.sqrt(2 * math.log(2 / share))
    return max(2, math.ceil(((mean + test) / ((TRUSTED - part) * target)) ** 2 * (1 + 1e-9)))


@cache
def two_phase(
    constants: Constants, target: float, confidence: float, share: float, rows: int | None = None
) -> TwoPhase | None:
    """The promise of ||grad F(x)|| <= target; None if no plan gives it.

    share   of the failure probability, for the test of one candidate;   rows   of a finite sum, no more are asked
    """
    delta = 1 - confidence
    part = AIM * target / candidate_factor(CANDIDATES, delta)
    for _ in range(ROUNDS):  # only a run of few steps has another factor than was thought
        try:
            plan = make_plan(constants, target=part, confidence=confidence)
        except ValueError:
            return None
        reached = candidate_factor(plan.horizon, delta) * plan.bound / target
        if reached <= MOST:
            n = candidate_samples(constants, target, reached, delta, share)
            return TwoPhase(plan, n if rows is None else min(n, rows), min(CANDIDATES, plan.horizon))
        part *= AIM / reached
    return None
