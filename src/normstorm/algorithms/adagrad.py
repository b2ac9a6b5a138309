"""Step sizes and preconditioners from the gradients seen."""

from __future__ import annotations

from typing import Any

from normstorm._shared.validate import batch, flag, fraction, one_of, positive

from .core import Algorithm
from .estimators import Corrected, Momentum
from .geometries import Euclidean, NormMoment, SecondMoment
from .schedules import AdaGradNorm, ShiftedPower


def adagrad_norm(*, eta: float, b0: float, K: int = 1) -> Algorithm:
    """AdaGrad-Norm: eta > 0, b0 > 0, K samples a step; the present gradient counts before it is used.

        s_t = s_{t-1} + ||g_t||^2,      s_0 = b0^2
        x_{t+1} = x_t - eta g_t / sqrt(s_t)

    Cost: K sample gradients at every step.
    Assumes: F smooth with constant L0 + L1 ||grad F||, affine noise (sigma1 < 1 in Faw et al.), eta below a threshold
    of order 1 / L1, which cannot be done without.
    Rate: ||grad F|| = O(T^{-1/4}) up to logarithms.
    Source: Ward, Wu and Bottou, "AdaGrad stepsizes: sharp convergence over nonconvex landscapes" (2019); under
    generalised smoothness Faw, Rout, Caramanis and Shakkottai (2023) and Wang, Zhang, Ma and Chen (2023).
    Departures: mini-batches.
    """
    who = "adagrad_norm"
    schedule = AdaGradNorm(positive(who, "eta", eta), positive(who, "b0", b0))
    return Algorithm(Momentum(batch(who, "K", K)), Euclidean(), schedule, who)


def super_adam(
    *,
    gamma: float,
    k: float,
    m: float,
    c: float,
    corrected: bool = True,
    scaling: str = "adam",
    beta: float = 0.999,
    lam: float = 1e-3,
    K: int = 1,
) -> Algorithm:
    """SUPER-ADAM: gamma, k, m, c, lam > 0, beta in [0, 1); `corrected` their tau = 1; scaling adam, global, identity.

        g_t = g(x_t; xi_t),      d_1 = g_1
        d_{t+1} = a_{t+1} g_{t+1} + (1 - a_{t+1}) (d_t + tau (g_{t+1} - g(x_t; xi_{t+1})))
        x_{t+1} = x_t - gamma mu_t d_t / H_t
        tau = 1:     mu_t = k / (m + t)^{1/3},      a_{t+1} = min{1, c mu_t^2}
        tau = 0:     mu_t = k / (m + t)^{1/2},      a_{t+1} = min{1, c mu_t}
        adam:        H_t = sqrt(v_t) + lam,      v_t = beta v_{t-1} + (1 - beta) g_t^2,      v_0 = 0
        global:      H_t = s_t + lam,            s_t = beta s_{t-1} + (1 - beta) ||g_t||,    s_0 = 0
        identity:    H_t = 1

    Cost: K sample gradients at the first step; later 2 K with tau = 1, K with tau = 0.
    Assumes: smooth samples (tau = 1) or smooth F (tau = 0), bounded variance, H_t bounded from below.
    Rate: E ||grad F|| = O(T^{-1/3}) with tau = 1 and O(T^{-1/4}) with tau = 0, up to logarithms.
    Source: Huang, Li and Huang, "SUPER-ADAM: faster and universal framework of adaptive gradients" (2021).
    Departures: a is cut at 1; no bias correction of v and no floor under a, which are in the released code; their
    two-line step x~, (1 - mu) x + mu x~ is the one line above; mini-batches.
    """
    who = "super_adam"
    K = batch(who, "K", K)
    estimator: Any = Corrected(K, K) if flag(who, "corrected", corrected) else Momentum(K)
    beta, lam = fraction(who, "beta", beta, below_one=True), positive(who, "lam", lam)
    known = {"adam": SecondMoment(beta, lam, True), "global": NormMoment(beta, lam), "identity": Euclidean()}
    geometry: Any = known[one_of(who, "scaling", scaling, tuple(known))]
    gamma, k, m, c = (positive(who, name, v) for name, v in (("gamma", gamma), ("k", k), ("m", m), ("c", c)))
    return Algorithm(estimator, geometry, ShiftedPower(gamma, k, m, c, bool(corrected)), who)
