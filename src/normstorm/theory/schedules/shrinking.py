"""One schedule for all horizons, and its bound at every t up to 10^18.

    eta_t = eta ((1 + s0)/(t + s0))^(2/3),      alpha_{t+1} = alpha ((1 + s0)/(t + s0))^(2/3),      w = eta/alpha

`eta` is the first step, `alpha` the weight of the fresh gradient at step 2, s0 the shift. It is the certificate for any
schedule (docs/theory/any-schedule.md) with constant w, K, k, one lam, and p_1 = P_0(alpha_2).

How 10^7 steps are summed. The first steps are summed one by one: a thousand, and all until alpha_t <= 1/4. After that
P_0 and P_1 fall, and steps are taken together in blocks of a hundredth of their t + s0. On a block every term is a
power of t + s0, whose sum is bounded by an integral (above: the midpoint rule, below: the trapezoidal rule, as it is
convex), times factors that are monotone in alpha, taken at the worse end (docs/theory/any-schedule.md, blocks).

Departures: none; totals are raised and weights lowered as in the follower of this room.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..certificates.case import TOTAL_RAISED, Parts, at_most_one
from ..constants import Constants
from .follow import PER_TERM, first_error, largest_gradient, sure_gradient

Array = npt.NDArray[np.float64]
ONE_BY_ONE = 1000
SMALL = 0.25  # below it P_0 and P_1 increase with alpha
MOST_ONE_BY_ONE = 2_000_000
BLOCK = 0.01
ROUNDS = 40


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


@dataclass(frozen=True)
class Shrinking:
    """The schedule, as numbers; arrays of equal shape are many schedules at once."""

    eta: Any
    alpha: Any
    shift: Any
    lam: Any
    K: Any = 1
    k: Any = 1

    def bounds(self, constants: Constants, delta: float, times: Any) -> Bounds:
        """The bound at these times, in increasing order and each once; one schedule only."""
        wanted = np.unique(np.asarray(times, dtype=float))
        found = self.evaluate(constants, delta, self._cells(wanted))
        at = np.searchsorted(found.t, wanted)
        return Bounds(wanted, found.value[at], found.weights[at], {n: p[at] for n, p in found.parts.items()})

    def weights(self, constants: Constants, delta: float, t: int) -> Array:
        """(A_s)_+ for s = 1..t, by which the average at time t is weighted."""
        steps = np.arange(1.0, t + 1)
        return np.maximum(self._sums(constants, delta, Cells(steps, steps, t)).last_or_closed(), 0.0)

    def _cells(self, times: Array) -> Cells:
        end, shift = times[-1], float(self.shift)
        small = (1 + shift) * (float(self.alpha) / SMALL) ** 1.5 - shift
        single = int(min(end, max(ONE_BY_ONE, np.ceil(small) + 2)))
        if single > MOST_ONE_BY_ONE:
            raise ValueError(
                f"Shrinking: alpha must fall to {SMALL} within {MOST_ONE_BY_ONE} steps; got alpha={self.alpha}, "
                f"shift={self.shift}"
            )
        ends = [np.arange(1.0, single + 1)]
        if end > single:
            count = int(np.ceil(np.log((end + shift) / (single + shift)) / BLOCK)) + 1
            spaced = np.floor(np.geomspace(single + shift, end + shift, count) - shift)
            ends.append(np.unique(np.concatenate([spaced, times])))
        last = np.concatenate([ends[0], *(e[(e > single) & (e <= end)] for e in ends[1:])])
        return Cells(np.concatenate([[1.0], last[:-1] + 1]), last, single)

    def evaluate(self, constants: Constants, delta: float, cells: Cells, rounds: int = ROUNDS) -> Bounds:
        """At the end of every cell; a proof if alpha <= 1/4 in all cells but the single ones."""
        with np.errstate(all="ignore"):
            return self._sums(constants, delta, cells, rounds).bounds()

    def _sums(self, constants: Constants, delta: float, cells: Cells, rounds: int = ROUNDS) -> _Sums:
        with np.errstate(all="ignore"):
            return _Sums(self, constants, delta, cells, rounds)


class _Sums:
    """Everything that is summed, cell by cell; the last axis is time."""

    def __init__(self, schedule: Shrinking, constants: Constants, delta: float, cells: Cells, rounds: int) -> None:
        c = self.constants = constants
        self.cells = cells
        first, last = cells.first, cells.last
        self.single = np.arange(len(last)) < cells.single
        given = (np.asarray(x, dtype=float)[..., None] for x in (schedule.eta, schedule.alpha, schedule.shift))
        eta, alpha, shift = given
        self.lam, K, k = (np.asarray(x, dtype=float)[..., None] for x in (schedule.lam, schedule.K, schedule.k))
        self.w = w = eta / alpha
        scale = (1 + shift) ** (2 / 3)
        a, b = eta * scale, alpha * scale
        later = last > 1  # step 1 has no alpha
        z_in, z_out = np.maximum(first - 1, 1.0) + shift, first + shift
        count = last - first + 1
        in_high, in_low = np.minimum(b * z_in ** (-2 / 3), 1.0), b * (np.maximum(last - 1, 1.0) + shift) ** (-2 / 3)
        in_low = np.minimum(in_low, 1.0)
        out_high, out_low = (np.minimum(b * z ** (-2 / 3), 1.0) for z in (z_out, last + shift))
        noisy = 0.0 if c.is_deterministic else 1.0

        def bracket(L: float, sigma: float, at: Array) -> Array:
            wL = (1 - at) * w * L * noisy
            return np.asarray(wL * wL / k + (2 * wL + sigma) * sigma / K)

        def rho(L: float, sigma: float, at: Array) -> Array:
            """P(at) = w sqrt(at) sqrt(psi) sqrt(bracket)."""
            psi = (1 - at) * (3 - at) / (2 - at)
            return np.asarray(w * np.sqrt(at * psi * bracket(L, sigma, at)))

        zero, one = (c.L0, c.sigma0), (c.L1, c.sigma1)
        # alpha_s^(3/2) and alpha_s^2, for one step and summed over the cell; both vanish at step 1
        half_one, square_one = later * in_high**1.5, later * in_high**2
        half = later * b**1.5 * above_sum(1, z_in, count)
        square = later * b * b * above_sum(4 / 3, z_in, count)
        level0, level1 = (w * np.sqrt(bracket(*x, in_low) / (2 - in_high)) for x in (zero, one))
        doubled = [bracket(2 * L, sigma, in_low) for L, sigma in (zero, one)]
        # rho/sqrt(alpha) falls with alpha
        drift_in, drift_out = (rho(*one, at) / np.sqrt(at) * w for at in (in_low, out_low))
        P0 = rho(*zero, in_low)
        P0_start = rho(*zero, alpha)
        P1_in, P1_out = rho(*one, in_high), rho(*one, out_low)
        P1_start = rho(*one, alpha)
        rise = np.maximum(np.diff(P0, axis=-1, prepend=P0_start), 0.0)

        self.length = b * w * above_sum(2 / 3, z_out, count)
        squares = a * a * above_sum(4 / 3, z_out, count)
        log_term = 0.0 if c.is_deterministic else -np.log(delta)
        opening = first_error(c, w[..., 0], P0_start[..., 0], self.lam, schedule.K)
        added = {
            "gap": c.gap * (first == 1),
            "curvature": c.L0 / 2 * squares,
            "first gradient": 2 * opening * (first == 1),
            "noise": 2 * (level0 * half + rise) + 2 * P0_start * (first == 1),
            "drift": drift_in * half * c.L0 + P1_start * c.first_gradient * (first == 2),
            "confidence": self.lam * w * w * square * doubled[0] + 2 * log_term / self.lam * (first == 1),
        }
        self.sums = {name: np.cumsum(part, axis=-1) for name, part in added.items()}
        self.margin = 1 + TOTAL_RAISED + PER_TERM * np.arange(1, len(last) + 1)
        self.credit = 2 * P0 * _root(out_low) * (1 - TOTAL_RAISED)
        self.least_credit = 2 * P0 * _root(in_high) * (1 - TOTAL_RAISED)
        # Coefficients of the gradients: what is kept, less Q (fixed, and per G), less the price of changes of P_1.
        self.kept = a * below_sum(2 / 3, z_out, count) - c.L1 / 2 * squares
        step_low, step_high = a * (last + shift) ** (-2 / 3), a * z_out ** (-2 / 3)
        self.kept_one = step_low * (1 - c.L1 / 2 * step_high)
        cross, own = 2 * np.sqrt(doubled[0] * doubled[1]), doubled[1]
        weight = self.lam / 2 * w * w
        powers = (half, square), (half_one, square_one)
        self.Q = [(level1 * h + weight * s * cross, weight * s * own) for h, s in powers]
        half_out = b**1.5 * above_sum(1, z_out, count)
        change = later * np.abs(P1_in - P1_out)
        change_one = np.where(self.single, change, P1_in / (3 * z_in))
        self.paid = (drift_out * half_out * c.L1 + change) / 2
        paid_one = (drift_out * out_high**1.5 * c.L1 + change_one) / 2
        self.lost = 10 * PER_TERM * (P1_in + P1_out)
        self.paid_one = np.where(self.single, self.paid, paid_one)
        self.tail = np.where(self.single, P1_in * later * np.maximum(0.5 - _root(out_low), 0.0), self.paid)
        self.count = count
        self.allowed = at_most_one(eta, c.L1) & (alpha <= 1)
        self._close(rounds)

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
        walked = np.cumsum(self.length, axis=-1) * self.margin
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
        one = np.where(self.single, self.kept, self.kept_one)
        return np.asarray(one - 2 * (Q + self.paid_one) - TOTAL_RAISED * (one + 2 * (Q + self.paid_one)) - self.lost)

    def _closed(self, G: Array) -> Array:
        """The sum of A_s over the cell."""
        return self._summed(G, self.paid)

    def _last(self, G: Array) -> Array:
        """The same for a cell that ends the run."""
        return self._summed(G, self.tail)

    def _summed(self, G: Array, paid: Array) -> Array:
        fixed, slope = self.Q[0]
        Q = fixed + _times(slope, G)
        return np.asarray(self.kept - 2 * (Q + paid) - TOTAL_RAISED * (self.kept + 2 * (Q + paid)) - self.lost)

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
