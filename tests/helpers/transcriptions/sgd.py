"""SGD, averages of it, and SGD with momentum. g_t is the mean gradient over the first b samples of step t, at x_t."""

from __future__ import annotations

import numpy as np

from .common import Array, Oracle, Path


def sgd(oracle: Oracle, x1: Array, T: int, *, eta: float, b: int = 1) -> Path:
    """Stochastic gradient descent.

        x_{t+1} = x_t - eta g_t

    Cost: b T.
    Source: Robbins and Monro, "A stochastic approximation method" (1951); for non-convex F, Ghadimi and Lan,
    "Stochastic first- and zeroth-order methods for nonconvex stochastic programming" (2013).
    Departures: a constant step size; mini-batches.
    """
    path = Path.start(x1)
    for t in range(1, T + 1):
        x = path.x[-1]
        g = oracle.mean(x, oracle.samples(t, b))
        path.step(oracle, g, x - eta * g)
    return path


def averaged_sgd(oracle: Oracle, x1: Array, T: int, *, eta: float, ema: float | None = None, b: int = 1) -> Path:
    """SGD whose answer at step t is an average of x_1 .. x_t, here every time from all of them.

        mean:    (x_1 + ... + x_t) / t
        ema:     ema^{t-1} x_1 + (1 - ema) sum over 2 <= i <= t of ema^{t-i} x_i

    Cost: b T.
    Source: Polyak and Juditsky, "Acceleration of stochastic approximation by averaging" (1992); Ruppert (1988).
    Departures: a constant step size; mini-batches; the exponential average is in neither.
    """
    path = sgd(oracle, x1, T, eta=eta, b=b)
    path.averages = []
    for t in range(1, T + 2):
        weights = np.full(t, 1 / t)
        if ema is not None:
            weights = (1 - ema) * ema ** np.arange(t - 1.0, -1.0, -1.0)
            weights[0] = ema ** (t - 1.0)
        path.averages.append(np.tensordot(weights, np.array(path.x[:t]), axes=1))
    return path


def schedule_free_sgd(oracle: Oracle, x1: Array, T: int, *, eta: float, beta: float, b: int = 1) -> Path:
    """Schedule-free SGD; gradients are asked at y, the answer is x.

        y_t = (1 - beta) z_t + beta x_t
        z_{t+1} = z_t - eta g(y_t; xi_t)
        x_{t+1} = (1 - c_{t+1}) x_t + c_{t+1} z_{t+1},      c_{t+1} = 1 / (t + 1),      z_1 = x_1

    Cost: b T.
    Source: Defazio, Yang, Mehta, Mishchenko, Khaled and Cutkosky, "The road less scheduled" (2024).
    Departures: mini-batches.
    """
    path = Path.start(x1)
    x = z = y = path.x[0]
    path.averages = [x]
    for t in range(1, T + 1):
        g = oracle.mean(y, oracle.samples(t, b))
        z = z - eta * g
        c = 1 / (t + 1)
        x = (1 - c) * x + c * z
        y = (1 - beta) * z + beta * x
        path.step(oracle, g, y)
        path.averages.append(x)
    return path


def momentum_sgd(
    oracle: Oracle,
    x1: Array,
    T: int,
    *,
    eta: float,
    beta: float,
    form: str = "ema",
    init: str = "zero",
    nesterov: bool = False,
    b: int = 1,
) -> Path:
    """SGD with momentum, in two forms, from two first values.

        ema:         m_t = beta m_{t-1} + (1 - beta) g_t            heavy ball:   m_t = beta m_{t-1} + g_t
        x_{t+1} = x_t - eta m_t
        nesterov:    x_{t+1} = x_t - eta (beta m_t + (1 - beta) g_t)        and        x_t - eta (beta m_t + g_t)

    init "zero" is m_0 = 0; init "first" is m_1 = g_1, which for the heavy ball is the same. From zero, the two forms
    give the same x if eta_ema (1 - beta) = eta_heavy_ball.

    Cost: b T.
    Source: Polyak, "Some methods of speeding up the convergence of iteration methods" (1964); Nesterov, "A method of
    solving a convex programming problem with convergence rate O(1/k^2)" (1983), written in the points at which
    gradients are asked (Bengio, Boulanger-Lewandowski and Pascanu 2013).
    Departures: stochastic gradients; constant parameters; mini-batches.
    """
    fresh = {"ema": 1 - beta, "heavy_ball": 1.0}[form]
    path, m = Path.start(x1), np.zeros_like(x1, dtype=np.float64)
    for t in range(1, T + 1):
        x = path.x[-1]
        g = oracle.mean(x, oracle.samples(t, b))
        m = g if t == 1 and init == "first" else beta * m + fresh * g
        direction = beta * m + fresh * g if nesterov else m
        path.step(oracle, m, x - eta * direction)
    return path
