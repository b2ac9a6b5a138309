"""A certificate that follows the run: the average of ||grad F(x_t)|| along a path, from what was observed on it.

For an estimate m_s = (1 - a_s) (m_{s-1} + difference) + a_s (fresh gradient) with a predictable weight a_s, any steps
and any stopping time: with probability at least 1 - delta, for all t at once,

    sum theta_s ||grad F(x_s)||  <=  sum theta_s ||m_s|| + E_t,        s = 1..t,

where the weights theta_s = w_s - (1 - a_{s+1}) w_{s+1} come from predictable numbers w_s, and E_t bounds the weighted
sum of the errors ||m_s - grad F(x_s)||. It is summed up from observed squares, so quiet noise makes it small:

    E_t = sqrt(w_1^2 E_1^2 + p_1^2) - p_t sqrt(1 - theta_t^2/w_t^2) + (1/lam + B) log(J/delta)
        + sum_{s=2}^t [C_s p_s + (p_s - p_{s-1})_+ + w_s e_s + sum_j (w_s^2/(2 p_s) + psi(lam w_s r)/(lam r^2)) O_sj^2]

O_sj is the distance of a piece of step s (its samples are cut into pieces) from a predictable centre, r and R are sure
bounds of O_sj and of the radius of a ball that holds the piece, lam w_s r < 1 and p_s >= w_s^2 R^2/B. A step whose
range is too large for that pays w_s times a sure bound of its noise in the place of the squares. J instances
(lam, B, p_1) are fixed before the run, and the smallest E_t counts. Statement and proof: docs/theory/trajectory.md.
Formulas take the module `xp` that computes them: numpy, or one with the same names.

Source: Fan, Grama and Liu's exponential inequality for observed squares; Ville's inequality; Hoeffding's lemma.
Departures: psi(x) = -log(1 - x) - x is replaced by x^2/2 + x^3/(3 (1 - x)), which is larger and needs no logarithm; one
event for the linear and the quadratic part, by Hoelder's inequality; the same centre for all pieces of a step.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from normstorm._shared.summation import kahan

from .constants import Constants, gradient_bound

CONTRACTION = 0.3002832  # the largest t (1 - t/sqrt(1 + t^2)), rounded up
HYSTERESIS = 1.3  # p follows the observed noise once it is off by more
FORGETS = 0.01  # the least weight of the last step in the running mean of squares
QUIETER = (1.6, 0.5, 0.15, 0.04)  # instances: the noise is so many times that for which they are made
ROOM = 6.0  # B is so many times the least one for that
FIRST_SHARE = 0.25  # of delta, for the first batch
SURELY = 0.9  # lam w r from which on a step is not observed but pays its range; nearer to 1, rounding would count
ROUNDING = 64  # units in the last place by which a bound is raised, and one for every 32 numbers of a sum
STEP_ROUNDING = 4  # units for the few operations of one step
TINY = 1e-30


class Layout(NamedTuple):
    """How a step's K samples are cut: `heads` pieces of `head` samples each asked at both points (k of them), `tails`
    pieces of `tail` samples asked at x_t only, `firsts` pieces of `first` samples in the first step."""

    K: int
    k: int
    heads: int
    head: int
    tails: int
    tail: int
    firsts: int
    first: int


WHOLE = Layout(1, 1, 1, 1, 0, 0, 1, 1)  # a step is one piece: nothing but m_t is needed


def layout(K: int, k: int, first_batch: int, steps: int, pieces: int) -> Layout:
    """Pieces as large as possible, if about so many are to be seen in so many steps."""

    def size(samples: int) -> int:
        most = max(1, (samples * steps) // pieces)
        return next(b for b in range(min(most, samples), 0, -1) if samples % b == 0) if samples else 0

    head, tail = size(k), size(K - k)
    first = max(1, min(head, first_batch)) if first_batch % head == 0 else 1
    return Layout(K, k, k // head, head, (K - k) // tail if tail else 0, tail, first_batch // first, first)


class Ranges(NamedTuple):
    """Sure bounds at one step: the radius of a ball that holds a sample gradient at x_t, its distance from grad F(x_t),
    and the distance between the gradients of one sample at x_t and x_{t-1}."""

    spread: Any
    deviation: Any
    change: Any


class Instances(NamedTuple):
    """What is fixed before the run: lam, B and p_1 of each instance, lam and p for the first batch, logarithms, and the
    units in the last place by which bounds are raised."""

    lam: Any
    B: Any
    p: Any
    first_lam: Any
    first_p: Any
    log_run: Any
    log_first: Any
    units: Any


class Closure(NamedTuple):
    """Constants in the almost-sure sense, from which ranges follow where steps go along m_s."""

    L0: Any
    L1: Any
    sigma0: Any
    sigma1: Any
    gap: Any
    first_gradient: Any

    @classmethod
    def of(cls, constants: Constants) -> Closure:
        c = constants
        return cls(c.L0, c.L1, c.sigma0, c.sigma1, c.gap, c.first_gradient)


def instances(
    first: float, noise: float, alpha: float, steps: int, delta: float, cut: Layout, numbers: int = 1
) -> Instances:
    """For samples whose distance from their mean is at most about `noise` (`first` at the start), and weights alpha;
    `numbers` are those of x. A first batch of one piece needs no part of delta."""
    J, share = len(QUIETER), FIRST_SHARE if cut.firsts > 1 else 0.0
    log_run, log_first = math.log(J / (delta * (1 - share))), math.log(J / (delta * FIRST_SHARE))
    first, noise = max(first, TINY), max(noise, TINY)
    piece = noise * max(cut.head, cut.tail) / cut.K  # of w R, about
    quiet, scale = np.array(QUIETER), math.sqrt(2 * CONTRACTION * alpha)
    level, opening = quiet * noise / math.sqrt(cut.K), quiet * first / math.sqrt(cut.firsts * cut.first)
    return Instances(
        lam=math.sqrt(2 * log_run / max(steps - 1, 1)) / level,
        B=ROOM * piece**2 * scale / level,
        p=level / scale,
        first_lam=np.minimum(math.sqrt(2 * log_first) / opening, 0.35 * cut.firsts / first),
        first_p=opening,
        log_run=log_run,
        log_first=log_first,
        units=ROUNDING + numbers * max(cut.heads, cut.tails, cut.firsts) // 32,
    )


def noise_levels(closure: Closure | None, spread: float) -> tuple[float, float]:
    """The distances for which instances are made: that at the start, and that at gradients which a closure allows."""
    if closure is None:
        return spread, spread
    far = gradient_bound(closure.L0, closure.L1, 2 * closure.gap)
    levels = (closure.sigma0 + closure.sigma1 * g for g in (closure.first_gradient, far))
    first, later = (min(spread, float(level)) for level in levels)
    return first, later


class Followed(NamedTuple):
    """After step t: what the next step and the bound need, numbers and arrays (J,).

    w, p         the weight of one unit of error, and p_t
    paid         E_t but for its ends
    weight       the sum of theta_s over s < t
    norms        the sum of theta_s ||m_s|| over s < t
    curve        the sum of squared steps
    lost         what rounding took from these four (Kahan)
    size         ||m_t||
    square       running mean of w_s^2 times the observed squares of a step
    sure         a sure bound of ||m_t - grad F(x_t)||
    rate         the largest step over theta of its step, infinite after a step above 1/L1, which ends descent
    t            steps that were followed
    """

    w: Any
    p: Any
    paid: Any
    weight: Any
    norms: Any
    curve: Any
    lost: Any
    size: Any
    square: Any
    sure: Any
    rate: Any
    t: Any


class Observed(NamedTuple):
    """Step s >= 2: the weight a_s, ||x_s - x_{s-1}||, ||m_s||, sums of O_sj^2 over pieces of the head and of the tail,
    and the length of what is not predictable in m_s (0 if a_s is)."""

    alpha: Any
    moved: Any
    size: Any
    head: Any
    tail: Any
    rest: Any


def follow_first_step(
    xp: Any, fixed: Instances, cut: Layout, w: Any, ranges: Ranges, size: Any, squares: Any
) -> Followed:
    """After step 1; `squares` is the sum of squared distances of the pieces of m_1 from the mean of earlier ones.

    The first piece pays its deviation; a single piece is all that there is.
    """
    p, zero = fixed.p + 0 * size, 0 * size
    error = ranges.deviation
    if cut.firsts > 1:
        lam, q, R = fixed.first_lam, fixed.first_p, ranges.spread / cut.firsts
        grown = ranges.deviation / cut.firsts + (1 / (2 * q) + _linear(xp, lam, 1.0, 2 * R)) * squares
        grown = xp.where(2 * lam * R < SURELY, grown + (1 / lam + R * R / q) * fixed.log_first, math.inf)
        error = xp.minimum(error, xp.min(xp.sqrt(grown * grown + 2 * grown * q)))
    return Followed(
        w=w + zero,
        p=p,
        paid=xp.sqrt(w * w * error * error + p * p),
        weight=zero,
        norms=zero,
        curve=zero,
        lost=(0 * p, zero, zero, zero),
        size=size,
        square=zero,
        sure=ranges.deviation + zero,
        rate=zero,
        t=zero + 1,
    )


def _linear(xp: Any, lam: Any, w: Any, r: Any) -> Any:
    """An upper bound of psi(lam w r)/(lam r^2), if lam w r <= SURELY."""
    x = xp.minimum(lam * w * r, SURELY)
    return lam * w * w * (0.5 + x / (3 * (1 - x)))


def contraction(xp: Any, share: Any) -> Any:
    """C: sqrt(b^2 u^2 + p^2) <= sqrt(u^2 + p^2) - share u + C p for all u, p >= 0 and b = 1 - share in [0, 1]."""
    return xp.minimum(-CONTRACTION * xp.log1p(-xp.minimum(share, 0.99)), share)


def from_constants(xp: Any, c: Closure, fixed: Instances, followed: Followed, moved: Any) -> Ranges:
    """Ranges at the next step, from the smaller of two bounds of the gradient norm there, if moved <= 1/L1.

    Descent keeps F below a bound, if all steps went along m_s and none was longer than 1/L1; and near x_t the gradient
    is near m_t. If L1 and sigma1 are 0, neither is needed.
    """
    rate = xp.maximum(followed.rate, moved / last_weight(xp, followed))
    gap = c.gap + c.L0 / 2 * (followed.curve + moved * moved) + 2 * rate * errors(xp, fixed, followed)
    low = c.L1 * gap + xp.sqrt(c.L1 * c.L1 * gap * gap + 2 * c.L0 * gap)
    near = followed.size + last_error(xp, fixed, followed)
    g = xp.minimum(xp.where(low < math.inf, low, math.inf), near + moved * (c.L0 + c.L1 * near))
    up = 1 + fixed.units * _unit(xp, moved)
    noise = up * (c.sigma0 + xp.where(c.sigma1 > 0, c.sigma1 * g, 0.0))
    change = up * moved * (c.L0 + xp.where(c.L1 > 0, c.L1 * g, 0.0))
    allowed = moved * c.L1 <= 1
    return Ranges(*(xp.where(allowed, bound, math.inf) for bound in (noise, noise, change)))


def from_problem(spread: Any, change: Any) -> Ranges:
    """Ranges at the next step that the problem states."""
    return Ranges(spread, 2 * spread, change)


def last_weight(xp: Any, followed: Followed) -> Any:
    """theta_t of the last step, which is free in [0, w_t]."""
    return xp.minimum(followed.w, 1.0)


def follow_step(
    xp: Any, fixed: Instances, cut: Layout, L1: Any, ranges: Ranges, old: Followed, seen: Observed
) -> Followed:
    """After step s = t + 1; L1 matters to ranges from constants alone."""
    a, b = seen.alpha, 1 - seen.alpha
    unit = STEP_ROUNDING * _unit(xp, seen.size)
    w = xp.minimum(1 / a, old.w * (1 - unit) / xp.maximum(b, TINY))
    # w_{s-1} - (1 - a_s) w_s without cancellation, rounded down: a smaller theta is as true.
    fallen = old.w - w
    theta = xp.maximum(fallen + a * w - unit * (abs(fallen) + a * w), 0.0)
    fresh, pair = a / cut.K, b / cut.k
    # Pieces of the head and of the tail: how far from their mean, radius of the ball, how far from the centre.
    head_off = cut.head * (2 * pair * ranges.change + fresh * ranges.deviation)
    head_R = cut.head * (pair * ranges.change + fresh * ranges.spread)
    head_r = head_off + cut.head * ((pair + fresh) * ranges.change + fresh * old.sure)
    tail_off = tail_R = tail_r = 0.0
    if cut.tails:
        tail_off, tail_R = cut.tail * fresh * ranges.deviation, cut.tail * fresh * ranges.spread
        tail_r = tail_off + cut.tail * fresh * (ranges.change + old.sure)
    B, lam, price = fixed.B, fixed.lam, contraction(xp, theta / old.w)
    # Where w grows nothing is paid for p, and the weight of a later step counts.
    wanted = xp.sqrt(old.square / (2 * xp.maximum(price, CONTRACTION * a)))
    keep = (old.square == 0) | ((wanted <= HYSTERESIS * old.p) & (wanted * HYSTERESIS >= old.p))
    largest, r = w * xp.maximum(head_R, tail_R), xp.maximum(head_r, tail_r)
    off = cut.heads * head_off + cut.tails * tail_off
    observes = lam * w * r < SURELY
    p = xp.maximum(xp.where(keep, old.p, wanted), xp.where(observes, (1 + unit) * largest * largest / B, 0.0))
    squares = (w * w / (2 * p) + _linear(xp, lam, w, head_r)) * seen.head
    squares = squares + (w * w / (2 * p) + _linear(xp, lam, w, tail_r)) * seen.tail
    cost = price * p + xp.maximum(p - old.p, 0.0) + w * seen.rest + xp.where(observes, squares, w * off)
    cost = xp.where(cost < math.inf, cost, math.inf)  # nor is it a number if a range is none
    share = xp.maximum(1 / old.t, FORGETS)
    paid, paid_lost = _kahan(xp, old.paid, old.lost[0], cost)
    weight, weight_lost = _kahan(xp, old.weight, old.lost[1], theta)
    norms, norms_lost = _kahan(xp, old.norms, old.lost[2], theta * old.size)
    curve, curve_lost = _kahan(xp, old.curve, old.lost[3], seen.moved * seen.moved)
    return Followed(
        w=w,
        p=p,
        paid=paid,
        weight=weight,
        norms=norms,
        curve=curve,
        lost=(paid_lost, weight_lost, norms_lost, curve_lost),
        size=seen.size,
        square=(1 - share) * old.square + share * (w * w * (seen.head + seen.tail)),
        sure=(1 + unit) * (b * old.sure + off + seen.rest),
        rate=xp.where(seen.moved * L1 <= 1, xp.maximum(old.rate, seen.moved / xp.maximum(theta, TINY)), math.inf),
        t=old.t + 1,
    )


def _unit(xp: Any, like: Any) -> Any:
    return xp.finfo(xp.asarray(like).dtype).eps


def _kahan(xp: Any, total: Any, lost: Any, term: Any) -> tuple[Any, Any]:
    new, taken = kahan(total, lost, term)
    return new, xp.where(new < math.inf, taken, 0.0)


def errors(xp: Any, fixed: Instances, followed: Followed) -> Any:
    """E_t: the smallest over the instances, rounded up."""
    share = last_weight(xp, followed) / followed.w
    ends = (1 / fixed.lam + fixed.B) * fixed.log_run
    left = followed.p * xp.sqrt(xp.maximum(1 - share * share, 0.0))
    rounding = fixed.units * _unit(xp, followed.size) * (followed.paid + ends)
    return xp.min(xp.where(followed.paid < math.inf, followed.paid - left + ends + rounding, math.inf))


def last_error(xp: Any, fixed: Instances, followed: Followed) -> Any:
    """Of ||m_t - grad F(x_t)||, rounded up: what E_t says with all of w_t on step t, or the sure bound."""
    ends = (1 / fixed.lam + fixed.B) * fixed.log_run
    up = 1 + fixed.units * _unit(xp, followed.size)
    return xp.minimum(up * xp.min(followed.paid + ends) / followed.w, followed.sure)


def average_bound(xp: Any, fixed: Instances, followed: Followed) -> Any:
    """Of the average of ||grad F(x_s)||, s = 1..t, with weights theta_s, rounded up; infinite if nothing is known."""
    last = last_weight(xp, followed)
    total = followed.norms + last * followed.size + errors(xp, fixed, followed)
    bound = total / (followed.weight + last) * (1 + fixed.units * _unit(xp, total))
    return xp.where(bound < math.inf, bound, math.inf)
