"""What is fixed before the run: pieces of a step, instances, the first weight, and constants for ranges."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from normstorm.theory.constants import Constants, gradient_bound

CONTRACTION = 0.3002832  # the largest t (1 - t/sqrt(1 + t^2)), rounded up
QUIETER = (1.6, 0.5, 0.15, 0.04)  # instances: the noise is so many times that for which they are made
SEEN = 0.5  # lam w r of an instance at the start, at most
ROOM = 6.0  # B is so many times the least one for that
FIRST_SHARE = 0.25  # of delta, for the first batch
ROUNDING = 64  # units in the last place by which a bound is raised, and one for every 32 numbers of a sum
BURN, BURN_SHARE = 2.0, 0.02  # w_1 is exp(-BURN) times the settled one, if that takes at most this share of the steps
TINY = 1e-30


class Layout(NamedTuple):
    """How a step's K samples are cut: `heads` pieces of `head` samples each asked at both points (k of them), `tails`
    pieces of `tail` samples asked at x_t only, `firsts` pieces of `first` samples in the first step.

    A piece of the head is made of so many independent samples: `pairs` in its difference, `fresh` in its fresh
    gradient. If the step is one piece, K and k are 1 here, and these two are the step's batches.
    """

    K: int
    k: int
    heads: int
    head: int
    tails: int
    tail: int
    firsts: int
    first: int
    pairs: int = 1
    fresh: int = 1

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
        return WHOLE._replace(firsts=begins[0], first=begins[1], pairs=k, fresh=K)
    return Layout(K, k, k // head, head, (K - k) // tail if tail else 0, tail, *begins, head, head)


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
    first: float,
    noise: float,
    alpha: float,
    steps: int,
    delta: float,
    cut: Layout,
    batch: int = 1,
    numbers: int = 1,
    change: float | None = None,
) -> Instances:
    """For samples whose distance from their mean is at most about `noise` (`first` at the start), weights alpha and a
    `batch` in every step; `numbers` are those of x. A first batch of one piece needs no part of delta. `change` is that
    of a sample's gradient in a step, about, if it is known."""
    J, share = len(QUIETER), FIRST_SHARE if cut.firsts > 1 else 0.0
    log_run, log_first = math.log(J / (delta * (1 - share))), math.log(J / (delta * FIRST_SHARE))
    first, noise = max(first, TINY), max(noise, TINY)
    piece = noise * max(cut.head, cut.tail) / cut.K  # of w R, about
    if change is not None:
        heads = cut.head / cut.K * noise / math.sqrt(cut.fresh) + cut.head / cut.k * change / alpha / math.sqrt(
            cut.pairs
        )
        piece = min(piece, max(heads, math.sqrt(cut.tail) / cut.K * noise))
    quiet, scale = np.array(QUIETER), math.sqrt(2 * CONTRACTION * alpha)
    level, opening = quiet * noise / math.sqrt(batch), quiet * first / math.sqrt(cut.firsts * cut.first)
    lam = math.sqrt(2 * log_run / max(steps - 1, 1)) / level
    if change is not None:  # of w r, about: noise and a sure bound of the error, each at most twice `noise`
        moved = change / alpha
        share = max(cut.head, cut.tail) / cut.K
        far = share * (4 * noise + 2 * moved) + cut.head / cut.k * 3 * moved
        lam = np.minimum(lam, SEEN / far)
    return Instances(
        lam=lam,
        B=ROOM * piece**2 * scale / level,
        p=level / scale,
        first_lam=np.minimum(math.sqrt(2 * log_first) / opening, 0.35 * cut.firsts / first),
        first_p=opening,
        log_run=log_run,
        log_first=log_first,
        units=ROUNDING + numbers * max(cut.heads, cut.tails, cut.firsts) // 32,
    )


def opening_weight(alpha: float, steps: int) -> float:
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
