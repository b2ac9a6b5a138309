"""A plan without a horizon: one schedule, and a bound that holds at every t at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from normstorm._shared.validate import refuse, whole

from .constants import Constants
from .plan import Term, round_up, sample_gradients, sorted_terms, term_lines, told
from .planner.solver import natural_units
from .schedules.blocks import Bounds
from .schedules.shrinking import Shrinking

MOST_STEPS = 10**18
MOST_WEIGHTS = 10**6  # each takes some hundred numbers on the way


@dataclass(frozen=True)
class AnytimePlan:
    """A schedule and the bound that was proven for it, at every t, before any gradient is asked.

        eta_t = eta ((1 + shift)/(t + shift))^(2/3),      alpha_{t+1} = alpha ((1 + shift)/(t + shift))^(2/3)

    constants     what the proof assumes
    shortest      the schedule was chosen for runs of `shortest` to `longest` steps; its bound holds for all
    longest
    horizon       the t at which `bound` and `terms` are taken: the longest, or the first that reaches a target
    alpha, eta    weight of the fresh gradient at step 2 and length of step 1
    shift         how many steps pass before both begin to fall
    batch         K, samples at x_t;   sub_batch  k, samples used at both x_t and x_{t-1}
    confidence    probability of the guarantee
    bound         at the horizon; `bound_at(t)` has it at any other t
    terms         the summands of the bound
    free          lam of the proof, fixed here
    """

    constants: Constants
    shortest: int
    longest: int
    horizon: int
    alpha: float
    eta: float
    shift: float
    batch: int
    sub_batch: int
    confidence: float
    free: float
    bound: float
    terms: tuple[Term, ...]

    rule = "anytime"
    certificate = "any_schedule"

    @property
    def sample_gradients(self) -> int:
        """Up to the horizon."""
        return self.cost_at(self.horizon)

    def cost_at(self, t: int) -> int:
        """Sample gradients of t steps: K at the first step, K + k at each later one."""
        return sample_gradients(t, self.batch, self.sub_batch)

    def bound_at(self, t: Any) -> Any:
        """The bound at this t, a number; for several an array, which shares blocks and so differs a little."""
        times = np.asarray(t)
        if times.dtype.kind not in "iu" or times.size == 0 or np.any(times < 1) or np.any(times > MOST_STEPS):
            refuse("bound_at", "t", f"an integer in [1, {MOST_STEPS:.0e}], or several", t)
        found, slope = self._evaluated(times)
        values = found.value[np.searchsorted(found.t, times)] * slope * (1 + 1e-15)
        return float(values) if times.ndim == 0 else values

    def weights(self, t: int) -> np.ndarray:
        """The weights of x_1, ..., x_t in the average that `bound_at(t)` bounds; they add up to 1."""
        t = whole("weights", "t", t, 1, MOST_WEIGHTS)
        scaled, schedule, _ = self._natural()
        weights = schedule.weights(scaled, 1 - self.confidence, t)
        return np.asarray(weights / np.sum(weights))

    def _natural(self) -> tuple[Constants, Shrinking, float]:
        """Constants and schedule in units in which the gap is 1, and the unit of a gradient there."""
        length, value = natural_units(self.constants)
        schedule = Shrinking(self.eta * length, self.alpha, self.shift, self.free / value, self.batch, self.sub_batch)
        return self.constants.scaled(length=length, value=value), schedule, length / value

    def _evaluated(self, times: Any) -> tuple[Bounds, float]:
        scaled, schedule, slope = self._natural()
        return schedule.bounds(scaled, 1 - self.confidence, times), slope

    @property
    def milestones(self) -> tuple[int, ...]:
        """The decades between the shortest and the longest run, these two, and the horizon."""
        decades = [10**e for e in range(19) if self.shortest < 10**e < self.longest]
        return tuple(sorted({self.shortest, *decades, self.longest, self.horizon}))

    @property
    def guarantee(self) -> str:
        """The guarantee in one sentence."""
        weights = "eta_s" if self.constants.is_plain else "A_s of the proof, close to eta_s"
        return (
            f"With probability at least {self.confidence!r}, at every t at once, the average of ||grad F(x_s)|| over "
            f"s = 1..t with weights {weights}, and so the smallest of them, is at most bound_at(t), which is "
            f"{round_up(self.bound)} at t = {self.horizon} (certificate {self.certificate}), if assumptions 1, 2, 3A "
            "and 4A hold with these constants; the last iterate is promised nothing."
        )

    @property
    def notes(self) -> tuple[str, ...]:
        """What a person should know before acting on the plan."""
        start = self.constants.first_gradient
        if self.bound < start:
            return ()
        return (
            f"The bound is not below ||grad F(x1)|| <= {start:.4g}: up to this t nothing better than the starting "
            "point is proven.",
        )

    @property
    def bounds(self) -> dict[int, float]:
        """The bound at every milestone."""
        return {t: self.bound_at(t) for t in self.milestones}

    def explain(self) -> str:
        """The plan in plain text: the schedule, the bound at some t, each term at the horizon."""
        power = f"((1 + s0)/(t + s0))^(2/3), s0 = {self.shift:.6g}"
        lines = [
            self.guarantee,
            "",
            f"eta_t = {self.eta:.6g} r, alpha_(t+1) = {self.alpha:.6g} r, r = {power}; K = {self.batch}, "
            f"k = {self.sub_batch}.",
            *(f"  t = {t:<12} bound {round_up(b, 6)}" for t, b in self.bounds.items()),
            f"At t = {self.horizon} ({self.sample_gradients} sample gradients) it is the sum of",
            *term_lines(self.terms, self.bound),
            *self.notes,
        ]
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON-ready values."""
        return {
            "alpha": self.alpha,
            "eta": self.eta,
            "shift": self.shift,
            "shortest": self.shortest,
            "longest": self.longest,
            "bounds": [{"t": t, "sample_gradients": self.cost_at(t), "bound": b} for t, b in self.bounds.items()],
            **told(self),
        }


def terms_of(found: Bounds, slope: float) -> tuple[Term, ...]:
    """The summands of the last bound."""
    weights = found.weights[-1]
    return sorted_terms({name: float(part[-1] / weights) for name, part in found.parts.items()}, slope)
