"""Matrix methods: x is a matrix, rows x columns, and the step is an orthogonal factor of the estimate.

orthogonal(M, "svd") is U V^T of M = U S V^T, where singular values that are zero up to rounding give nothing, so that
0 stays 0. orthogonal(M, "newton_schulz") is five steps of the quintic iteration of Muon, whose singular values end
near 1, not at 1.
"""

from __future__ import annotations

import numpy as np

from .common import Array, Oracle, Path

QUINTIC = (3.4445, -4.7750, 2.0315)


def newton_schulz(M: Array, steps: int = 5, floor: float = 1e-7) -> Array:
    """X_0 = M / (||M||_F + floor);  X <- a X + (b A + c A^2) X,  A = X X^T, on the side with fewer rows."""
    a, b, c = QUINTIC
    tall = M.shape[0] > M.shape[1]
    X = M.T if tall else M
    X = X / (np.sqrt(np.sum(X * X)) + floor)
    for _ in range(steps):
        A = X @ X.T
        X = a * X + (b * A + c * A @ A) @ X
    return X.T if tall else X


def orthogonal(M: Array, method: str = "svd") -> Array:
    if method == "newton_schulz":
        return newton_schulz(M)
    U, values, Vt = np.linalg.svd(M, full_matrices=False)
    kept = values > values.max(initial=0.0) * max(M.shape) * np.finfo(np.float64).eps
    return U[:, kept] @ Vt[kept]


def muon(
    oracle: Oracle,
    x1: Array,
    T: int,
    *,
    eta: float,
    beta: float = 0.95,
    nesterov: bool = True,
    method: str = "newton_schulz",
    decay: float = 0.0,
    b: int = 1,
) -> Path:
    """Muon.

        m_t = beta m_{t-1} + (1 - beta) g_t,      m_0 = 0
        n_t = beta m_t + (1 - beta) g_t  (nesterov)   or   m_t
        x_{t+1} = (1 - eta decay) x_t - eta sqrt(max(1, rows / columns)) orthogonal(n_t)

    Cost: b T.
    Source: Jordan et al., "Muon: an optimizer for hidden layers in neural networks" (2024), and its code.
    Departures: double precision.
    """
    path, m = Path.start(x1), np.zeros_like(x1, dtype=np.float64)
    scale = np.sqrt(max(1.0, m.shape[0] / m.shape[1]))
    for t in range(1, T + 1):
        x = path.x[-1]
        g = oracle.mean(x, oracle.samples(t, b))
        m = beta * m + (1 - beta) * g
        direction = orthogonal(beta * m + (1 - beta) * g if nesterov else m, method)
        path.step(oracle, m, (1 - eta * decay) * x - eta * scale * direction)
    return path


def muon_mvr(
    oracle: Oracle,
    x1: Array,
    T: int,
    *,
    eta: float,
    beta: float,
    gamma: float = 1.0,
    exact: bool = True,
    init: str = "first",
    method: str = "svd",
    decay: float = 0.0,
    b: int = 1,
) -> Path:
    """Muon with momentum variance reduction: MVR2 (exact, two points) and MVR1 (the stored old gradient).

        m_t = beta m_{t-1} + (1 - beta) g_t + gamma beta (g_t - h_t),      g_t = g(x_t; xi_t)
        MVR2: h_t = g(x_{t-1}; xi_t)          MVR1: h_t = g(x_{t-1}; xi_{t-1})
        x_{t+1} = (1 - eta decay) x_t - eta orthogonal(m_t)

    init "first" is m_1 = g_1; init "zero" is m_0 = 0 and x_0 = x_1, so m_1 = (1 - beta) g_1. gamma = 1 is STORM.

    Cost: MVR2 b + 2 b (T - 1), MVR1 b T.
    Source: Chang, Liu and Yuan, "On the convergence of Muon and beyond" (2025).
    Departures: constant parameters, where the theorems have schedules in t; no norm clip and no scaling with the shape,
    which are in the code; the first value is a choice.
    """
    path = Path.start(x1)
    last = np.zeros_like(path.x[0])
    for t in range(1, T + 1):
        x, batch = path.x[-1], oracle.samples(t, b)
        g = oracle.mean(x, batch)
        if t == 1:
            m = g if init == "first" else (1 - beta) * g
        else:
            old = oracle.mean(path.x[-2], batch) if exact else last
            m = beta * path.m[-1] + (1 - beta) * g + gamma * beta * (g - old)
        last = g
        path.step(oracle, m, (1 - eta * decay) * x - eta * orthogonal(m, method))
    return path


def limuon(
    oracle: Oracle,
    x1: Array,
    T: int,
    *,
    eta: float,
    alpha: float,
    rank: int | None = None,
    sketched: bool = False,
    method: str = "svd",
    b: int = 1,
) -> Path:
    """LiMuon: option 1 keeps the whole estimate, option 2 (a rank is given) a compressed one.

        m_1 = g_1,      x_{t+1} = x_t - eta orthogonal(m_t)
        m_{t+1} = g(x_{t+1}; xi_{t+1}) + (1 - alpha) (k_t - g(x_t; xi_{t+1})),      alpha their beta
        option 1: k_t = m_t          option 2: k_t = a matrix of the given rank near m_t

    Option 2 compresses by the exact truncated singular value decomposition, or, if `sketched`, by the randomised one:
    Q an orthonormal basis of m_t Omega_t with Omega_t the test matrix of step t, then Q (Q^T m_t truncated).
    The step uses m_t in both options; m of the path is m_t.

    Cost: b + 2 b (T - 1).
    Source: Huang, Luo and Chen, "LiMuon: light and fast Muon optimizer for large models" (2025), Algorithm 1; the
    randomised decomposition of Halko, Martinsson and Tropp (2011).
    Departures: constant parameters; mini-batches; steps are counted from 1.
    """

    def kept(m: Array, t: int) -> Array:
        if rank is None:
            return m
        if not sketched:
            return _truncated(m, rank)
        Q, _ = np.linalg.qr(m @ oracle.sketch(t))
        return Q @ _truncated(Q.T @ m, rank)

    path = Path.start(x1)
    for t in range(1, T + 1):
        x, batch = path.x[-1], oracle.samples(t, b)
        m = oracle.mean(x, batch)
        if t > 1:
            m = m + (1 - alpha) * (kept(path.m[-1], t - 1) - oracle.mean(path.x[-2], batch))
        path.step(oracle, m, x - eta * orthogonal(m, method))
    return path


def _truncated(M: Array, rank: int) -> Array:
    U, S, Vt = np.linalg.svd(M, full_matrices=False)
    return (U[:, :rank] * S[:rank]) @ Vt[:rank]
