"""Normalized STORM.

    draw K samples xi_t;  g_j(x) = mean of grad f(x, xi) over the first j of them
    m_1 = g_K(x_1)
    m_t = beta m_{t-1} + (1 - beta) g_K(x_t) + beta (g_k(x_t) - g_k(x_{t-1}))        for t >= 2
    x_{t+1} = x_t - eta m_t / ||m_t||

Cost: K sample gradients at the first step, K + k at every later one, also when beta = 0.

Assumes: samples smooth with constant L0 + L1 ||grad F|| and noise of size sigma0 + sigma1 ||grad F||, almost surely
(3A, 4A; any K) or in mean square (3B, 4B; K >= 64 sigma1^2).
Rate: the mean of ||grad F(x_t)|| is O((log(T / delta) / T)^{1/3}) with probability 1 - delta, and O(T^{-1/3}) in
expectation; O(T^{-1/2}) in expectation if sigma0 = 0.
Source: Liu, Jagabathula, Zhou, "Near-Optimal Non-Convex Stochastic Optimization under Generalized Smoothness",
Algorithm 1.
Departures: m_t = 0, which the paper leaves undefined, means "stay".
"""

from __future__ import annotations

from typing import Protocol

from normstorm._shared.validate import batch, positive, weight

from .core import Algorithm
from .estimators import Corrected
from .geometries import Normalized
from .schedules import Constant


class Planned(Protocol):
    """What is read of a plan."""

    @property
    def alpha(self) -> float: ...
    @property
    def eta(self) -> float: ...
    @property
    def batch(self) -> int: ...
    @property
    def sub_batch(self) -> int: ...


def normalized_storm(*, alpha: float, eta: float, K: int = 1, k: int | None = None) -> Algorithm:
    """Algorithm 1 of the paper: alpha = 1 - beta in (0, 1], eta > 0, 1 <= k <= K (k = K if not given)."""
    who = "normalized_storm"
    K = batch(who, "K", K)
    k = K if k is None else batch(who, "k", k, at_most=K)
    return Algorithm(Corrected(K, k), Normalized(), Constant(weight(who, alpha), positive(who, "eta", eta)), who)


def from_plan(plan: Planned) -> Algorithm:
    """Normalized STORM with the parameters of a plan."""
    return normalized_storm(alpha=plan.alpha, eta=plan.eta, K=plan.batch, k=plan.sub_batch)
