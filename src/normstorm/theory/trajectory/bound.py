"""What is known after step t, and what follows from it."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from .instances import Instances


class Followed(NamedTuple):
    """After step t: what the next step and the bound need, numbers and arrays (J,).

    w, p         the weight of one unit of error, and p_t
    paid         E_t but for its ends
    weight       the sum of theta_s over s < t
    norms        the sum of theta_s ||m_s|| over s < t
    curve        the sum of squared steps
    astray       the sum of steps times sure bounds of the error, over steps of little or no weight
    lost         what rounding took from these four (Kahan)
    size         ||m_t||
    square       running mean of w_s^2 times the observed squares of a step
    sure         a sure bound of ||m_t - grad F(x_t)||
    rate         the largest step over theta of its step, of the others; infinite after one above 1/L1, where F may rise
    slack        ranges of the next block may be so many times those of its first step
    t            steps that were followed
    """

    w: Any
    p: Any
    paid: Any
    weight: Any
    norms: Any
    curve: Any
    astray: Any
    lost: Any
    size: Any
    square: Any
    sure: Any
    rate: Any
    slack: Any
    t: Any


def last_weight(xp: Any, followed: Followed) -> Any:
    """theta_t of the last step, which is free in [0, w_t]."""
    return xp.minimum(followed.w, 1.0)


def errors(xp: Any, fixed: Instances, followed: Followed) -> Any:
    """E_t: the smallest over the instances, rounded up."""
    share = last_weight(xp, followed) / followed.w
    ends = (1 / fixed.lam + fixed.B) * fixed.log_run
    left = followed.p * xp.sqrt(xp.maximum(1 - share * share, 0.0))
    rounding = fixed.units * unit_of(xp, followed.size) * (followed.paid + ends)
    return xp.min(xp.where(followed.paid < math.inf, followed.paid - left + ends + rounding, math.inf))


def last_error(xp: Any, fixed: Instances, followed: Followed) -> Any:
    """Of ||m_t - grad F(x_t)||, rounded up: what E_t says with all of w_t on step t, or the sure bound."""
    ends = (1 / fixed.lam + fixed.B) * fixed.log_run
    up = 1 + fixed.units * unit_of(xp, followed.size)
    return xp.minimum(up * xp.min(followed.paid + ends) / followed.w, followed.sure)


def average_bound(xp: Any, fixed: Instances, followed: Followed) -> Any:
    """Of the average of ||grad F(x_s)||, s = 1..t, with weights theta_s, rounded up; infinite if nothing is known."""
    last = last_weight(xp, followed)
    total = followed.norms + last * followed.size + errors(xp, fixed, followed)
    bound = total / (followed.weight + last) * (1 + fixed.units * unit_of(xp, total))
    return xp.where(bound < math.inf, bound, math.inf)


def unit_of(xp: Any, like: Any) -> Any:
    return xp.finfo(xp.asarray(like).dtype).eps
