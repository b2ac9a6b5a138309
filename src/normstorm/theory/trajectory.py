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
Steps are followed a block at a time, which costs a fraction of following each as it comes. Formulas take the module
`xp` that computes them: numpy, or one with the same names.

Source: Fan, Grama and Liu's exponential inequality for observed squares; Ville's inequality; Hoeffding's lemma.
Departures: psi(x) = -log(1 - x) - x is replaced by x^2/2 + x^3/(3 (1 - x)), which is larger and needs no logarithm; one
event for the linear and the quadratic part, by Hoelder's inequality; the same centre for all pieces of a step.
"""

from __future__ import annotations

import math
from functools import reduce
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
BLOCK = 32  # steps that are followed together, at most, and no more than one in LEAST_BLOCKS of the run
LEAST_BLOCKS = 256
SLACK = 1.15  # ranges in a block may be so many times those of its first step
BURN, BURN_SHARE = 3.0, 0.02  # w_1 is exp(-BURN) times the settled one, if that takes at most this share of the steps
GUARD = 1024  # units by which w grows less in every step of a block, more than the rounding of its logarithms
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

    @property
    def is_whole(self) -> bool:
        """Whether a step is one piece, of which nothing but m_t is needed."""
        return self.K == 1


WHOLE = Layout(1, 1, 1, 1, 0, 0, 1, 1)


def layout(K: int, k: int, first_batch: int, steps: int, pieces: int) -> Layout:
    """Pieces as large as possible, if about so many are to be seen in so many steps: at most one step."""

    def size(samples: int) -> int:
        most = max(1, (samples * steps) // pieces)
        return next(b for b in range(min(most, samples), 0, -1) if samples % b == 0) if samples else 0

    head, tail = size(k), size(K - k)
    first = max(1, min(head, first_batch)) if first_batch % head == 0 else 1
    begins = first_batch // first, first
    if steps >= pieces:
        return WHOLE._replace(firsts=begins[0], first=begins[1])
    return Layout(K, k, k // head, head, (K - k) // tail if tail else 0, tail, *begins)


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
    first: float, noise: float, alpha: float, steps: int, delta: float, cut: Layout, batch: int = 1, numbers: int = 1
) -> Instances:
    """For samples whose distance from their mean is at most about `noise` (`first` at the start), weights alpha and a
    `batch` in every step; `numbers` are those of x. A first batch of one piece needs no part of delta."""
    J, share = len(QUIETER), FIRST_SHARE if cut.firsts > 1 else 0.0
    log_run, log_first = math.log(J / (delta * (1 - share))), math.log(J / (delta * FIRST_SHARE))
    first, noise = max(first, TINY), max(noise, TINY)
    piece = noise * max(cut.head, cut.tail) / cut.K  # of w R, about
    quiet, scale = np.array(QUIETER), math.sqrt(2 * CONTRACTION * alpha)
    level, opening = quiet * noise / math.sqrt(batch), quiet * first / math.sqrt(cut.firsts * cut.first)
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


def first_weight(alpha: float, steps: int) -> float:
    """w_1, if all steps have the weight alpha: small enough that the first error counts little.

    While w grows to 1/alpha, steps have no weight in the average.
    """
    return math.exp(-min(BURN, BURN_SHARE * alpha * steps)) / alpha


def steps_to_settle(first_w: float, alpha: float) -> int:
    """Steps of less weight than the others, if all have the weight alpha in the estimate."""
    once = -math.log1p(-min(alpha, 0.5))
    return max(0, math.ceil(-math.log(first_w * alpha) / once - 1e-9))


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
    astray       the sum of steps times sure bounds of the error, over steps of little or no weight
    lost         what rounding took from these four (Kahan)
    size         ||m_t||
    square       running mean of w_s^2 times the observed squares of a step
    sure         a sure bound of ||m_t - grad F(x_t)||
    rate         the largest step over theta of its step, of the others; infinite after one above 1/L1, where F may rise
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
    t: Any


class Observed(NamedTuple):
    """Of each step s >= 2 of a block, (n,): the weight a_s, ||x_s - x_{s-1}||, ||m_s||, sums of O_sj^2 over pieces of
    the head and of the tail, and the length of what is not predictable in m_s (0 if a_s is)."""

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
        grown = ranges.deviation / cut.firsts + (1 / (2 * q) + _per_square(xp, lam, 2 * lam * R)) * squares
        grown = xp.where(2 * lam * R < SURELY, grown + (1 / lam + R * R / q) * fixed.log_first, math.inf)
        error = xp.minimum(error, xp.min(xp.sqrt(grown * grown + 2 * grown * q)))
    return Followed(
        w=w + zero,
        p=p,
        paid=xp.sqrt(w * w * error * error + p * p),
        weight=zero,
        norms=zero,
        curve=zero,
        astray=zero,
        lost=(0 * p, zero, zero, zero),
        size=size,
        square=zero,
        sure=ranges.deviation + zero,
        rate=zero,
        t=zero + 1,
    )


def _per_square(xp: Any, lam: Any, x: Any) -> Any:
    """An upper bound of psi(x) lam/x^2, if x <= SURELY."""
    x = xp.minimum(x, SURELY)
    return lam * (0.5 + x / (3 * (1 - x)))


def contraction(xp: Any, share: Any) -> Any:
    """C: sqrt(b^2 u^2 + p^2) <= sqrt(u^2 + p^2) - share u + C p for all u, p >= 0 and b = 1 - share in [0, 1]."""
    return xp.minimum(-CONTRACTION * xp.log1p(-xp.minimum(share, 0.99)), share)


def from_constants(xp: Any, c: Closure, fixed: Instances, followed: Followed, moved: Any) -> Ranges:
    """Ranges at the next steps, (n,) as their lengths, from bounds of the gradient norm, if no step is above 1/L1.

    Two are known at the first of them. Descent keeps F below a bound, if all steps went along m_s and none was longer
    than 1/L1; and near x_t the gradient is near m_t. From there it grows by no more than the path allows. If L1 and
    sigma1 are 0, none is needed.
    """
    first, path = moved[0], _sums(xp, moved)
    rate = xp.maximum(followed.rate, first / last_weight(xp, followed))
    wandered = followed.astray + rate * errors(xp, fixed, followed)
    gap = c.gap + c.L0 / 2 * (followed.curve + first * first) + 2 * wandered
    low = c.L1 * gap + xp.sqrt(c.L1 * c.L1 * gap * gap + 2 * c.L0 * gap)
    near = followed.size + last_error(xp, fixed, followed)
    g = xp.minimum(xp.where(low < math.inf, low, math.inf), near + first * (c.L0 + c.L1 * near))
    later = xp.maximum(path - first, 0.0)
    g = g + later * xp.exp(c.L1 * later) * (c.L0 + c.L1 * g)
    up = 1 + fixed.units * _unit(xp, moved)
    noise = up * (c.sigma0 + xp.where(c.sigma1 > 0, c.sigma1 * g, 0.0))
    change = up * moved * (c.L0 + xp.where(c.L1 > 0, c.L1 * g, 0.0))
    allowed = xp.arange(moved.shape[0]) < _first(xp, moved * c.L1 > 1)
    return Ranges(*(xp.where(allowed, bound, math.inf) for bound in (noise, noise, change)))


def from_problem(spread: Any, change: Any) -> Ranges:
    """Ranges at the next step that the problem states."""
    return Ranges(spread, 2 * spread, change)


def smallest(xp: Any, known: list[Ranges]) -> Ranges:
    """Each bound by the smallest of several."""
    return Ranges(*(reduce(xp.minimum, bounds) for bounds in zip(*known, strict=True)))


def last_weight(xp: Any, followed: Followed) -> Any:
    """theta_t of the last step, which is free in [0, w_t]."""
    return xp.minimum(followed.w, 1.0)


def _upto(xp: Any, values: Any) -> Any:
    """(n, n): whether step j comes before step s or is it."""
    steps = xp.arange(values.shape[0])
    return steps[None, :] <= steps[:, None]


def _sums(xp: Any, values: Any) -> Any:
    """Running sums. A block is short: of all pairs at once it is quicker than one after the other."""
    return xp.sum(xp.where(_upto(xp, values), values, 0.0), 1)


def _largest(xp: Any, values: Any) -> Any:
    """Running maxima."""
    return xp.max(xp.where(_upto(xp, values), values, -math.inf), 1)


def _after(xp: Any, first: Any, values: Any) -> Any:
    """`first`, and what stands one step earlier."""
    return xp.concatenate([xp.asarray(first)[None], values[:-1]])


def _weights(xp: Any, old: Followed, a: Any, settled: Any, like: Any) -> Any:
    """w_s = min(1/a_s, w_{s-1}/(1 - a_s)), but at most twice w_{s-1}, for all steps at once.

    That is the smallest of w_t and of 1/a_j, j <= s, each divided by all 1 - a_i that came since. With `settled` in the
    place of all 1/a_j it is known before the run, if a_s is the same in every step, or w_1 is `settled`.
    """
    count, once = xp.arange(1, like.shape[0] + 1), -xp.log1p(-xp.minimum(a, 0.5))
    guarded = 1 - GUARD * _unit(xp, like) * count
    if settled is not None:
        return xp.minimum(settled, guarded * old.w * xp.exp(once * count))
    grown = _sums(xp, once)
    known = -_largest(xp, _after(xp, -xp.log(old.w), xp.log(a) + grown))
    return xp.minimum(1 / a, guarded * xp.exp(grown + known))


class Terms(NamedTuple):
    """What the steps of a block are charged by: of each step, (n,), or of each instance, (J,).

    w, theta, price    w_s, theta_{s-1} and C_s
    off, level         a sure bound of the noise of step s, and the error at which it would settle with it
    good               so many steps have the ranges for which the rest is made; the others pay `off`
    p, of_squares      p_s, and what a square costs;   observes   whether the instance sees squares
    """

    w: Any
    theta: Any
    price: Any
    off: Any
    level: Any
    good: Any
    p: Any
    of_squares: Any
    observes: Any


def block_terms(
    xp: Any, fixed: Instances, cut: Layout, ranges: Ranges, old: Followed, seen: Observed, settled: Any
) -> Terms:
    """Of every step from what is known before its samples are: numbers of the block from those of its first step."""
    a, unit = seen.alpha, STEP_ROUNDING * _unit(xp, seen.size)
    w = _weights(xp, old, a, settled, seen.size)
    w_prev = _after(xp, old.w, w)
    # w_{s-1} - (1 - a_s) w_s without cancellation, rounded down: a smaller theta is as true.
    theta = xp.maximum(w_prev - w + a * w - unit * (abs(w_prev - w) + a * w), 0.0)
    price = contraction(xp, theta / w_prev)
    fresh, pair = a / cut.K, (1 - a) / cut.k
    # Pieces of the head and of the tail: how far from their mean, radius of the ball, how far from the centre.
    head_off = cut.head * (2 * pair * ranges.change + fresh * ranges.deviation)
    head_R = cut.head * (pair * ranges.change + fresh * ranges.spread)
    tail_off, tail_R = cut.tail * fresh * ranges.deviation, cut.tail * fresh * ranges.spread
    off = cut.heads * head_off + cut.tails * tail_off
    level = off / xp.maximum(a, TINY)
    alone = seen.moved.shape[0] == 1  # nothing comes after the first step: it needs no slack
    slack = 1.0 if alone else SLACK
    highest = old.sure if alone else xp.maximum(slack * _at_first(level), old.sure)
    sure = (1 + unit) * (highest + (0.0 if seen.rest is None else _after(xp, 0.0, _sums(xp, seen.rest))))
    head_r = head_off + cut.head * ((pair + fresh) * ranges.change + fresh * sure)
    tail_r = tail_off + cut.tail * fresh * (ranges.change + sure)
    R, r = w * xp.maximum(head_R, tail_R), w * xp.maximum(head_r, tail_r)
    room = slack if settled is None else slack * xp.max(w) / w[0]  # how w grows is then known before the run
    most_R, most_r = room * _at_first(R), room * _at_first(r)
    good = _first(xp, ~((most_R >= R) & (most_r >= r) & (alone | (highest >= level))))
    # Where w grows nothing is paid for p, and the weight of a later step counts.
    wanted = xp.sqrt(old.square / (2 * xp.maximum(_at_first(price), CONTRACTION * _at_first(a))))
    keep = (old.square == 0) | ((wanted <= HYSTERESIS * old.p) & (wanted * HYSTERESIS >= old.p))
    observes = fixed.lam * most_r < SURELY
    p = xp.maximum(xp.where(keep, old.p, wanted), xp.where(observes, (1 + unit) * most_R * most_R / fixed.B, 0.0))
    of_squares = 1 / (2 * p) + _per_square(xp, fixed.lam, fixed.lam * most_r)
    return Terms(w, theta, price, off, level, good, p, of_squares, observes)


def follow_block(
    xp: Any,
    fixed: Instances,
    cut: Layout,
    closure: Closure | None,
    stated: Ranges | None,
    old: Followed,
    seen: Observed,
    count: Any,
    settled: Any = None,
) -> Followed:
    """After the first `count` >= 1 steps of a block; what is given of the others does not matter.

    Ranges come from constants, from the problem, or both. `settled` is the w that is kept once it is reached, if that
    is known before the run. Numbers may stand for arrays of equal numbers.
    """
    known = [] if closure is None else [from_constants(xp, closure, fixed, old, seen.moved)]
    known = known if stated is None else [*known, stated]
    terms = block_terms(xp, fixed, cut, smallest(xp, known), old, seen, settled)
    a, moved, w, theta, p = seen.alpha, seen.moved, terms.w, terms.theta, terms.p
    rest, steps = 0.0 if seen.rest is None else seen.rest, xp.arange(moved.shape[0])

    def total(values: Any, upto: Any = count) -> Any:
        return xp.sum(xp.where(steps < upto, values, 0.0), 0)

    def largest(values: Any) -> Any:
        return xp.max(xp.where(steps < count, values, 0.0), 0)

    squares, sides = w * w * (seen.head + seen.tail), w * terms.off
    good = xp.minimum(count, terms.good)
    noise = terms.of_squares * total(squares, good) + total(xp.where(steps < good, 0.0, sides))
    cost = total(terms.price) * p + xp.maximum(p - old.p, 0.0) + total(w * rest)
    cost = cost + xp.where(terms.observes, noise, total(sides))
    cost = xp.where(cost < math.inf, cost, math.inf)  # nor is it a number if a range is none
    paid, paid_lost = _kahan(xp, old.paid, old.lost[0], cost)
    weight, weight_lost = _kahan(xp, old.weight, old.lost[1], total(theta))
    norms, norms_lost = _kahan(xp, old.norms, old.lost[2], total(theta * _after(xp, old.size, seen.size)))
    curve, curve_lost = _kahan(xp, old.curve, old.lost[3], total(moved * moved))
    share = xp.minimum(xp.maximum(count / (old.t + count - 1), FORGETS * count), 1.0)
    L1, kept = 0.0 if closure is None else closure.L1, total(xp.log1p(-xp.minimum(a, 0.999)))
    counts = theta >= a * w / 2
    rate = xp.maximum(old.rate, largest(xp.where(counts, moved / xp.maximum(theta, TINY), 0.0)))
    farthest = xp.maximum(old.sure, largest(terms.level)) + total(rest)
    astray = old.astray + total(xp.where(counts, 0.0, moved)) * farthest
    return Followed(
        w=w[count - 1],
        p=p,
        paid=paid,
        weight=weight,
        norms=norms,
        curve=curve,
        astray=xp.where(astray < math.inf, astray, math.inf),
        lost=(paid_lost, weight_lost, norms_lost, curve_lost),
        size=seen.size[count - 1],
        square=(1 - share) * old.square + share * (total(squares) / count),
        sure=_left(xp, old.sure, kept, total(terms.off + rest), largest(terms.level + rest / xp.maximum(a, TINY))),
        rate=xp.where(largest(moved) * L1 <= 1, rate, math.inf),
        t=old.t + count,
    )


def _left(xp: Any, old: Any, kept: Any, added: Any, level: Any) -> Any:
    """A sure bound of the error after a block, if exp(kept) is left of that before it.

    (1 - a) e + off lies between e and off/a: an error above all of these approaches them. Nor is it above the sum.
    """
    up = 1 + BLOCK * STEP_ROUNDING * _unit(xp, old)
    return up * xp.minimum(level + xp.exp(kept) * xp.maximum(old - level, 0.0), old + added)


def _first(xp: Any, which: Any) -> Any:
    """The place of the first one, or the number of all."""
    return xp.min(xp.where(which, xp.arange(which.shape[0]), which.shape[0]), 0)


def _at_first(values: Any) -> Any:
    return values[0] if values.ndim else values


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
