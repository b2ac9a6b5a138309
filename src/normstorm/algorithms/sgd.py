"""Stochastic gradient methods without variance reduction.

    g_t = mean of grad f(x_t, xi) over K samples
    m_1 = g_1 (or m_0 = 0),    m_t = beta m_{t-1} + (1 - beta) g_t,    alpha = 1 - beta
    x_{t+1} = x_t - eta m_t                    plain
    x_{t+1} = x_t - eta m_t / ||m_t||          normalised; a zero m_t means "stay"

Cost: K sample gradients at every step.
"""

from __future__ import annotations

from typing import Any

from normstorm._shared.validate import batch, flag, fraction, one_of, positive, weight

from .averaging import ExponentialAverage, PolyakRuppert, ScheduleFree
from .core import Algorithm
from .estimators import Momentum, Transported
from .geometries import Euclidean, Nesterov, Normalized
from .schedules import Constant, PowerDecay


def sgd(*, eta: float, K: int = 1) -> Algorithm:
    """Stochastic gradient descent: eta > 0, K samples a step.

        x_{t+1} = x_t - eta g_t

    Assumes: F L-smooth and bounded variance; noise that grows with ||grad F|| needs a smaller step. Nothing under
    generalised smoothness.
    Rate: E ||grad F|| = O(T^{-1/4}) on average.
    Source: Robbins and Monro, "A stochastic approximation method" (1951); for non-convex F, Ghadimi and Lan,
    "Stochastic first- and zeroth-order methods for nonconvex stochastic programming" (2013).
    Departures: a constant step size; mini-batches.
    """
    who = "sgd"
    return Algorithm(Momentum(batch(who, "K", K)), Euclidean(), Constant(1.0, positive(who, "eta", eta)), who)


def averaged_sgd(*, eta: float, K: int = 1, ema: float | None = None) -> Algorithm:
    """SGD that hands out an average of its iterates: eta > 0, K samples a step, ema in [0, 1) or None.

        x_{t+1} = x_t - eta g_t
        handed out:    (x_1 + ... + x_t) / t                          ema = None
                       e_t = ema e_{t-1} + (1 - ema) x_t,  e_1 = x_1  else

    ema = 0 is SGD.

    Assumes: F convex and L-smooth, bounded variance. Nothing for the average of a non-convex F.
    Rate: F(mean) - min F = O(T^{-1/2}) on average for convex F; with steps that fall more slowly than 1/t the best
    covariance in the limit, near a minimum with a positive definite Hessian. None stated for the exponential average.
    Source: Polyak and Juditsky, "Acceleration of stochastic approximation by averaging" (1992); Ruppert, "Efficient
    estimations from a slowly convergent Robbins-Monro process" (1988).
    Departures: a constant step size, where the theorem has one that falls; mini-batches; the exponential average is
    common practice and in neither source. The mean is updated step by step, with what rounding takes from it.
    """
    who = "averaged_sgd"
    averaging: Any = PolyakRuppert() if ema is None else ExponentialAverage(fraction(who, "ema", ema, below_one=True))
    schedule = Constant(1.0, positive(who, "eta", eta))
    return Algorithm(Momentum(batch(who, "K", K)), Euclidean(), schedule, who, averaging)


def schedule_free_sgd(*, eta: float, beta: float = 0.9, K: int = 1) -> Algorithm:
    """Schedule-free SGD: eta > 0, beta in [0, 1], K samples a step; what is handed out is x.

        z_1 = x_1
        y_t = (1 - beta) z_t + beta x_t,      g_t = mean of grad f(y_t, xi) over K samples
        z_{t+1} = z_t - eta g_t
        x_{t+1} = (1 - c_{t+1}) x_t + c_{t+1} z_{t+1},      c_{t+1} = 1 / (t + 1)

    x_t is the mean of z_1 .. z_t. beta = 0 is averaged SGD, beta = 1 asks gradients at the average (primal averaging).

    Assumes: F convex, samples Lipschitz.
    Rate: F(x_T) - min F = O(T^{-1/2}) on average for convex F and any beta in [0, 1]. None stated here for a non-convex
    F; for one see Ahn, Magakyan and Cutkosky (2024), with other parameters.
    Source: Defazio, Yang, Mehta, Mishchenko, Khaled and Cutkosky, "The road less scheduled" (2024), its three-line
    recursion.
    Departures: mini-batches; no warm-up and no weights from it (c = 1 / (t + 1), which is theirs for a constant step).
    The estimate that is reported is g_t, of the gradient at y_t.
    """
    who = "schedule_free_sgd"
    averaging = ScheduleFree(fraction(who, "beta", beta))
    schedule = Constant(1.0, positive(who, "eta", eta))
    return Algorithm(Momentum(batch(who, "K", K)), Euclidean(), schedule, who, averaging)


