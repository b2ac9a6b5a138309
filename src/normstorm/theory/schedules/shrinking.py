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
from typing import Any

import numpy as np

from ..constants import Constants
from .blocks import Array, BlockSums, Bounds, Cells

ONE_BY_ONE = 1000
SMALL = 0.25  # below it P_0 and P_1 increase with alpha
MOST_ONE_BY_ONE = 500_000
BLOCK = 0.01
ROUNDS = 40


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

    def _sums(self, constants: Constants, delta: float, cells: Cells, rounds: int = ROUNDS) -> BlockSums:
        with np.errstate(all="ignore"):
            return BlockSums(self, constants, delta, cells, rounds)
