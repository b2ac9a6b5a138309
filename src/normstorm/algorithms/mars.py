"""MARS: a scaled correction inside Adam-like, sign or orthogonal steps."""

from __future__ import annotations

from typing import Any

from normstorm._shared.validate import batch, flag, fraction, nonnegative, one_of, positive, weight

from .core import Algorithm
from .geometries import Adam, Sign, WeightDecay
from .matrices import MarsCorrection, Spectral
from .schedules import Constant


def mars(
    *,
    eta: float,
    alpha: float = 0.05,
    b2: float = 0.99,
    gamma: float = 0.025,
    exact: bool = True,
    clip: bool = True,
    flavour: str = "adamw",
    eps: float = 1e-8,
    decay: float = 0.0,
    K: int = 1,
) -> Algorithm:
    """MARS: alpha = 1 - b1 in (0, 1], eta, eps > 0, gamma, decay >= 0, b2 in [0, 1); flavour adamw, lion or shampoo.

        c_t = g_t + gamma b1 / (1 - b1) (g_t - h_t),      g_t = g(x_t; xi_t)
        exact: h_t = g(x_{t-1}; xi_t)          not exact: h_t = g(x_{t-1}; xi_{t-1})          h_1 = g_1
        c~_t = c_t / max(1, ||c_t||) (clip),      m_t = b1 m_{t-1} + (1 - b1) c~_t,      m_0 = 0
        adamw:    v_t = b2 v_{t-1} + (1 - b2) c~_t^2,   u_t = (m_t / (1 - b1^t)) / (sqrt(v_t / (1 - b2^t)) + eps)
        lion:     u_t = sign(m_t)
        shampoo:  u_t = sqrt(max(1, rows / columns)) NewtonSchulz5(m_t / (1 - b1))        matrices
        x_{t+1} = x_t - eta (u_t + decay x_t)

    gamma = 1 without the clip is the recursion of STORM from m_0 = 0.

    Cost: K sample gradients at the first step; later 2 K if exact, K if not.
    Assumes: nothing that we vouch for; the form that is not exact has no proof of variance reduction.
    Rate: none stated.
    Source: Yuan, Liu, Wu, Zhou and Gu, "MARS: unleashing the power of variance reduction for training large models"
    (2024), Algorithm 1, and the three step rules of their code.
    Departures: h_1 = g_1 also in the form that is not exact, where their code starts h at 0; the whole of x is clipped
    as one tensor; the precision of x in NewtonSchulz5, of which eps guards the division.
    """
    who = "mars"
    alpha, eps = weight(who, alpha), positive(who, "eps", eps)
    gain = nonnegative(who, "gamma", gamma) * (1 - alpha) / alpha
    estimator = MarsCorrection(batch(who, "K", K), True, not flag(who, "exact", exact), gain, flag(who, "clip", clip))
    b2 = fraction(who, "b2", b2, below_one=True)
    known: dict[str, Any] = {
        "adamw": Adam(1 - alpha, b2, eps),
        "lion": Sign(),
        # The guard of m / alpha is alpha times that of m.
        "shampoo": Spectral(eps * alpha, "newton_schulz", True),
    }
    inner = known[one_of(who, "flavour", flavour, tuple(known))]
    geometry = WeightDecay(inner, nonnegative(who, "decay", decay))
    return Algorithm(estimator, geometry, Constant(alpha, positive(who, "eta", eta)), who)
