"""Adaptive step sizes and preconditioners from the gradients seen."""

from __future__ import annotations

import numpy as np

from .common import Array, Oracle, Path, norm


def adagrad_norm(oracle: Oracle, x1: Array, T: int, *, eta: float, b0: float, b: int = 1) -> Path:
    """AdaGrad-Norm: one step size for all coordinates; the present gradient counts before it is used.

        s_t = s_{t-1} + ||g_t||^2,      s_0 = b0^2 > 0
        x_{t+1} = x_t - eta g_t / sqrt(s_t)

    Cost: b T.
    Source: Ward, Wu and Bottou, "AdaGrad stepsizes: sharp convergence over nonconvex landscapes" (2019); under
    generalised smoothness Faw, Rout, Caramanis and Shakkottai (2023) and Wang, Zhang, Ma and Chen (2023).
    Departures: mini-batches.
    """
    path, s = Path.start(x1), b0 * b0
    for t in range(1, T + 1):
        x = path.x[-1]
        g = oracle.mean(x, oracle.samples(t, b))
        s = s + np.sum(g * g)
        path.step(oracle, g, x - eta * g / np.sqrt(s))
    return path


def super_adam(
    oracle: Oracle,
    x1: Array,
    T: int,
    *,
    gamma: float,
    k: float,
    m: float,
    c: float,
    tau: int = 1,
    H: str = "adam",
    beta: float = 0.999,
    lam: float = 1e-3,
    b0: float = 0.0,
    b: int = 1,
) -> Path:
    """SUPER-ADAM: a preconditioner H_t and either the STORM estimate (tau = 1) or an average (tau = 0).

        g_t = g(x_t; xi_t);      d_1 = g_1
        d_{t+1} = a_{t+1} g_{t+1} + (1 - a_{t+1}) (d_t + tau (g_{t+1} - g(x_t; xi_{t+1})))
        x_{t+1} = x_t - gamma mu_t H_t^{-1} d_t
        tau = 1:     mu_t = k / (m + t)^{1/3},      a_{t+1} = c mu_t^2
        tau = 0:     mu_t = k / (m + t)^{1/2},      a_{t+1} = c mu_t

        H adam:      v_t = beta v_{t-1} + (1 - beta) g_t^2,  v_0 = 0,        H_t = diag(sqrt(v_t) + lam)
        H global:    s_t = beta s_{t-1} + (1 - beta) ||g_t||,  s_0 = b0,     H_t = (s_t + lam) I
        H identity:  I

    d is written g in the paper, and the two-line step x~, (1 - mu) x + mu x~ is the one line above.

    Cost: tau = 1: b + 2 b (T - 1); tau = 0: b T.
    Source: Huang, Li and Huang, "SUPER-ADAM: faster and universal framework of adaptive gradients" (2021).
    Departures: a is cut at 1; no bias correction of v and no floor under a, which are in the released code.
    """
    path, v, s = Path.start(x1), np.zeros_like(x1, dtype=np.float64), b0
    a = 1.0
    for t in range(1, T + 1):
        x, batch = path.x[-1], oracle.samples(t, b)
        g = oracle.mean(x, batch)
        if t == 1:
            d = g
        else:
            moved = tau * (g - oracle.mean(path.x[-2], batch)) if tau else 0.0
            d = a * g + (1 - a) * (path.m[-1] + moved)
        if H == "adam":
            v = beta * v + (1 - beta) * g * g
            preconditioned = d / (np.sqrt(v) + lam)
        elif H == "global":
            s = beta * s + (1 - beta) * norm(g)
            preconditioned = d / (s + lam)
        else:
            preconditioned = d
        mu = k / (m + t) ** (1 / 3 if tau else 1 / 2)
        a = min(1.0, c * mu * mu if tau else c * mu)
        path.step(oracle, d, x - gamma * mu * preconditioned)
    return path
