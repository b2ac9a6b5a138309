"""The STORM family: one loop, two points, the same samples.

    g_t = g(x_t; xi_t),  h_t = g(x_{t-1}; xi_t),  means over the same K samples
    d_1 = g_1,      d_t = g_t + (1 - a_t) (d_{t-1} - h_t)        a_t: the weight of the fresh gradient
    x_{t+1} = x_t - eta_t d_t

Cost: K sample gradients at the first step, 2 K at every later one.
"""

from __future__ import annotations

from typing import Any

from normstorm._shared.validate import UP_TO_HALF, batch, flag, nonnegative, parameter, positive, weight

from .core import Algorithm
from .estimators import Corrected, LargeFirstBatch, TwoBatch
from .geometries import Euclidean
from .schedules import Constant, MeasuredCurvature, MetaStorm, Storm, StormPlus


def storm(*, k: float, w: float, c: float, K: int = 1) -> Algorithm:
    """STORM: k, w, c > 0, K samples a step; the step size comes from the gradients seen.

        eta_t = k / (w + sum_{i <= t} ||g_i||^2)^{1/3},      a_{t+1} = min{1, c eta_t^2}

    Assumes: every sample L-smooth, bounded variance and bounded gradients.
    Rate: E ||grad F|| = O(T^{-1/2} + sigma^{1/3} T^{-1/3}) up to logarithms.
    Source: Cutkosky and Orabona, "Momentum-based variance reduction in non-convex SGD" (2019), Algorithm 1.
    Departures: a is cut at 1, which the paper's w makes needless; mini-batches.
    """
    who = "storm"
    schedule = Storm(positive(who, "k", k), positive(who, "w", w), positive(who, "c", c))
    return _corrected(who, K, schedule)


def storm_plus(*, scale: float = 1.0, K: int = 1) -> Algorithm:
    """STORM+: K samples a step, and nothing to tune.

        a_{t+1} = (1 + sum_{i <= t} ||g_i||^2)^{-2/3},      eta_t = (sum_{i <= t} ||d_i||^2 / a_{i+1})^{-1/3}

    Assumes: every sample L-smooth, bounded gradients and bounded values of F.
    Rate: E ||grad F|| = O(T^{-1/2} + sigma^{1/3} T^{-1/3}).
    Source: Levy, Kavis and Cevher, "STORM+: fully adaptive SGD with recursive momentum for nonconvex optimization"
    (2021).
    Departures: as long as every d is zero the path stays; eta_t times `scale`, which is 1 in the paper; mini-batches.
    """
    who = "storm_plus"
    return _corrected(who, K, StormPlus(positive(who, "scale", scale)))


def meta_storm(*, eta: float, p: float = 0.5, a0: float = 1.0, b0: float = 1.0, K: int = 1) -> Algorithm:
    """META-STORM: eta, a0, b0 > 0, p in (0, 1/2], K samples a step.

        a_1 = 1,      a_{t+1} = (1 + sum_{i <= t} ||g(x_i; xi_i) - g(x_i; xi_{i+1})||^2 / a0^2)^{-2/3}
        eta_t = eta a_t^{(1-p)/2} / (b0^{1/p} + sum_{i <= t} ||d_i||^2)^p

    Assumes: every sample L-smooth, bounded variance.
    Rate: E ||grad F|| = O(T^{-1/2} + sigma^{1/3} T^{-1/3}) up to logarithms.
    Source: Liu, Nguyen, Nguyen, Ene and Nguyen, "META-STORM: generalized fully-adaptive variance reduced SGD for
    unbounded functions" (2022).
    Departures: mini-batches; p may be smaller than their theorem allows.
    """
    return _meta("meta_storm", "difference", eta, p, a0, b0, K)


def meta_storm_sg(*, eta: float, p: float = 0.5, a0: float = 1.0, b0: float = 1.0, K: int = 1) -> Algorithm:
    """META-STORM-SG, the weight from gradient norms: eta, a0, b0 > 0, p in (0, 1/2], K samples a step.

        a_{t+1} = (1 + sum_{i <= t} ||g_i||^2 / a0^2)^{-2/3}
        eta_t = eta a_{t+1}^{(1-p)/2} / (b0^{1/p} + sum_{i <= t} ||d_i||^2)^p

    Assumes: every sample L-smooth, bounded variance and bounded gradients.
    Rate: E ||grad F|| = O(T^{-1/2} + sigma^{1/3} T^{-1/3}) up to logarithms.
    Source: Liu, Nguyen, Nguyen, Ene and Nguyen (2022), as META-STORM.
    Departures: mini-batches; p may be any number in (0, 1/2].
    """
    return _meta("meta_storm_sg", "norm", eta, p, a0, b0, K)


