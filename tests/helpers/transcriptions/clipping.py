"""Clipped SGD. g_t is the mean gradient over the first b samples of step t, at x_t; c / 0 = infinity in a minimum."""

from __future__ import annotations

import numpy as np

from .common import Array, Oracle, Path, norm, over


def clipped_sgd(
    oracle: Oracle, x1: Array, T: int, *, eta: float, threshold: float, offset: float = 0.0, b: int = 1
) -> Path:
    """Hard clipping at `threshold`; offset > 0 is the form of the stochastic theorem.

        x_{t+1} = x_t - h_t g_t,      h_t = min{ eta, eta threshold / (||g_t|| + offset) }

    Cost: b T.
    Source: Zhang, He, Sra and Jadbabaie, "Why gradient clipping accelerates training: a theoretical justification for
    adaptivity" (2020). Its stochastic theorem has offset = tau, an almost sure bound of the noise.
    Departures: eta threshold is one free number there, named here after the clipping threshold; mini-batches.
    """
    path = Path.start(x1)
    for t in range(1, T + 1):
        x = path.x[-1]
        g = oracle.mean(x, oracle.samples(t, b))
        path.step(oracle, g, x - min(eta, over(eta * threshold, norm(g) + offset)) * g)
    return path


def soft_clipped_sgd(oracle: Oracle, x1: Array, T: int, *, eta: float, gamma: float, b: int = 1) -> Path:
    """Soft clipping: the coefficient bends where the hard one has a corner.

        x_{t+1} = x_t - h_t g_t,      h_t = eta / (1 + eta ||g_t|| / gamma)

    h_t lies between min{eta, gamma / ||g_t||} / 2 and min{eta, gamma / ||g_t||}.

    Cost: b T.
    Source: the code of Zhang, Jin, Fang and Wang, "Improved analysis of clipping algorithms for non-convex
    optimization" (2020), without momentum.
    Departures: mini-batches.
    """
    path = Path.start(x1)
    for t in range(1, T + 1):
        x = path.x[-1]
        g = oracle.mean(x, oracle.samples(t, b))
        path.step(oracle, g, x - eta / (1 + eta * norm(g) / gamma) * g)
    return path


def mixed_clipping(
    oracle: Oracle,
    x1: Array,
    T: int,
    *,
    eta: float,
    gamma: float,
    beta: float,
    nu: float,
    soft: bool = False,
    b: int = 1,
) -> Path:
    """The general framework: nu = 0 clipped SGD, nu = 1 momentum clipping, in between mixed clipping.

        m_t = beta m_{t-1} + (1 - beta) g_t,      m_0 = 0
        x_{t+1} = x_t - nu c(m_t) m_t - (1 - nu) c(g_t) g_t
        c(v) = min{ eta, gamma / ||v|| }          soft: c(v) = eta / (1 + eta ||v|| / gamma)

    Cost: b T.
    Source: Zhang, Jin, Fang and Wang, "Improved analysis of clipping algorithms for non-convex optimization" (2020);
    the soft coefficient is the one of their code.
    Departures: m_0 = 0, as in their code, where the paper leaves it to the user; mini-batches.
    """

    def coefficient(v: Array) -> float:
        return eta / (1 + eta * norm(v) / gamma) if soft else min(eta, over(gamma, norm(v)))

    path, m = Path.start(x1), np.zeros_like(x1, dtype=np.float64)
    for t in range(1, T + 1):
        x = path.x[-1]
        g = oracle.mean(x, oracle.samples(t, b))
        m = beta * m + (1 - beta) * g
        path.step(oracle, m, x - nu * coefficient(m) * m - (1 - nu) * coefficient(g) * g)
    return path
