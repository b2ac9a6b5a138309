"""Clipped SGD: a step as long as a gradient, but no longer than some length.

    g_t = mean of grad f(x_t, xi) over K samples;      c / 0 = infinity in a minimum

Cost: K sample gradients at every step.
"""

from __future__ import annotations

from typing import Any

from normstorm._shared.validate import batch, flag, fraction, nonnegative, positive, weight

from .core import Algorithm
from .estimators import Corrected, Momentum
from .geometries import Clipped, Mixed, SoftClipped
from .schedules import Constant


def clipped_sgd(*, eta: float, threshold: float, offset: float = 0.0, K: int = 1) -> Algorithm:
    """Hard clipping: eta > 0, threshold > 0, offset >= 0 (positive in the stochastic theorem), K samples a step.

        x_{t+1} = x_t - min{ eta, eta threshold / (||g_t|| + offset) } g_t

    Assumes: F smooth with constant L0 + L1 ||grad F||, noise bounded almost surely.
    Rate: eps^-4 samples for eps; eps^-2 iterations without noise.
    Source: Zhang, He, Sra and Jadbabaie, "Why gradient clipping accelerates training: a theoretical justification for
    adaptivity" (2020). Its stochastic theorem has an almost sure bound of the noise as offset.
    Departures: eta threshold is one free number there, named here after the clipping threshold; mini-batches.
    """
    who = "clipped_sgd"
    geometry = Clipped(1.0, positive(who, "threshold", threshold), offset=nonnegative(who, "offset", offset))
    return Algorithm(Momentum(batch(who, "K", K)), geometry, Constant(1.0, positive(who, "eta", eta)), who)


def soft_clipped_sgd(*, eta: float, gamma: float, K: int = 1) -> Algorithm:
    """Soft clipping: eta > 0, gamma > 0 the length that no step exceeds, K samples a step.

        x_{t+1} = x_t - eta / (1 + eta ||g_t|| / gamma) g_t

    Assumes: the theorem of mixed clipping is about the hard coefficient, of which the soft one is at least half.
    Rate: none stated for the soft coefficient.
    Source: the code of Zhang, Jin, Fang and Wang, "Improved analysis of clipping algorithms for non-convex
    optimization" (2020), without momentum.
    Departures: mini-batches.
    """
    who = "soft_clipped_sgd"
    eta = positive(who, "eta", eta)
    geometry = SoftClipped(positive(who, "gamma", gamma) / eta)
    return Algorithm(Momentum(batch(who, "K", K)), geometry, Constant(1.0, eta), who)


def mixed_clipping(
    *, alpha: float, eta: float, gamma: float, nu: float = 0.7, soft: bool = False, K: int = 1
) -> Algorithm:
    """Clipping of momentum and of gradient: alpha = 1 - beta, eta, gamma > 0, nu in [0, 1] the part of the momentum.

        m_t = beta m_{t-1} + (1 - beta) g_t,      m_0 = 0
        x_{t+1} = x_t - nu c(m_t) m_t - (1 - nu) c(g_t) g_t
        c(v) = min{ eta, gamma / ||v|| }          soft: c(v) = eta / (1 + eta ||v|| / gamma)

    nu = 0 is clipped SGD, nu = 1 momentum clipping.

    Assumes: F smooth with constant L0 + L1 ||grad F||, noise bounded almost surely.
    Rate: eps^-4 samples for eps, L1 in lower order only; for the hard coefficient.
    Source: Zhang, Jin, Fang and Wang, "Improved analysis of clipping algorithms for non-convex optimization" (2020);
    the soft coefficient and nu = 0.7 are those of their code.
    Departures: m_0 = 0, as in their code, where the paper leaves it to the user; mini-batches.
    """
    who = "mixed_clipping"
    eta = positive(who, "eta", eta)
    threshold = positive(who, "gamma", gamma) / eta
    inner: Any = SoftClipped(threshold) if flag(who, "soft", soft) else Clipped(1.0, threshold)
    geometry = Mixed(inner, fraction(who, "nu", nu))
    return Algorithm(Momentum(batch(who, "K", K), True), geometry, Constant(weight(who, alpha), eta), who)


def clipped_storm(*, alpha: float, eta: float, threshold: float, K: int = 1, k: int | None = None) -> Algorithm:
    """Normalized STORM that settles: alpha = 1 - beta in (0, 1], eta and threshold > 0, 1 <= k <= K (k = K by default).

        m_t = beta m_{t-1} + (1 - beta) g_K(x_t) + beta (g_k(x_t) - g_k(x_{t-1})),      m_1 = g_K(x_1)
        x_{t+1} = x_t - eta m_t / max{ ||m_t||, threshold }

    g_j is the mean over the first j of the K samples. Steps are as long as Normalized STORM's while ||m_t|| is above
    the threshold and shorter below it. `normstorm.theory.clipped_bound` is the number that is guaranteed.

    Cost: K sample gradients at the first step, K + k at every later one.
    Assumes: samples smooth with constant L0 + L1 ||grad F||, noise of size sigma0 + sigma1 ||grad F||, almost surely.
    Rate: with probability 1 - delta, O(T^{-1/3}) + threshold/4 for the mean of ||grad F(x_t)||.
    Source: docs/theory/any-schedule.md of this package.
    Departures: none.
    """
    who = "clipped_storm"
    K = batch(who, "K", K)
    k = K if k is None else batch(who, "k", k, at_most=K)
    geometry = Clipped(1 / positive(who, "threshold", threshold), 1.0)
    return Algorithm(Corrected(K, k), geometry, Constant(weight(who, alpha), positive(who, "eta", eta)), who)