def momentum_sgd(
    *, alpha: float, eta: float, K: int = 1, form: str = "average", start: str = "zero", nesterov: bool = False
) -> Algorithm:
    """SGD with momentum: alpha = 1 - beta in (0, 1], eta > 0, form "average" or "heavy_ball", start "zero" or "first".

        average:       m_t = beta m_{t-1} + alpha g_t            heavy ball:   m_t = beta m_{t-1} + g_t
        x_{t+1} = x_t - eta m_t
        nesterov:      x_{t+1} = x_t - eta (beta m_t + alpha g_t)        and        x_t - eta (beta m_t + g_t)

    Start "zero" is m_0 = 0 and "first" is m_1 = g_1, which for the heavy ball is the same.

    Assumes: F L-smooth and bounded variance.
    Rate: E ||grad F|| = O(T^{-1/4}) on average.
    Source: Polyak, "Some methods of speeding up the convergence of iteration methods" (1964); Nesterov, "A method of
    solving a convex programming problem with convergence rate O(1/k^2)" (1983), in the points where gradients are
    asked.
    Departures: stochastic gradients; constant parameters; mini-batches. The heavy ball runs as the average from zero
    with eta / alpha, which gives the same x; the m that is reported is alpha times the heavy ball's and so of the size
    of a gradient.
    """
    who = "momentum_sgd"
    ball = one_of(who, "form", form, ("average", "heavy_ball")) == "heavy_ball"
    zero = one_of(who, "start", start, ("zero", "first")) == "zero"
    alpha, eta = weight(who, alpha), positive(who, "eta", eta)
    geometry: Any = Nesterov(Euclidean(), 1 - alpha) if flag(who, "nesterov", nesterov) else Euclidean()
    schedule = Constant(alpha, eta / alpha if ball else eta)
    return Algorithm(Momentum(batch(who, "K", K), zero or ball), geometry, schedule, who)


def normalized_sgd(*, eta: float, K: int = 1) -> Algorithm:
    """Normalised SGD: eta > 0, K samples a step.

        x_{t+1} = x_t - eta g_t / ||g_t||

    Assumes: 3B and 4B of the paper on Normalized STORM, K >= 64 sigma1^2.
    Rate: E ||grad F|| = O(T^{-1/2} + sigma0 K^{-1/2}) on average: eps^-4 samples for eps, with K of order eps^-2. With
    K fixed it need not fall below the noise.
    Source: Zhao, Xie and Li, "On the convergence and improvement of stochastic normalized gradient descent" (2021).
    Departures: constant step size and batch; a zero g_t means "stay".
    """
    who = "normalized_sgd"
    return Algorithm(Momentum(batch(who, "K", K)), Normalized(), Constant(1.0, positive(who, "eta", eta)), who)


def momentum_nsgd(*, alpha: float, eta: float, K: int = 1) -> Algorithm:
    """Normalised SGD with momentum: alpha = 1 - beta in (0, 1], eta > 0, K samples a step (K sample gradients).

    Assumes: F L-smooth and bounded variance; or 3B and 4B of the paper on Normalized STORM with K >= 64 sigma1^2.
    Rate: E ||grad F|| = O(T^{-1/4}) on average.
    Source: Cutkosky and Mehta, "Momentum Improves Normalized SGD" (ICML 2020).
    Departures: m_1 is the whole first gradient; mini-batches; a zero m_t means "stay".
    """
    who = "momentum_nsgd"
    K = batch(who, "K", K)
    return Algorithm(Momentum(K), Normalized(), Constant(weight(who, alpha), positive(who, "eta", eta)), who)


def nigt(*, alpha: float, eta: float, K: int = 1) -> Algorithm:
    """Normalised SGD with implicit gradient transport: alpha = 1 - beta in (0, 1], eta > 0, K samples a step.

        m_1 = g(x_1; xi_1)
        y_t = x_t + beta / (1 - beta) (x_t - x_{t-1}),      m_t = beta m_{t-1} + (1 - beta) g(y_t; xi_t)      for t >= 2
        x_{t+1} = x_t - eta m_t / ||m_t||

    Assumes: F L-smooth with a Lipschitz Hessian, bounded variance.
    Rate: E ||grad F|| = O(T^{-2/7}) on average.
    Source: Cutkosky and Mehta, "Momentum Improves Normalized SGD" (ICML 2020).
    Departures: mini-batches; a zero m_t means "stay"; no layer-wise scaling, which is in their experiments only.
    """
    who = "nigt"
    alpha = weight(who, alpha)
    estimator = Transported(batch(who, "K", K), (1 - alpha) / alpha)
    return Algorithm(estimator, Normalized(), Constant(alpha, positive(who, "eta", eta)), who)


def agnostic_nsgd(*, eta: float, K: int = 1) -> Algorithm:
    """Parameter-agnostic normalised SGD with momentum: eta > 0, K samples a step, no horizon.

        m_t = (1 - t^{-1/2}) m_{t-1} + t^{-1/2} g_t
        x_{t+1} = x_t - eta t^{-3/4} m_t / ||m_t||

    Assumes: F smooth with constant L0 + L1 ||grad F||, bounded variance; none of the constants need be known.
    Rate: eps^-4 samples for eps up to logarithms, times a factor that is exponential in L1.
    Source: Huebler, Yang, Li and He, "Parameter-agnostic optimization under relaxed smoothness" (2024).
    Departures: the constant eta is free; mini-batches; a zero m_t means "stay".
    """
    who = "agnostic_nsgd"
    schedule = PowerDecay(0.5, positive(who, "eta", eta), 0.75)
    return Algorithm(Momentum(batch(who, "K", K)), Normalized(), schedule, who)
