"""Stochastic gradient methods without variance reduction.

    g_t = mean of grad f(x_t, xi) over K samples
    m_1 = g_1,    m_t = beta m_{t-1} + (1 - beta) g_t
    x_{t+1} = x_t - eta m_t / ||m_t||

Source: Cutkosky and Mehta, "Momentum Improves Normalized SGD" (ICML 2020).
Departures: m_1 is the whole first gradient; mini-batches; a zero m_t means "stay".
"""

from __future__ import annotations

from ..checks import batch, positive, weight
from ..core import Algorithm
from ..estimators import Averaged
from ..geometries import Normalized
from ..schedules import Constant


def momentum_nsgd(*, alpha: float, eta: float, K: int = 1) -> Algorithm:
    """Normalised SGD with momentum: alpha = 1 - beta in (0, 1], eta > 0, K samples a step (K sample gradients)."""
    who = "momentum_nsgd"
    K = batch(who, "K", K)
    return Algorithm(Averaged(K), Normalized(), Constant(weight(who, alpha), positive(who, "eta", eta)), who)
