"""Sign methods, coordinate by coordinate.

    g(x; xi) = mean of grad f(x, s) over the samples s of xi

In a quotient 0 / 0 = 0, so a zero coordinate stays.
"""

from __future__ import annotations

from normstorm._shared.validate import batch, fraction, nonnegative, positive, weight

from .core import Algorithm
from .estimators import Corrected, LargeFirstBatch, Momentum
from .geometries import SecondMoment, Sign
from .schedules import Constant


def generalized_signsgd(*, alpha: float, eta: float, b2: float = 0.999, eps: float = 0.0, K: int = 1) -> Algorithm:
    """Generalised SignSGD: alpha = 1 - beta in (0, 1], eta > 0, b2 in [0, 1), eps >= 0, K samples a step.

        m_t = beta m_{t-1} + alpha g_t,      v_t = b2 v_{t-1} + (1 - b2) m_t^2,      m_0 = v_0 = 0
        x_{t+1} = x_t - eta m_t / (sqrt(v_t) + eps)

    b2 = 0, eps = 0 is the sign of the momentum. The first quotient is sign(m_1) / sqrt(1 - b2).

    Cost: K sample gradients at every step.
    Assumes: every coordinate of grad F smooth with a constant of its own that grows with it, noise of every coordinate
    bounded almost surely.
    Rate: min ||grad F||_1 = O(T^{-1/4}) up to logarithms, with high probability.
    Source: Crawshaw, Liu, Orabona, Zhang and Zhuang, "Robustness to unbounded smoothness of generalized SignSGD"
    (2022). eps = 0 there and 1e-8 in their code.
    Departures: mini-batches; a coordinate with v = 0 stays.
    """
    who = "generalized_signsgd"
    geometry = SecondMoment(fraction(who, "b2", b2, below_one=True), nonnegative(who, "eps", eps))
    schedule = Constant(weight(who, alpha), positive(who, "eta", eta))
    return Algorithm(Momentum(batch(who, "K", K), True), geometry, schedule, who)


def sign_storm(*, alpha: float, eta: float, K: int = 1, first_batch: int | None = None) -> Algorithm:
    """Sign-based variance reduction (SSVR): alpha in (0, 1], eta > 0, K samples a step, `first_batch` at the first one.

        m_1 = mean gradient over `first_batch` samples (K if not given)
        m_t = g(x_t; xi_t) + (1 - alpha) (m_{t-1} - g(x_{t-1}; xi_t))        for t >= 2
        x_{t+1} = x_t - eta sign(m_t)

    Cost: `first_batch` sample gradients at the first step, 2 K at every later one.
    Assumes: smooth samples, bounded variance.
    Rate: E ||grad F||_1 = O(d^{1/2} T^{-1/3}) on average.
    Source: Jiang, Yang, Yang and Zhang, "Efficient sign-based optimization: accelerating convergence via variance
    reduction" (2024); alpha is their beta.
    Departures: constant parameters; mini-batches; the size of the first batch is free.
    """
    who = "sign_storm"
    K = batch(who, "K", K)
    first = K if first_batch is None else batch(who, "first_batch", first_batch)
    estimator = Corrected(K, K) if first_batch is None else LargeFirstBatch(K, K, first)
    return Algorithm(estimator, Sign(), Constant(weight(who, alpha), positive(who, "eta", eta)), who)


def generalized_signstorm(*, alpha: float, eta: float, b2: float = 0.9, eps: float = 0.0, K: int = 1) -> Algorithm:
    """Generalised SignSGD on the STORM estimate: alpha in (0, 1], eta > 0, b2 in [0, 1), eps >= 0, K samples a step.

        m_1 = g_1,      m_t = g(x_t; xi_t) + (1 - alpha) (m_{t-1} - g(x_{t-1}; xi_t))
        v_t = b2 v_{t-1} + (1 - b2) m_t^2,      v_0 = 0
        x_{t+1} = x_t - eta m_t / (sqrt(v_t) + eps)

    Cost: K sample gradients at the first step, 2 K at every later one.
    Assumes: nothing is known.
    Rate: none known.
    Source: ours, from the estimate of Cutkosky and Orabona (2019) and the step of Crawshaw et al. (2022).
    Departures: not published, no guarantee known.
    """
    who = "generalized_signstorm"
    K = batch(who, "K", K)
    geometry = SecondMoment(fraction(who, "b2", b2, below_one=True), nonnegative(who, "eps", eps))
    return Algorithm(Corrected(K, K), geometry, Constant(weight(who, alpha), positive(who, "eta", eta)), who)
