"""Sums over single steps and over blocks of steps, for steps that shrink like (t + s0)^(-2/3).

Source: docs/theory/any-schedule.md, blocks.
Departures: none; totals are raised and weights lowered (docs/theory/rounding.md, sums along a run).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from ..certificates.case import TOTAL_RAISED, Parts, at_most_one
from ..constants import Constants
from .follow import PER_TERM, first_error, largest_gradient, sure_gradient

if TYPE_CHECKING:
    from .shrinking import Shrinking

Array = npt.NDArray[np.float64]


class Bounds(NamedTuple):
    """At the end of every cell: t, the bound of the weighted average, the sum of the weights, and the parts' sums."""

    t: Array
    value: Array
    weights: Array
    parts: Parts


class Cells(NamedTuple):
    """Steps first..last of each cell, and how many of the cells hold one step each."""

    first: Array
    last: Array
    single: int


class BlockSums:
    """Everything that is summed, cell by cell; the last axis is time."""

    def __init__(self, schedule: Shrinking, constants: Constants, delta: float, cells: Cells, rounds: int) -> None:
        self.constants, self.cells, self.delta = constants, cells, delta
        first, last = cells.first, cells.last
        self.single, self.count = np.arange(len(last)) < cells.single, last - first + 1
        numbers = (schedule.eta, schedule.alpha, schedule.shift, schedule.lam, schedule.K, schedule.k)
        eta, self.alpha, shift, self.lam, self.K, self.k = (np.asarray(x, dtype=float)[..., None] for x in numbers)
        self.w, scale = eta / self.alpha, (1 + shift) ** (2 / 3)
        self.a, self.b = eta * scale, self.alpha * scale
        self.later = last > 1  # step 1 has no alpha
        # "in": alpha_s of the steps s of a cell; "out": alpha_{s+1} = eta_s/w; high at its first step, low at its last.
        self.z_in, self.z_out, z_last = np.maximum(first - 1, 1.0) + shift, first + shift, last + shift
        self.in_high, self.out_high, self.out_low = (self._weight(z) for z in (self.z_in, self.z_out, z_last))
        self.in_low = self._weight(np.maximum(last - 1, 1.0) + shift)
        # alpha_s^(3/2) and alpha_s^2, summed over the cell and for its first step
        self.half = self.later * self.b**1.5 * above_sum(1, self.z_in, self.count)
        self.square = self.later * self.b**2 * above_sum(4 / 3, self.z_in, self.count)
        self.squares = self.a**2 * above_sum(4 / 3, self.z_out, self.count)
        self.allowed = at_most_one(eta, constants.L1) & (self.alpha <= 1)
        self.zero, self.one = (constants.L0, constants.sigma0), (constants.L1, constants.sigma1)
        self._constant_parts()
        self._coefficients()
        self._close(rounds)

    def _weight(self, z: Array) -> Array:
        return np.asarray(np.minimum(self.b * z ** (-2 / 3), 1.0))

    def _bracket(self, L: float, sigma: float, at: Array) -> Array:
        """(B/alpha)^2, which falls with alpha; without noise there is none."""
        wL = (1 - at) * self.w * (0.0 if self.constants.is_deterministic else L)
        return np.asarray(wL * wL / self.k + (2 * wL + sigma) * sigma / self.K)

    def _steady(self, L: float, sigma: float, at: Array) -> Array:
        """P/sqrt(alpha), which falls with alpha."""
        return np.asarray(self.w * np.sqrt((1 - at) * (3 - at) / (2 - at) * self._bracket(L, sigma, at)))

    def _rho(self, L: float, sigma: float, at: Array) -> Array:
        """P."""
        return np.asarray(np.sqrt(at) * self._steady(L, sigma, at))

    def _constant_parts(self) -> None:
        """What does not refer to the gradients of the run, summed up to the end of every cell."""
        c, w, first = self.constants, self.w, self.cells.first
        self.level = [w * np.sqrt(self._bracket(*x, self.in_low) / (2 - self.in_high)) for x in (self.zero, self.one)]
        self.doubled = [self._bracket(2 * L, sigma, self.in_low) for L, sigma in (self.zero, self.one)]
        P0, P0_start = self._rho(*self.zero, self.in_low), self._rho(*self.zero, self.alpha)
        rise = np.maximum(np.diff(P0, axis=-1, prepend=P0_start), 0.0)
        log_term = 0.0 if c.is_deterministic else -np.log(self.delta)
        opening = first_error(c, w[..., 0], P0_start[..., 0], self.lam, self.K[..., 0])
        drift = self._steady(*self.one, self.in_low) * w * self.half * c.L0
        added = {
            "gap": c.gap * (first == 1),
            "curvature": c.L0 / 2 * self.squares,
            "first gradient": 2 * opening * (first == 1),
            "noise": 2 * (self.level[0] * self.half + rise) + 2 * P0_start * (first == 1),
            "drift": drift + self._rho(*self.one, self.alpha) * c.first_gradient * (first == 2),
            "confidence": self.lam * w * w * self.square * self.doubled[0] + 2 * log_term / self.lam * (first == 1),
        }
        self.sums = {name: np.cumsum(part, axis=-1) for name, part in added.items()}
        self.margin = 1 + TOTAL_RAISED + PER_TERM * np.arange(1, len(first) + 1)
        self.credit = 2 * P0 * _root(self.out_low) * (1 - TOTAL_RAISED)
        self.least_credit = 2 * P0 * _root(self.in_high) * (1 - TOTAL_RAISED)

    def _coefficients(self) -> None:
        """What multiplies the gradients: the step, less Q (fixed, and per G), less the price of changes of P_1."""
        c, z_last = self.constants, self.z_out + self.count - 1
        self.kept = self.a * below_sum(2 / 3, self.z_out, self.count) - c.L1 / 2 * self.squares
        longest, shortest = (self.a * z ** (-2 / 3) for z in (self.z_out, z_last))
        self.kept_one = np.where(self.single, self.kept, shortest * (1 - c.L1 / 2 * longest))
        cross, own = 2 * np.sqrt(self.doubled[0] * self.doubled[1]), self.doubled[1]
        weight, later = self.lam / 2 * self.w**2, self.later
        powers = (self.half, self.square), (later * self.in_high**1.5, later * self.in_high**2)
        self.Q = [(self.level[1] * h + weight * s * cross, weight * s * own) for h, s in powers]
        P1_in, P1_out = self._rho(*self.one, self.in_high), self._rho(*self.one, self.out_low)
        change = later * np.abs(P1_in - P1_out)
        per_half = self._steady(*self.one, self.out_low) * self.w * c.L1
        self.paid = (per_half * self.b**1.5 * above_sum(1, self.z_out, self.count) + change) / 2
        paid_one = (per_half * self.out_high**1.5 + P1_in / (3 * self.z_in)) / 2
        self.paid_one = np.where(self.single, self.paid, paid_one)
        self.tail = np.where(self.single, P1_in * later * np.maximum(0.5 - _root(self.out_low), 0.0), self.paid)
        self.lost = 10 * PER_TERM * (P1_in + P1_out)

    def _close(self, rounds: int) -> None:
        """The smallest bounds of F(x_t) - F* that imply themselves, or else the sure bound of the gradient."""
        sure = self._sure()
        closed = ended = np.zeros(np.broadcast_shapes(self.kept.shape, self.lam.shape))
        for _ in range(rounds):
            self.G = np.minimum(largest_gradient(self.constants, self._gap(closed, ended)), sure)
            again = self._costs(self.G)
            proven = np.all((again[0] <= closed) & (again[1] <= ended), axis=-1, keepdims=True)
            if np.all(proven):
                break
            closed, ended = (cost * (1 + 1e-12) for cost in again)
        else:
            self.G = np.where(proven, self.G, sure)
            ended = self._costs(self.G)[1]
        self.ended = ended

    def _sure(self) -> Array:
        """Of the gradient in a cell: the path before a single step, up to the end of a block."""
        walked = np.cumsum(self.a * above_sum(2 / 3, self.z_out, self.count), axis=-1) * self.margin
        return sure_gradient(self.constants, np.where(self.single, _shifted(walked, 0.0), walked))

    def _gap(self, closed: Array, ended: Array) -> Array:
        """A bound of F(x_s) - F* for all s of the cell: before a single step, the worst of a block."""
        within = self._gross(closed) - self.least_credit
        before = _shifted(self._gross(ended) - self.credit, self.constants.gap)
        return np.where(self.single, before, within)

    def _gross(self, cost: Array) -> Array:
        total: Array = sum(self.sums.values(), start=cost) * self.margin
        return total

    def _costs(self, G: Array) -> tuple[Array, Array]:
        """What negative A_s cost up to the end of each cell: if the run goes on, and if it ends there."""
        closed = np.cumsum(_times(self.count * np.maximum(-self._worst(G), 0.0), G), axis=-1)
        last = _times(np.maximum(-self._last(G), 0.0), G)
        return closed, np.where(self.single, _shifted(closed, 0.0) + last, closed)

    def _worst(self, G: Array) -> Array:
        """The least A_s of the cell."""
        fixed, slope = self.Q[1]
        Q = fixed + _times(slope, G)
        return self._less(self.kept_one, Q + self.paid_one)

    def _closed(self, G: Array) -> Array:
        """The sum of A_s over the cell."""
        return self._summed(G, self.paid)

    def _last(self, G: Array) -> Array:
        """The same for a cell that ends the run."""
        return self._summed(G, self.tail)

    def _summed(self, G: Array, paid: Array) -> Array:
        fixed, slope = self.Q[0]
        Q = fixed + _times(slope, G)
        return self._less(self.kept, Q + paid)

    def _less(self, kept: Array, paid: Array) -> Array:
        """kept - 2 paid, lowered by what rounding may have added."""
        return np.asarray(kept - 2 * paid - TOTAL_RAISED * (kept + 2 * paid) - self.lost)

    def last_or_closed(self) -> Array:
        """A_s for all s, the last with tau."""
        return np.append(self._closed(self.G)[:-1], self._last(self.G)[-1])

    def bounds(self) -> Bounds:
        earlier = _shifted(np.cumsum(np.maximum(self._closed(self.G), 0.0), axis=-1), 0.0)
        weights = (earlier + np.maximum(self._last(self.G), 0.0)) / self.margin
        total = np.maximum(self._gross(self.ended) - self.credit, 0.0)
        value = np.where((weights > 0) & self.allowed, total / weights * (1 + TOTAL_RAISED), np.inf)
        parts = {name: np.broadcast_to(part, total.shape) for name, part in self.sums.items()}
        parts["noise"] = np.maximum(parts["noise"] - self.credit, 0.0)
        parts["growth"] = np.broadcast_to(self.ended, total.shape)
        return Bounds(self.cells.last, np.where(np.isnan(value), np.inf, value), weights, parts)