def meta_storm_na(*, eta: float, p: float = 0.5, a0: float = 1.0, b0: float = 1.0, K: int = 1) -> Algorithm:
    """META-STORM-NA, the weight does not adapt, only the step: eta, a0, b0 > 0, p in (0, 1/2], K samples a step.

        a_{t+1} = (1 + t / a0^2)^{-2/3}
        eta_t = eta a_{t+1}^{(1-p)/2} / (b0^{1/p} + sum_{i <= t} ||d_i||^2)^p

    Assumes: every sample L-smooth, bounded variance.
    Rate: E ||grad F|| = O(T^{-1/2} + sigma^{1/3} T^{-1/3}) up to logarithms.
    Source: Liu, Nguyen, Nguyen, Ene and Nguyen (2022), as META-STORM.
    Departures: this form is not checked against the paper word by word; mini-batches; p may be any number in (0, 1/2].
    """
    return _meta("meta_storm_na", "count", eta, p, a0, b0, K)


def measured_storm(
    *,
    L0: float,
    longest: float,
    L1: float = 0.0,
    offset: float = 10.0,
    scale: float = 1.0,
    K: int = 1,
    k: int | None = None,
) -> Algorithm:
    """STORM whose steps follow the curvature that its corrections measure.

    L0, longest, offset, scale > 0, L1 >= 0, 1 <= k <= K.

        a_{t+1} = (1 + (t - 1)/offset)^{-2/3},      eta_t = min{scale sqrt(a_{t+1}) / L_t, longest a_{t+1} / ||m_t||}
        L_t^2: running mean of ||g_k(x_i) - g_k(x_{i-1})||^2 / ||x_i - x_{i-1}||^2 over i <= t;  L_1 = L0 + L1 ||m_1||

    where g_k is the mean over the first k of the K samples of step i. sqrt(a) keeps the noise that a step adds to the
    correction as small as that of the fresh gradient; `longest`, noise over smoothness, does so for its largest value.
    L0 and L1 decide the first step, and are not needed after it.

    Cost: K sample gradients at the first step, K + k at every later one.
    Assumes: nothing; made for runs that end when the certificate of their trajectory reaches a target.
    Rate: none proven before the run.
    Source: none but this catalogue; the certificate is that of docs/theory/trajectory.md.
    Departures: none.
    """
    who = "measured_storm"
    K = batch(who, "K", K)
    k = K if k is None else batch(who, "k", k, at_most=K)
    L0, L1 = positive(who, "L0", L0), nonnegative(who, "L1", L1)
    others = {"longest": longest, "offset": offset, "scale": scale}
    schedule = MeasuredCurvature(L0, L1, *(positive(who, name, value) for name, value in others.items()))
    return Algorithm(Corrected(K, k), Euclidean(), schedule, who)


def hybrid_sarah_sgd(*, alpha: float, eta: float, first_batch: int, K: int = 1, same: bool = False) -> Algorithm:
    """Hybrid SARAH-SGD: alpha = 1 - beta in (0, 1], eta > 0, K samples a step, `first_batch` at the first one.

        v_1 = g(x_1; `first_batch` samples)
        v_t = beta (v_{t-1} + g(x_t; xi_t) - g(x_{t-1}; xi_t)) + (1 - beta) g(x_t; zeta_t)        for t >= 2
        x_{t+1} = x_t - eta v_t

    zeta_t is independent of xi_t; `same` takes zeta_t = xi_t, which is STORM's recursion.

    Cost: `first_batch` sample gradients at the first step, 3 K at every later one, 2 K if `same`.
    Assumes: samples L-smooth in mean square, bounded variance.
    Rate: O(sigma^3 / eps + sigma / eps^3) samples for eps.
    Source: Tran-Dinh, Pham, Phan and Nguyen, "Hybrid stochastic gradient descent algorithms for stochastic nonconvex
    optimization" (2019).
    Departures: constant parameters; mini-batches.
    """
    who = "hybrid_sarah_sgd"
    kind = LargeFirstBatch if flag(who, "same", same) else TwoBatch
    K = batch(who, "K", K)
    schedule = Constant(weight(who, alpha), positive(who, "eta", eta))
    return Algorithm(kind(K, K, batch(who, "first_batch", first_batch)), Euclidean(), schedule, who)


def _corrected(who: str, K: int, schedule: Any) -> Algorithm:
    K = batch(who, "K", K)
    return Algorithm(Corrected(K, K), Euclidean(), schedule, who)


def _meta(who: str, kind: str, eta: float, p: float, a0: float, b0: float, K: int) -> Algorithm:
    p = parameter(who, "p", p, UP_TO_HALF)
    eta, a0, b0 = positive(who, "eta", eta), positive(who, "a0", a0), positive(who, "b0", b0)
    return _corrected(who, K, MetaStorm(eta, p, a0, b0, kind))
