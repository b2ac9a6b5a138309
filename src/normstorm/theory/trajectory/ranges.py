"""Sure bounds of the samples of a step: stated by the problem, or from constants and what was certified so far."""

from __future__ import annotations

import math
from functools import reduce
from typing import Any, NamedTuple

from .bound import Followed, errors, last_error, last_weight, unit_of
from .instances import TINY, Closure, Instances
from .steps import at_first, first_place, running_sums


class Ranges(NamedTuple):
    """Sure bounds at one step: the radius of a ball that holds a sample gradient at x_t, its distance from grad F(x_t),
    and the distance between the gradients of one sample at x_t and x_{t-1}."""

    spread: Any
    deviation: Any
    change: Any


def from_constants(xp: Any, c: Closure, fixed: Instances, followed: Followed, moved: Any, n: int) -> Ranges:
    """Ranges at the next n steps from their lengths, (n,) or one for all, if no step is above 1/L1.

    Two are known at the first of them. Descent keeps F below a bound, if all steps went along m_s and none was longer
    than 1/L1; and near x_t the gradient is near m_t. From there it grows by no more than the path allows. If L1 and
    sigma1 are 0, none is needed.
    """
    first = at_first(moved)
    path = running_sums(xp, moved) if moved.ndim else first * xp.arange(1, n + 1)
    rate = xp.maximum(followed.rate, first / last_weight(xp, followed))
    wandered = followed.astray + rate * errors(xp, fixed, followed)
    gap = c.gap + c.L0 / 2 * (followed.curve + first * first) + 2 * wandered
    low = c.L1 * gap + xp.sqrt(c.L1 * c.L1 * gap * gap + 2 * c.L0 * gap)
    near = followed.size + last_error(xp, fixed, followed)
    g = xp.minimum(xp.where(low < math.inf, low, math.inf), near + first * (c.L0 + c.L1 * near))
    later = xp.maximum(path - first, 0.0)
    if moved.ndim:
        grows = xp.exp(c.L1 * later)
    else:  # the last one is known, and an exponential lies below its chord
        last = (n - 1) * first
        grows = 1 + later * (xp.expm1(c.L1 * last) / xp.maximum(last, TINY))
    g = g + later * grows * (c.L0 + c.L1 * g)
    up = 1 + fixed.units * unit_of(xp, moved)
    noise = up * (c.sigma0 + xp.where(c.sigma1 > 0, c.sigma1 * g, 0.0))
    change = up * moved * (c.L0 + xp.where(c.L1 > 0, c.L1 * g, 0.0))
    near_enough = moved * c.L1 <= 1
    allowed = xp.arange(n) < first_place(xp, ~near_enough) if moved.ndim else near_enough
    return Ranges(*(xp.where(allowed, bound, math.inf) for bound in (noise, noise, change)))


def from_problem(spread: Any, change: Any) -> Ranges:
    """Ranges at the next step that the problem states."""
    return Ranges(spread, 2 * spread, change)


def of_two_steps(xp: Any, spread: Any, change: Any) -> Ranges:
    """Ranges at steps 1, 2, 3, 4, ... from those that the problem states at x_1, x_3, ..., if all have one length.

    The points before and after such a point are both that near to it; and at the next one a sample's gradient is no
    farther from a ball that held it than it has changed.
    """
    return from_problem(xp.repeat(spread + change, 2), xp.repeat(change, 2))


def smallest(xp: Any, known: list[Ranges]) -> Ranges:
    """Each bound by the smallest of several."""
    return Ranges(*(reduce(xp.minimum, bounds) for bounds in zip(*known, strict=True)))
