"""Matrix methods: the step is an orthogonal factor of the estimate.

    orthogonal(M) = U V^T of M = U S V^T (svd), or five steps of Muon's quintic iteration (newton_schulz)
    g_t = mean of grad f(x_t, xi) over K samples

x is a matrix or a pytree of matrices.
"""

from __future__ import annotations

from typing import Any

from normstorm._shared.validate import batch, flag, nonnegative, one_of, positive, weight

from .core import Algorithm
from .estimators import Corrected, Momentum
from .geometries import Nesterov, WeightDecay
from .matrices import BALLS, Ball, LowRank, ScaledCorrection, Spectral
from .schedules import Constant

METHODS = ("svd", "newton_schulz")
GUARD = 1e-7


def muon(
    *,
    eta: float,
    alpha: float = 0.05,
    nesterov: bool = True,
    method: str = "newton_schulz",
    decay: float = 0.0,
    K: int = 1,
) -> Algorithm:
    """Muon: eta > 0, alpha = 1 - beta in (0, 1], decay >= 0, K samples a step.

        m_t = beta m_{t-1} + (1 - beta) g_t,      m_0 = 0
        n_t = beta m_t + (1 - beta) g_t  (nesterov)   or   m_t
        x_{t+1} = (1 - eta decay) x_t - eta sqrt(max(1, rows / columns)) orthogonal(n_t)

    Cost: K sample gradients at every step.
    Assumes: nothing that we vouch for.
    Rate: none stated.
    Source: Jordan et al., "Muon: an optimizer for hidden layers in neural networks" (2024), and its code.
    Departures: the precision of x, where the code has sixteen bits.
    """
    who = "muon"
    alpha = weight(who, alpha)
    geometry: Any = Spectral(GUARD, one_of(who, "method", method, METHODS), True)
    if flag(who, "nesterov", nesterov):
        geometry = Nesterov(geometry, 1 - alpha)
    geometry = WeightDecay(geometry, nonnegative(who, "decay", decay))
    return Algorithm(Momentum(batch(who, "K", K), True), geometry, Constant(alpha, positive(who, "eta", eta)), who)


def muon_mvr(
    *,
    alpha: float,
    eta: float,
    gain: float = 1.0,
    exact: bool = True,
    start: str = "first",
    method: str = "svd",
    decay: float = 0.0,
    K: int = 1,
) -> Algorithm:
    """Muon with momentum variance reduction: alpha = 1 - beta, eta > 0, gain >= 0; exact (MVR2) or not (MVR1).

        m_t = beta m_{t-1} + (1 - beta) g_t + gain beta (g_t - h_t)
        MVR2: h_t = g(x_{t-1}; xi_t)          MVR1: h_t = g(x_{t-1}; xi_{t-1})
        x_{t+1} = (1 - eta decay) x_t - eta orthogonal(m_t)

    Start "first" is m_1 = g_1, "zero" is m_1 = (1 - beta) g_1. gain = 1 is the recursion of STORM.

    Cost: K sample gradients at the first step; later 2 K if exact, K if not.
    Assumes: smooth samples, bounded variance, MVR2 with parameters that fall with t.
    Rate: O(T^{-1/3}) up to logarithms for MVR2 with those parameters; none stated for constant ones or for MVR1.
    Source: Chang, Liu and Yuan, "On the convergence of Muon and beyond" (2025).
    Departures: constant parameters, where the theorems have schedules in t; no norm clip and no scaling with the shape,
    which are in the code; the first value is a choice.
    """
    who = "muon_mvr"
    zero = one_of(who, "start", start, ("first", "zero")) == "zero"
    gain = nonnegative(who, "gain", gain)
    estimator = ScaledCorrection(batch(who, "K", K), zero, not flag(who, "exact", exact), gain)
    spectral = Spectral(GUARD, one_of(who, "method", method, METHODS), False)
    geometry = WeightDecay(spectral, nonnegative(who, "decay", decay))
    return Algorithm(estimator, geometry, Constant(weight(who, alpha), positive(who, "eta", eta)), who)


def limuon(*, alpha: float, eta: float, rank: int | None = None, method: str = "svd", K: int = 1) -> Algorithm:
    """LiMuon: alpha in (0, 1], eta > 0; option 1 keeps the whole estimate, option 2 (a rank is given) less.

        m_1 = g_1,      x_{t+1} = x_t - eta orthogonal(m_t)
        m_{t+1} = g(x_{t+1}; xi_{t+1}) + (1 - alpha) (k_t - g(x_t; xi_{t+1}))
        option 1: k_t = m_t          option 2: k_t = the nearest matrix of the given rank

    Cost: K sample gradients at the first step, 2 K at every later one.
    Assumes: samples smooth, also with a constant that grows with the gradient, bounded variance.
    Rate: O(eps^-3) samples for eps, in the nuclear norm of grad F, with alpha and eta of order T^{-2/3}.
    Source: Huang, Luo and Chen, "LiMuon: light and fast Muon optimizer for large models" (2025), Algorithm 1; alpha is
    their beta.
    Departures: constant parameters; mini-batches; option 2 truncates exactly, where the paper has a randomised
    decomposition, and saves no memory here.
    """
    who = "limuon"
    K = batch(who, "K", K)
    estimator: Any = Corrected(K, K) if rank is None else LowRank(K, K, batch(who, "rank", rank))
    geometry = Spectral(GUARD, one_of(who, "method", method, METHODS), False)
    return Algorithm(estimator, geometry, Constant(weight(who, alpha), positive(who, "eta", eta)), who)


def scion(
    *,
    alpha: float,
    eta: float,
    ball: str = "spectral",
    radius: float = 1.0,
    constrained: bool = False,
    K: int = 1,
) -> Algorithm:
    """Scion: alpha in (0, 1], eta, radius > 0; `ball` is the norm ball, K samples a step.

        d_t = (1 - alpha) d_{t-1} + alpha g_t,      d_0 = 0
        unconstrained:  x_{t+1} = x_t - eta radius u_t
        constrained:    x_{t+1} = (1 - eta) x_t - eta radius u_t,      x_1 inside the ball
        u_t: the point of the unit ball with the largest inner product with d_t

    Balls: euclidean, sign, rms for any x; mean_sign, spectral, column, row for matrices.

    Cost: K sample gradients at every step.
    Assumes: F smooth in the norm of the ball, bounded variance.
    Rate: O(T^{-1/4}) in the dual norm, with alpha and eta that fall with t.
    Source: Pethick, Xie, Antonakopoulos, Zhu, Silveti-Falls and Cevher, "Training deep learning models with
    norm-constrained LMOs" (2025), and its code, of which the balls and their floors are.
    Departures: one ball for all of x; constant parameters; the exact orthogonal factor, where the code has five
    Newton-Schulz steps; x_1 is not checked to lie in the ball.
    """
    who = "scion"
    point = Ball(positive(who, "radius", radius), one_of(who, "ball", ball, BALLS))
    geometry: Any = WeightDecay(point, 1.0) if flag(who, "constrained", constrained) else point
    schedule = Constant(weight(who, alpha), positive(who, "eta", eta))
    return Algorithm(Momentum(batch(who, "K", K), True), geometry, schedule, who)
