"""Normalised methods. g_t is the mean gradient over the first b samples of step t; 0 / ||0|| = 0 means "stay"."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .common import Array, Oracle, Path, unit


def normalized_sgd(oracle: Oracle, x1: Array, T: int, *, eta: float, K: int = 1) -> Path:
    """Normalised SGD with K samples a step.

        x_{t+1} = x_t - eta g_t / ||g_t||

    Cost: K T.
    Source: Zhao, Xie and Li, "On the convergence and improvement of stochastic normalized gradient descent" (2021).
    Departures: constant step size and batch.
    """
    path = Path.start(x1)
    for t in range(1, T + 1):
        x = path.x[-1]
        g = oracle.mean(x, oracle.samples(t, K))
        path.step(oracle, g, x - eta * unit(g))
    return path


def nsgd_momentum(oracle: Oracle, x1: Array, T: int, *, eta: float, beta: float, b: int = 1) -> Path:
    """Normalised SGD with momentum.

        m_1 = g_1,      m_t = beta m_{t-1} + (1 - beta) g_t
        x_{t+1} = x_t - eta m_t / ||m_t||

    Cost: b T.
    Source: Cutkosky and Mehta, "Momentum improves normalized SGD" (2020).
    Departures: mini-batches.
    """
    return _averaged(oracle, x1, T, lambda t: 1 - beta, lambda t: eta, b)


def nsgd_agnostic(oracle: Oracle, x1: Array, T: int, *, c: float, b: int = 1) -> Path:
    """Parameter-agnostic normalised SGD with momentum.

        beta_t = 1 - t^{-1/2},      eta_t = c t^{-3/4}
        m_t = beta_t m_{t-1} + (1 - beta_t) g_t          (beta_1 = 0, so m_1 = g_1)
        x_{t+1} = x_t - eta_t m_t / ||m_t||

    Cost: b T.
    Source: Huebler, Yang, Li and He, "Parameter-agnostic optimization under relaxed smoothness" (2024). The two
    exponents are also those of the command in the authors' code.
    Departures: the constant c is free; mini-batches.
    """
    return _averaged(oracle, x1, T, lambda t: t**-0.5, lambda t: c * t**-0.75, b)


def _averaged(
    oracle: Oracle,
    x1: Array,
    T: int,
    weight: Callable[[int], float],
    step: Callable[[int], float],
    b: int,
) -> Path:
    path = Path.start(x1)
    for t in range(1, T + 1):
        x = path.x[-1]
        g = oracle.mean(x, oracle.samples(t, b))
        m = g if t == 1 else (1 - weight(t)) * path.m[-1] + weight(t) * g
        path.step(oracle, m, x - step(t) * unit(m))
    return path


def sngm(oracle: Oracle, x1: Array, T: int, *, eta: float, beta: float, b: int = 1) -> Path:
    """Momentum on gradients that are already normalised.

        m_t = beta m_{t-1} + g_t / ||g_t||,      m_0 = 0
        x_{t+1} = x_t - eta m_t

    Cost: b T.
    Source: Zhao, Xie and Li, "Stochastic normalized gradient descent with momentum for large batch training" (2020).
    Departures: none.
    """
    path, m = Path.start(x1), np.zeros_like(x1, dtype=np.float64)
    for t in range(1, T + 1):
        x = path.x[-1]
        m = beta * m + unit(oracle.mean(x, oracle.samples(t, b)))
        path.step(oracle, m, x - eta * m)
    return path


def nigt(oracle: Oracle, x1: Array, T: int, *, eta: float, beta: float, b: int = 1) -> Path:
    """Normalised SGD with implicit gradient transport: the gradient is asked ahead of x_t.

        m_1 = g(x_1; xi_1)
        y_t = x_t + beta / (1 - beta) (x_t - x_{t-1}),      m_t = beta m_{t-1} + (1 - beta) g(y_t; xi_t)      for t >= 2
        x_{t+1} = x_t - eta m_t / ||m_t||

    Cost: b T, one point a step.
    Source: Cutkosky and Mehta, "Momentum improves normalized SGD" (2020).
    Departures: mini-batches; no layer-wise scaling, which is in their experiments only.
    """
    path = Path.start(x1)
    for t in range(1, T + 1):
        x, batch = path.x[-1], oracle.samples(t, b)
        if t == 1:
            m = oracle.mean(x, batch)
        else:
            y = x + beta / (1 - beta) * (x - path.x[-2])
            m = beta * path.m[-1] + (1 - beta) * oracle.mean(y, batch)
        path.step(oracle, m, x - eta * unit(m))
    return path


def beta_gd(oracle: Oracle, x1: Array, T: int, *, gamma: float, beta: float) -> Path:
    """Gradient descent divided by a power of the gradient norm; beta = 1 is normalised gradient descent.

        x_{t+1} = x_t - gamma grad F(x_t) / ||grad F(x_t)||^beta

    beta lies in [alpha, 1] for alpha-symmetric smoothness.

    Cost: n T, full gradients of a finite sum of n.
    Source: Chen, Zhou, Liang and Lu, "Generalized-smooth nonconvex optimization is as efficient as smooth nonconvex
    optimization" (2023).
    Departures: a zero gradient means "stay".
    """
    path = Path.start(x1)
    for _ in range(T):
        x = path.x[-1]
        g = oracle.full_grad(x)
        size = np.sqrt(np.sum(g * g))
        path.step(oracle, g, x - gamma * g / size**beta if size > 0 else x)
    return path
