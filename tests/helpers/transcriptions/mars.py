"""MARS: a scaled correction inside Adam-like, sign or orthogonal steps."""

from __future__ import annotations

import numpy as np

from .common import Array, Oracle, Path, norm
from .muon import newton_schulz


def mars(
    oracle: Oracle,
    x1: Array,
    T: int,
    *,
    eta: float,
    b1: float = 0.95,
    b2: float = 0.99,
    gamma: float = 0.025,
    exact: bool = True,
    clip: bool = True,
    flavour: str = "adamw",
    eps: float = 1e-8,
    decay: float = 0.0,
    b: int = 1,
) -> Path:
    """MARS, exact (two points, same samples) or approximate (the old gradient on its own samples).

        c_t = g_t + gamma b1 / (1 - b1) (g_t - h_t),      g_t = g(x_t; xi_t)
        exact: h_t = g(x_{t-1}; xi_t)          approximate: h_t = g(x_{t-1}; xi_{t-1})          h_1 = g_1
        c~_t = c_t / max(1, ||c_t||),      m_t = b1 m_{t-1} + (1 - b1) c~_t,      m_0 = 0

        adamw:    v_t = b2 v_{t-1} + (1 - b2) c~_t^2,      v_0 = 0
                  u_t = (m_t / (1 - b1^t)) / (sqrt(v_t / (1 - b2^t)) + eps)
        lion:     u_t = sign(m_t)
        shampoo:  u_t = sqrt(max(1, rows / columns)) NewtonSchulz5(m_t / (1 - b1))        matrices
        x_{t+1} = x_t - eta (u_t + decay x_t)

    gamma = 1 without the clip is the STORM recursion from m_0 = 0 and x_0 = x_1.

    Cost: exact b + 2 b (T - 1), approximate b T.
    Source: Yuan, Liu, Wu, Zhou and Gu, "MARS: unleashing the power of variance reduction for training large models"
    (2024), Algorithm 1 (m_0 = 0, x_1 = x_0) and the three step rules of their code.
    Departures: h_1 = g_1 also in the approximate form, where their code starts h at 0; the whole of x is one tensor, of
    any shape; double precision in NewtonSchulz5, of which eps guards the division.
    """
    path, zero = Path.start(x1), np.zeros_like(x1, dtype=np.float64)
    m, v, last = zero, zero, zero
    for t in range(1, T + 1):
        x, batch = path.x[-1], oracle.samples(t, b)
        g = oracle.mean(x, batch)
        old = g if t == 1 else last
        if exact and t > 1:
            old = oracle.mean(path.x[-2], batch)
        last = g
        c = g + gamma * b1 / (1 - b1) * (g - old)
        if clip:
            c = c / max(1.0, norm(c))
        m = b1 * m + (1 - b1) * c
        if flavour == "adamw":
            v = b2 * v + (1 - b2) * c * c
            u = m / (1 - b1**t) / (np.sqrt(v / (1 - b2**t)) + eps)
        elif flavour == "lion":
            u = np.sign(m)
        else:
            u = np.sqrt(max(1.0, x.shape[0] / x.shape[1])) * newton_schulz(m / (1 - b1), floor=eps)
        path.step(oracle, m, x - eta * (u + decay * x))
    return path