def above_sum(power: float, low: Array, count: Array) -> Array:
    """At least the sum of z^-power over z = low, ..., low + count - 1: convex, so the midpoint rule; exact for one."""
    start = low - 0.5
    return np.where(count == 1, low**-power, _integral(power, np.where(count == 1, low, start), count))


def below_sum(power: float, low: Array, count: Array) -> Array:
    """At most that sum: the trapezoidal rule."""
    ends = (low**-power + (low + count - 1) ** -power) / 2
    return np.where(count == 1, low**-power, _integral(power, low, count - 1) + ends)


def _integral(power: float, start: Array, length: Array) -> Array:
    """Of z^-power from start to start + length, without cancellation."""
    grown = np.log1p(length / start)
    if power == 1:
        return np.asarray(grown)
    rest = 1 - power
    return np.asarray(start**rest * np.expm1(rest * grown) / rest)


def _shifted(a: Array, first: float) -> Array:
    """Each cell's value at the end of the one before."""
    return np.concatenate([np.full_like(a[..., :1], first), a[..., :-1]], axis=-1)


def _root(r: Array) -> Array:
    return np.sqrt((1 - r) * (1 + r))


def _times(a: Array, G: Array) -> Array:
    """a G, and 0 where a = 0 even if G is infinite."""
    return np.where(a > 0, a * np.where(a > 0, G, 1.0), 0.0)
