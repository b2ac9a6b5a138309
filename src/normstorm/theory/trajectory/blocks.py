"""Following a run: its first step, and then a block of steps at a time."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from normstorm._shared.summation import kahan

from .bound import Followed, unit_of
from .instances import CONTRACTION, TINY, Closure, Instances, Layout
from .ranges import Ranges, from_constants, smallest
from .steps import at_first, first_place, one_step_later, running_maxima, running_sums, totals

HYSTERESIS = 1.3  # p follows the observed noise once it is off by more
FORGETS = 0.01  # the least weight of the last step in the running mean of squares
SURELY = 0.9  # lam w r from which on a step is not observed but pays its range; nearer to 1, rounding would count
STEP_ROUNDING = 4  # units for the few operations of one step
BLOCK = 64  # steps that are followed together, at most, and no more than one in LEAST_BLOCKS of the run
LEAST_BLOCKS = 32
SHORTER = 2  # times shorter, and half as many at most, where ranges come from what was certified before
SHORTEST = 4  # steps of a block that ends where ranges grow
SLACK = 1.15  # ranges in a block may be so many times those of its first step, at least
MOST_SLACK = 2.0  # less where an instance would see nothing
WIDENS, NARROWS = 1.5, 0.99  # what becomes of that after a block whose ranges were outgrown, and after another
GUARD = 1024  # units by which w grows less in every step of a block, more than the rounding of its logarithms


class Observed(NamedTuple):
    """Of each step s >= 2 of a block, (n,): the weight a_s, ||x_s - x_{s-1}||, ||m_s||, sums of O_sj^2 over pieces of
    the head and of the tail, and the length of what is not predictable in m_s (0 if a_s is). All but ||m_s|| may be a
    number that is the same for all of them."""

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
        grown = ranges.deviation / cut.firsts + (1 / (2 * q) + per_square(xp, lam, 2 * lam * R)) * squares
        grown = xp.where(2 * lam * R < SURELY, grown + (1 / lam + R * R / (cut.first * q)) * fixed.log_first, math.inf)
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
        slack=zero + SLACK,
        t=(zero + 1).astype(xp.int32),
    )


def per_square(xp: Any, lam: Any, x: Any) -> Any:
    """An upper bound of psi(x) lam/x^2, if x <= SURELY."""
    x = xp.minimum(x, SURELY)
    return lam * (0.5 + x / (3 * (1 - x)))


def contraction(xp: Any, share: Any) -> Any:
    """C: sqrt(b^2 u^2 + p^2) <= sqrt(u^2 + p^2) - share u + C p for all u, p >= 0 and b = 1 - share in [0, 1]."""
    log = share / (2 - share) * (2 + share * share / (6 * xp.maximum(1 - share, 0.01)))  # of 1/(1 - share), at least
    return xp.minimum(CONTRACTION * log, share)


def growth_of_weights(xp: Any, a: Any, like: Any) -> Any:
    """By how much w may grow until each step of a block, (n,), if all have the weight a; a little less."""
    count = xp.arange(1, like.shape[0] + 1)
    return (1 - GUARD * unit_of(xp, like) * count) * xp.exp(-xp.log1p(-xp.minimum(a, 0.5)) * count)


def weights_of_errors(xp: Any, old: Followed, a: Any, settled: Any, like: Any, grown: Any = None) -> Any:
    """w_s = min(1/a_s, w_{s-1}/(1 - a_s)), but at most twice w_{s-1}, for all steps at once.

    That is the smallest of w_t and of 1/a_j, j <= s, each divided by all 1 - a_i that came since. With `settled` in the
    place of all 1/a_j it is known before the run, if a_s is the same in every step, or w_1 is `settled`; `grown` is
    then `growth_of_weights`, if that was computed before.
    """
    if settled is not None:
        return xp.minimum(settled, old.w * (growth_of_weights(xp, a, like) if grown is None else grown))
    guarded = 1 - GUARD * unit_of(xp, like) * xp.arange(1, like.shape[0] + 1)
    total = running_sums(xp, -xp.log1p(-xp.minimum(a, 0.5)))
    known = -running_maxima(xp, one_step_later(xp, -xp.log(old.w), xp.log(a) + total))
    return xp.minimum(1 / a, guarded * xp.exp(total + known))


def block_length(steps: int, stated: bool = True) -> int:
    """Steps that are followed together in a run of so many, a power of two; fewer, if ranges are not stated."""
    most, blocks = (BLOCK, LEAST_BLOCKS) if stated else (BLOCK // 2, SHORTER * LEAST_BLOCKS)
    return 1 << int(math.log2(min(most, max(1, steps // blocks))))


class Terms(NamedTuple):
    """What the steps of a block are charged by: of each step, (n,), or of each instance, (J,).

    w, theta, price    w_s, theta_{s-1} and C_s
    off, level         a sure bound of the noise of step s, and the error at which it would settle with it
    good               so many steps have the ranges for which the rest is made; the others pay `off`
    p, of_squares      p_s, and what a square costs
    reach, observes    lam hat r, and whether the instance sees squares: if that is less than SURELY
    """

    w: Any
    theta: Any
    price: Any
    off: Any
    level: Any
    good: Any
    p: Any
    of_squares: Any
    reach: Any

    @property
    def observes(self) -> Any:
        return self.reach < SURELY


def block_terms(
    xp: Any,
    fixed: Instances,
    cut: Layout,
    ranges: Ranges,
    old: Followed,
    seen: Observed,
    settled: Any,
    grown: Any = None,
) -> Terms:
    """Of every step from what is known before its samples are: numbers of the block from those of its first step."""
    a, unit = seen.alpha, STEP_ROUNDING * unit_of(xp, seen.size)
    w = weights_of_errors(xp, old, a, settled, seen.size, grown)
    w_prev = one_step_later(xp, old.w, w)
    # w_{s-1} - (1 - a_s) w_s without cancellation, rounded down: a smaller theta is as true.
    theta = xp.maximum(w_prev - w + a * w - unit * (abs(w_prev - w) + a * w), 0.0)
    price = contraction(xp, theta / w_prev)
    fresh, pair = a / cut.K, (1 - a) / cut.k
    # Pieces of the head and of the tail: how far from their mean, root of the samples' squared radii, how far from the
    # centre.
    head_off = cut.head * (2 * pair * ranges.change + fresh * ranges.deviation)
    head_R = cut.head * (pair / math.sqrt(cut.pairs) * ranges.change + fresh / math.sqrt(cut.fresh) * ranges.spread)
    tail_off, tail_R = cut.tail * fresh * ranges.deviation, math.sqrt(cut.tail) * fresh * ranges.spread
    off = cut.heads * head_off + cut.tails * tail_off
    level = off / xp.maximum(a, TINY)
    alone = seen.size.shape[0] == 1  # nothing comes after the first step: it needs no slack
    slack = 1.0 if alone else old.slack
    highest = old.sure if alone else xp.maximum(slack * at_first(level), old.sure)
    sure = (1 + unit) * (highest + (0.0 if seen.rest is None else one_step_later(xp, 0.0, running_sums(xp, seen.rest))))
    head_r = head_off + cut.head * ((pair + fresh) * ranges.change + fresh * sure)
    tail_r = tail_off + cut.tail * fresh * (ranges.change + sure)
    R, r = w * xp.maximum(head_R, tail_R), w * xp.maximum(head_r, tail_r)
    room = slack if settled is None else slack * xp.max(w) / w[0]  # how w grows is then known before the run
    most_R, most_r = room * at_first(R), room * at_first(r)
    good = first_place(xp, ~((most_R >= R) & (most_r >= r) & (alone | (highest >= level))))
    # Where w grows nothing is paid for p, and the weight of a later step counts.
    wanted = xp.sqrt(old.square / (2 * xp.maximum(at_first(price), CONTRACTION * at_first(a))))
    keep = (old.square == 0) | ((wanted <= HYSTERESIS * old.p) & (wanted * HYSTERESIS >= old.p))
    reach = fixed.lam * most_r
    p = xp.maximum(xp.where(keep, old.p, wanted), xp.where(reach < SURELY, (1 + unit) * most_R * most_R / fixed.B, 0.0))
    of_squares = 1 / (2 * p) + per_square(xp, fixed.lam, reach)
    return Terms(w, theta, price, off, level, good, p, of_squares, reach)


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
    grown: Any = None,
    least: int | None = None,
) -> Followed:
    """After the first `count` >= 1 steps of a block; what is given of the others does not matter.

    Ranges come from constants, from the problem, or both. `settled` is the w that is kept once it is reached, if that
    is known before the run, and `grown` the `growth_of_weights` until then, if it was computed before. With `least` the
    block ends before the first step that could not be observed, but not before so many steps: t says where.
    """
    n = seen.size.shape[0]
    known = [] if closure is None else [from_constants(xp, closure, fixed, old, seen.moved, n)]
    known = known if stated is None else [*known, stated]
    terms = block_terms(xp, fixed, cut, smallest(xp, known), old, seen, settled, grown)
    slack = old.slack
    if least is not None:
        slack = next_slack(xp, slack, terms, count)
        count = xp.minimum(count, xp.maximum(terms.good, least))
    a, moved, w, theta, p = seen.alpha, seen.moved, terms.w, terms.theta, terms.p
    rest, steps = 0.0 if seen.rest is None else seen.rest, xp.arange(n)

    def largest(values: Any) -> Any:
        return xp.max(xp.where(steps < count, values, 0.0), 0)

    counts = theta >= a * w / 2
    sums = block_sums(xp, old, seen, terms, counts, steps < count)
    noise = terms.of_squares * sums["seen squares"] + sums["other sides"]
    cost = sums["price"] * p + xp.maximum(p - old.p, 0.0) + sums["w rest"]
    cost = cost + xp.where(terms.observes, noise, sums["sides"])
    cost = xp.where(cost < math.inf, cost, math.inf)  # nor is it a number if a range is none
    paid, paid_lost = _kahan(xp, old.paid, old.lost[0], cost)
    weight, weight_lost = _kahan(xp, old.weight, old.lost[1], sums["theta"])
    norms, norms_lost = _kahan(xp, old.norms, old.lost[2], sums["norms"])
    curve, curve_lost = _kahan(xp, old.curve, old.lost[3], sums["curve"])
    share = xp.minimum(xp.maximum(count / (old.t + count - 1), FORGETS * count), 1.0)
    L1 = 0.0 if closure is None else closure.L1
    rate = xp.maximum(old.rate, largest(xp.where(counts, moved / xp.maximum(theta, TINY), 0.0)))
    farthest = xp.maximum(old.sure, largest(terms.level)) + sums["rest"]
    astray = old.astray + sums["astray"] * farthest
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
        square=(1 - share) * old.square + share * (sums["squares"] / count),
        sure=_left(xp, old.sure, sums["kept"], sums["off"], largest(terms.level + rest / xp.maximum(a, TINY))),
        rate=xp.where(largest(moved) * L1 <= 1, rate, math.inf),
        slack=slack,
        t=(old.t + count).astype(xp.int32),
    )


def next_slack(xp: Any, slack: Any, terms: Terms, count: Any) -> Any:
    """More after a block that its steps' ranges outgrew, as to end one costs time.

    Where one as much wider would have been observed by all instances; the next may not be, and is the last then.
    """
    most = xp.max(terms.reach)
    wider = (terms.good < count) & (WIDENS * most < SURELY)
    narrower = xp.where(most < SURELY, xp.maximum(NARROWS * slack, SLACK), SLACK)
    return xp.where(wider, xp.minimum(WIDENS * slack, MOST_SLACK), narrower)


def block_sums(xp: Any, old: Followed, seen: Observed, terms: Terms, counts: Any, which: Any) -> dict[str, Any]:
    """What is added up over some steps of a block, `which`; `counts` are those that have at least half their weight."""
    w, theta, good = terms.w, terms.theta, xp.arange(seen.size.shape[0]) < terms.good
    squares, sides, rest = w * w * (seen.head + seen.tail), w * terms.off, 0.0 if seen.rest is None else seen.rest
    return totals(
        xp,
        which,
        {
            "squares": squares,
            "seen squares": xp.where(good, squares, 0.0),
            "sides": sides,
            "other sides": xp.where(good, 0.0, sides),
            "price": terms.price,
            "theta": theta,
            "norms": theta * one_step_later(xp, old.size, seen.size),
            "off": terms.off + rest,
            "astray": xp.where(counts, 0.0, seen.moved),
            "curve": seen.moved * seen.moved,
            "kept": xp.log1p(-xp.minimum(seen.alpha, 0.999)),
            "rest": rest,
            "w rest": 0.0 if seen.rest is None else w * rest,
        },
    )


def _left(xp: Any, old: Any, kept: Any, added: Any, level: Any) -> Any:
    """A sure bound of the error after a block, if exp(kept) is left of that before it.

    (1 - a) e + off lies between e and off/a: an error above all of these approaches them. Nor is it above the sum.
    """
    up = 1 + BLOCK * STEP_ROUNDING * unit_of(xp, old)
    return up * xp.minimum(level + xp.exp(kept) * xp.maximum(old - level, 0.0), old + added)


def _kahan(xp: Any, total: Any, lost: Any, term: Any) -> tuple[Any, Any]:
    new, taken = kahan(total, lost, term)
    return new, xp.where(new < math.inf, taken, 0.0)
