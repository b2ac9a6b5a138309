"""Sign methods. g_t is the mean gradient over the first b samples of step t; in a quotient 0 / 0 = 0."""

from __future__ import annotations

import numpy as np

from .common import Array, Oracle, Path, ratio


def generalized_signsgd(
    oracle: Oracle, x1: Array, T: int, *, eta: float, b1: float, b2: float, eps: float = 0.0, b: int = 1
) -> Path:
    """Generalised SignSGD: the second moment is that of m_t, not of g_t.

        m_t = b1 m_{t-1} + (1 - b1) g_t,      v_t = b2 v_{t-1} + (1 - b2) m_t^2,      m_0 = v_0 = 0
        x_{t+1} = x_t - eta m_t / (sqrt(v_t) + eps)        coordinate by coordinate

    b2 = 0, eps = 0 is sign momentum. There is no bias correction: the first quotient is sign(m_1) / sqrt(1 - b2).

    Cost: b T.
    Source: Crawshaw, Liu, Orabona, Zhang and Zhuang, "Robustness to unbounded smoothness of generalized SignSGD"
    (2022). eps = 0 there and 1e-8 in their code.
    Departures: mini-batches; a coordinate with v = 0 stays.
    """
    path, zero = Path.start(x1), np.zeros_like(x1, dtype=np.float64)
    m, v = zero, zero
    for t in range(1, T + 1):
        x = path.x[-1]
        m = b1 * m + (1 - b1) * oracle.mean(x, oracle.samples(t, b))
        v = b2 * v + (1 - b2) * m * m
        path.step(oracle, m, x - eta * ratio(m, np.sqrt(v) + eps))
    return path


def ssvr(
    oracle: Oracle, x1: Array, T: int, *, eta: float, alpha: float, b: int = 1, b_first: int | None = None
) -> Path:
    """Sign-based stochastic variance reduction: the sign of the STORM estimate.

        m_1 = mean gradient over the big batch of b_first samples (over b ordinary ones if not given)
        m_t = g(x_t; xi_t) + (1 - alpha) (m_{t-1} - g(x_{t-1}; xi_t))        for t >= 2, alpha their beta
        x_{t+1} = x_t - eta sign(m_t),      sign(0) = 0

    Cost: b_first + 2 b (T - 1).
    Source: Jiang, Yang, Yang and Zhang, "Efficient sign-based optimization: accelerating convergence via variance
    reduction" (2024).
    Departures: constant parameters; mini-batches.
    """
    path = Path.start(x1)
    for t in range(1, T + 1):
        x = path.x[-1]
        m = _storm(oracle, path, t, alpha, b, b_first)
        path.step(oracle, m, x - eta * np.sign(m))
    return path


def generalized_signstorm(
    oracle: Oracle, x1: Array, T: int, *, eta: float, alpha: float, b2: float, eps: float = 0.0, b: int = 1
) -> Path:
    """Generalised SignSGD with the STORM estimate in the place of the average.

        m_1 = g_1,      m_t = g(x_t; xi_t) + (1 - alpha) (m_{t-1} - g(x_{t-1}; xi_t))
        v_t = b2 v_{t-1} + (1 - b2) m_t^2,      v_0 = 0
        x_{t+1} = x_t - eta m_t / (sqrt(v_t) + eps)        coordinate by coordinate

    b2 = 0, eps = 0 is the sign of the STORM estimate.

    Cost: b + 2 b (T - 1).
    Source: ours: the estimate of Cutkosky and Orabona (2019) in the step of Crawshaw et al. (2022).
    Departures: not published, no guarantee known.
    """
    path, v = Path.start(x1), np.zeros_like(x1, dtype=np.float64)
    for t in range(1, T + 1):
        x = path.x[-1]
        m = _storm(oracle, path, t, alpha, b, None)
        v = b2 * v + (1 - b2) * m * m
        path.step(oracle, m, x - eta * ratio(m, np.sqrt(v) + eps))
    return path


def _storm(oracle: Oracle, path: Path, t: int, alpha: float, b: int, b_first: int | None) -> Array:
    x = path.x[-1]
    if t == 1:
        return oracle.mean(x, oracle.samples(1, b) if b_first is None else oracle.large(1, b_first))
    batch = oracle.samples(t, b)
    return oracle.mean(x, batch) + (1 - alpha) * (path.m[-1] - oracle.mean(path.x[-2], batch))
