"""SPIDER on a finite sum of n rows: exact gradients every q steps, differences of S rows between, steps of length eta.

With L and L' the smoothness in mean square and almost surely at the largest gradient below F(x_1), l = log(2 T/delta),

    r_j = eta (L sqrt(2 l (j - 1)/S) + 2 L' l/(3 S)),   r_1 = 0,

bounds the error of the estimate in step j of an epoch. T steps contain one with ||v_t|| <= eps - r_q, but for a
probability of delta, if T eta (eps - r_q - mean r_j - L eta/2) >= gap; there ||grad F|| <= eps. Best is
eta = eps/(2 k L) with k L eta = r_q + mean r_j + L eta/2, so that T = 4 k L gap/eps^2. Proof: docs/theory/race.md,
variance-reduced descent.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from normstorm._shared.validate import OPEN_UNIT, POSITIVE, number, whole

from .constants import Constants, gradient_bound

ROUNDS = 64
MOST = 1e300
FURTHER = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0)  # periods that are tried, in parts of sqrt(n/2)


@dataclass(frozen=True)
class RestartedPlan:
    """epochs of `period` steps each, S = `batch` rows a difference, steps of length eta; ends where ||v_t|| <= stop."""

    epochs: int
    period: int
    batch: int
    eta: float
    stop: float
    rows: int

    @property
    def horizon(self) -> int:
        return self.epochs * self.period

    @property
    def cost(self) -> int:
        """Sample gradients at most, with the pass that certifies the point."""
        return self.epochs * (self.rows + 2 * self.batch * (self.period - 1)) + self.rows


def restarted_plan(constants: Constants, target: float, delta: float, rows: int) -> RestartedPlan | None:
    """The cheapest that reaches the target with probability at least 1 - delta; None without constants of every row."""
    who = "restarted_plan"
    target, delta = number(who, "target", target, POSITIVE), number(who, "delta", delta, OPEN_UNIT)
    rows = whole(who, "rows", rows)
    if constants.noise == "mean-square":
        return None
    root = math.sqrt(rows / 2)
    periods = {max(1, round(part * root)) for part in FURTHER}
    found = (_planned(constants, target, delta, rows, q, max(1, round(rows / (2 * q)))) for q in sorted(periods))
    return min((one for one in found if one is not None), key=lambda one: one.cost, default=None)


def _planned(c: Constants, eps: float, delta: float, n: int, q: int, S: int) -> RestartedPlan | None:
    smooth = c.in_mean_square
    G = gradient_bound(smooth.L0, smooth.L1, c.gap)
    L, every = smooth.L0 + smooth.L1 * G, c.L0 + c.L1 * G
    if not L > 0 or not L * c.gap / eps**2 < MOST:
        return None
    roots = sum(math.sqrt(j) for j in range(q)) / q  # the mean of sqrt(j - 1)
    epochs = 1
    for _ in range(ROUNDS):
        logarithm = math.log(2 * epochs * q / delta)
        part, jump = math.sqrt(2 * logarithm / S), 2 * every / L * logarithm / (3 * S) if q > 1 else 0.0
        last, mean = part * math.sqrt(q - 1) + jump, part * roots + jump * (q - 1) / q
        k = last + mean + 0.5
        wanted = math.ceil(4 * k * L * c.gap / eps**2 * (1 + 1e-9) / q)
        eta = min(eps / (2 * k * L), 1 / smooth.L1 if smooth.L1 > 0 else math.inf, 1 / c.L1 if c.L1 > 0 else math.inf)
        if eta < eps / (2 * k * L):  # 3A speaks of no longer step
            wanted = math.ceil(c.gap / (eta * (eps - k * L * eta)) * (1 + 1e-9) / q)
        if wanted <= epochs:
            return RestartedPlan(epochs, q, S, eta, eps - last * L * eta, n)
        epochs = wanted
    return None
