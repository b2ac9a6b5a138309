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
range is too large for that, or would raise p_s by more, pays w_s times a sure bound of its error in their place. J
instances (lam, B, p_1) are fixed before the run, and the smallest E_t counts. Statement and proof:
docs/theory/trajectory.md. Formulas take the module `xp` that computes them: numpy, or one with the same names.

Source: Fan, Grama and Liu's exponential inequality for observed squares; Ville's inequality; Hoeffding's lemma.
Departures: psi(x) = -log(1 - x) - x is replaced by x^2/2 + x^3/(3 (1 - x)), which is larger and needs no logarithm; one
event for the linear and the quadratic part, by Hoelder's inequality; the same centre for all pieces of a step.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from .constants import Constants, gradient_bound

CONTRACTION = 0.3002832  # the largest t (1 - t/sqrt(1 + t^2)), rounded up
HYSTERESIS = 1.3  # p follows the observed noise once it is off by more
SURELY = 0.9  # lam w r from which on the squares of a step are not used
FORGETS = 0.01  # the least weight of the last step in the running mean of squares
QUIETER = (1.6, 0.5, 0.15, 0.04)  # instances: the noise is so many times that for which they are made
ROOM = 6.0  # B is so many times the least one for that
FIRST_SHARE = 0.25  # of delta, for the first batch
ROUNDING = 64  # units in the last place by which a bound is raised


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
    """What is fixed before the run: lam, B and p_1 of each instance, lam and p for the first batch, logarithms."""

    lam: Any
    B: Any
    p: Any
    first_lam: Any
    first_p: Any
    log_run: Any
    log_first: Any


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


def instances(first: float, noise: float, alpha: float, steps: int, delta: float, cut: Layout) -> Instances:
    """For samples whose distance from their mean is at most about `noise` (`first` at the start), and weights alpha."""
    J = len(QUIETER)
    log_run, log_first = math.log(J / (delta * (1 - FIRST_SHARE))), math.log(J / (delta * FIRST_SHARE))
    first, noise = max(first, 1e-300), max(noise, 1e-300)
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
    paid, lost   E_t but for its ends, and what rounding took from it (Kahan)
    weight, norms, norms_lost    sums of theta_s and of theta_s ||m_s|| over s < t
    size         ||m_t||
    square       running mean of w_s^2 times the observed squares of a step
    sure         a sure bound of ||m_t - grad F(x_t)||
    curve, rate  the sum of squared steps; the largest step over theta of its step, infinite after a step above 1/L1
    t            steps that were followed
    """

    w: Any
    p: Any
    paid: Any
    lost: Any
    weight: Any
    norms: Any
    norms_lost: Any
    size: Any
    square: Any
    sure: Any
    curve: Any
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
    p = fixed.p + 0 * size
    error = ranges.deviation
    if cut.firsts > 1:
        lam, q, R = fixed.first_lam, fixed.first_p, ranges.spread / cut.firsts
        grown = ranges.deviation / cut.firsts + (1 / (2 * q) + _linear(lam, 1.0, 2 * R)) * squares
        grown = xp.where(2 * lam * R < 1, grown + (1 / lam + R * R / q) * fixed.log_first, math.inf)
        error = xp.minimum(error, xp.min(xp.sqrt(grown * grown + 2 * grown * q)))
    zero = 0 * size
    paid = xp.sqrt(w * w * error * error + p * p)
    return Followed(
        w + zero, p, paid, 0 * p, zero, zero, zero, size, zero, ranges.deviation + zero, zero, zero, zero + 1
    )


def _linear(lam: Any, w: Any, r: Any) -> Any:
    """An upper bound of psi(lam w r)/(lam r^2), if lam w r < 1."""
    x = lam * w * r
    return lam * w * w * (0.5 + x / (3 * (1 - x)))


def contraction(xp: Any, beta: Any) -> Any:
    """C(beta): sqrt(beta^2 u^2 + p^2) <= sqrt(u^2 + p^2) - (1 - beta) u + C(beta) p for all u, p >= 0."""
    return xp.minimum(-CONTRACTION * xp.log(xp.maximum(beta, 1e-30)), 1 - beta)


def from_constants(xp: Any, c: Closure, fixed: Instances, followed: Followed, moved: Any) -> Ranges:
    """Ranges at the next step: descent keeps F, and with it the gradient norm, below a bound.

    It needs steps along m_s whose lengths times L1 are at most 1; else it is infinite from there on.
    """
    rate = xp.maximum(followed.rate, moved / last_weight(xp, followed))
    gap = c.gap + c.L0 / 2 * (followed.curve + moved * moved) + 2 * rate * errors(xp, fixed, followed)
    g = c.L1 * gap + xp.sqrt(c.L1 * c.L1 * gap * gap + 2 * c.L0 * gap)
    noise, change = c.sigma0 + c.sigma1 * g, moved * (c.L0 + c.L1 * g)
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
    w = xp.minimum(1 / a, old.w / xp.maximum(b, 1e-30))
    theta = old.w - b * w
    fresh, pair = a / cut.K, b / cut.k
    # Pieces of the head and of the tail: how far from their mean, radius of the ball, how far from the centre.
    head_off = cut.head * (2 * pair * ranges.change + fresh * ranges.deviation)
    head_R = cut.head * (pair * ranges.change + fresh * ranges.spread)
    head_r = head_off + cut.head * ((pair + fresh) * ranges.change + fresh * old.sure)
    tail_off, tail_R = cut.tail * fresh * ranges.deviation, cut.tail * fresh * ranges.spread
    tail_r = tail_off + cut.tail * fresh * (ranges.change + old.sure)
    price = contraction(xp, b * w / old.w)
    wanted = xp.sqrt(old.square / (2 * xp.maximum(price, 1e-30)))
    keep = (old.square == 0) | ((wanted <= HYSTERESIS * old.p) & (wanted * HYSTERESIS >= old.p))
    B, lam = fixed.B, fixed.lam
    largest, r = w * xp.maximum(head_R, tail_R), xp.maximum(head_r, tail_r)
    off = cut.heads * head_off + cut.tails * tail_off
    followed = xp.where(keep, old.p, wanted)
    needed = largest * largest / B
    surely = (lam * w * r >= SURELY) | (needed - followed > w * off)
    p = xp.maximum(followed, xp.where(surely, 0.0, needed))
    observed = (w * w / (2 * p) + _linear(lam, w, head_r)) * seen.head
    if cut.tails:
        observed = observed + (w * w / (2 * p) + _linear(lam, w, tail_r)) * seen.tail
    cost = price * p + xp.maximum(p - old.p, 0.0) + w * seen.rest + xp.where(surely, w * off, observed)
    paid, lost = _kahan(xp, old.paid, old.lost, cost)
    norms, norms_lost = _kahan(xp, old.norms, old.norms_lost, theta * old.size)
    t = old.t + 1
    share = xp.maximum(1 / old.t, FORGETS)
    return Followed(
        w,
        p,
        paid,
        lost,
        old.weight + theta,
        norms,
        norms_lost,
        seen.size,
        (1 - share) * old.square + share * (w * w * (seen.head + seen.tail)),
        b * old.sure + off + seen.rest,
        old.curve + seen.moved * seen.moved,
        xp.where(seen.moved * L1 <= 1, xp.maximum(old.rate, seen.moved / xp.maximum(theta, 1e-30)), math.inf),
        t,
    )


def _kahan(xp: Any, total: Any, lost: Any, term: Any) -> tuple[Any, Any]:
    term = term - lost
    new = total + term
    return new, xp.where(new < math.inf, (new - total) - term, 0.0)


def errors(xp: Any, fixed: Instances, followed: Followed) -> Any:
    """E_t: the smallest over the instances."""
    share = last_weight(xp, followed) / followed.w
    ends = (1 / fixed.lam + fixed.B) * fixed.log_run
    left = followed.p * xp.sqrt(xp.maximum(1 - share * share, 0.0))
    return xp.min(followed.paid - left + ends)


def average_bound(xp: Any, fixed: Instances, followed: Followed) -> Any:
    """Of the average of ||grad F(x_s)|| over s = 1..t with weights theta_s, rounded up."""
    last = last_weight(xp, followed)
    total = followed.norms + last * followed.size + errors(xp, fixed, followed)
    unit = xp.finfo(xp.asarray(total).dtype).eps
    return total / (followed.weight + last) * (1 + ROUNDING * unit)
