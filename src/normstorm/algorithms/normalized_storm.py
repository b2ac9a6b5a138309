"""Normalized STORM.

    draw K samples xi_t;  g_j(x) = mean of grad f(x, xi) over the first j of them
    m_1 = g_K(x_1)
    m_t = beta m_{t-1} + (1 - beta) g_K(x_t) + beta (g_k(x_t) - g_k(x_{t-1}))        for t >= 2
    x_{t+1} = x_t - eta m_t / ||m_t||

Cost: K sample gradients at the first step, K + k at every later one, also when beta = 0.

Assumes: samples smooth with constant L0 + L1 ||grad F|| and noise of size sigma0 + sigma1 ||grad F||, almost surely
(3A, 4A; any K) or in mean square (3B, 4B; K >= 64 sigma1^2).
Rate: the mean of ||grad F(x_t)|| is O((log(T / delta) / T)^{1/3}) with probability 1 - delta, and O(T^{-1/3}) in
expectation; O(T^{-1/2}) in expectation if sigma0 = 0.
Source: Liu, Jagabathula, Zhou, "Near-Optimal Non-Convex Stochastic Optimization under Generalized Smoothness",
Algorithm 1.
Departures: m_t = 0, which the paper leaves undefined, means "stay".
"""

from __future__ import annotations

from typing import Protocol

from normstorm._shared.validate import UP_TO_HALF, batch, nonnegative, parameter, positive, weight

from .core import Algorithm
from .estimators import Corrected
from .geometries import Normalized
from .schedules import Anytime, Constant, Halving


class Planned(Protocol):
    """What is read of a plan."""

    @property
    def alpha(self) -> float: ...
    @property
    def eta(self) -> float: ...
    @property
    def batch(self) -> int: ...
    @property
    def sub_batch(self) -> int: ...


def normalized_storm(*, alpha: float, eta: float, K: int = 1, k: int | None = None) -> Algorithm:
    """Algorithm 1 of the paper: alpha = 1 - beta in (0, 1], eta > 0, 1 <= k <= K (k = K if not given)."""
    who = "normalized_storm"
    K = batch(who, "K", K)
    k = K if k is None else batch(who, "k", k, at_most=K)
    return Algorithm(Corrected(K, k), Normalized(), Constant(weight(who, alpha), positive(who, "eta", eta)), who)


def normalized_storm_anytime(*, alpha: float, eta: float, shift: float, K: int = 1, k: int | None = None) -> Algorithm:
    """Shrinking steps for a run of any length: alpha in (0, 1], eta > 0, shift >= 0, 1 <= k <= K (k = K if not given).

        r_t = ((1 + shift) / (t + shift))^{2/3},      eta_t = eta r_t,      1 - beta_{t+1} = alpha r_t
        m_t = beta_t m_{t-1} + (1 - beta_t) g_K(x_t) + beta_t (g_k(x_t) - g_k(x_{t-1})),      m_1 = g_K(x_1)
        x_{t+1} = x_t - eta_t m_t / ||m_t||

    eta is the first step and alpha the weight at step 2; both begin to fall after about `shift` steps.

    Assumes: samples smooth with constant L0 + L1 ||grad F||, noise of size sigma0 + sigma1 ||grad F||, almost surely.
    Rate: with probability 1 - delta, for all T at once, O(log(T) T^{-1/3}) for the mean of ||grad F(x_t)|| with weights
    close to eta_t; `plan(..., anytime=True)` has the number at every T.
    Source: docs/theory/any-schedule.md of this package.
    Departures: none.
    """
    return _shrinking(
        "normalized_storm_anytime", alpha, eta, nonnegative("normalized_storm_anytime", "shift", shift), K, k
    )


def agnostic_storm(*, eta: float, alpha: float = 0.5, K: int = 1, k: int | None = None) -> Algorithm:
    """No constant of the problem is known: eta > 0 of any size, alpha in (0, 1/2], 1 <= k <= K (k = K if not given).

        eta_t = eta t^{-2/3},      1 - beta_{t+1} = alpha t^{-2/3}
        m_t = beta_t m_{t-1} + (1 - beta_t) g_K(x_t) + beta_t (g_k(x_t) - g_k(x_{t-1})),      m_1 = g_K(x_1)
        x_{t+1} = x_t - eta_t m_t / ||m_t||

    `normstorm.theory.agnostic_guarantee` prints what it guarantees, with gap, L0 and sigma0 as letters;
    `agnostic_bound` is the number for given ones.

    Assumes: samples smooth with constant L0 and noise of size sigma0, almost surely, both unknown; L1 = 0.
    Rate: with probability 1 - delta, for all T at once, O(log(T) T^{-1/3}) for the mean of ||grad F(x_t)|| with weights
    t^{-2/3}.
    Source: docs/theory/any-schedule.md of this package.
    Departures: none.
    """
    who = "agnostic_storm"
    return _shrinking(who, parameter(who, "alpha", alpha, UP_TO_HALF), eta, 0.0, K, k)


def halving_storm(
    *, alpha: float, eta: float, gap: float, L0: float, share: float = 0.25, K: int = 1, k: int | None = None
) -> Algorithm:
    """Steps that are halved when the certificate of the run says so: alpha in (0, 1], eta, gap and share > 0, L0 >= 0.

        eta_t = eta/2^i after i halvings,      1 - beta_{t+1} = alpha eta_t/eta
        m_t = beta_t m_{t-1} + (1 - beta_t) g_K(x_t) + beta_t (g_k(x_t) - g_k(x_{t-1})),      m_1 = g_K(x_1)
        x_{t+1} = x_t - eta_t m_t / ||m_t||

    The step is halved when 2 E_t + L0/2 sum eta_s^2 has grown by share gap since the last halving, E_t the bound of the
    trajectory certificate for the sum of eta_s ||m_s - grad F(x_s)||. `follow` makes it known; without it no step is
    halved. It is adapted to the noise that there is, whose size need not be known.

    Assumes: samples smooth with constant L0 + L1 ||grad F||, eta L1 <= 1, F(x_1) at most gap above its infimum, and
    ranges of the samples, from the problem or from constants.
    Rate: with probability 1 - delta, for all T at once, O(log(T) T^{-1/3}) for the mean of ||grad F(x_t)|| with weights
    eta_t, times a constant of the observed noise.
    Source: docs/theory/any-schedule.md of this package.
    Departures: what is certified is looked at after every block of steps, not after every step.
    """
    who = "halving_storm"
    K = batch(who, "K", K)
    k = K if k is None else batch(who, "k", k, at_most=K)
    known = positive(who, "gap", gap), nonnegative(who, "L0", L0), positive(who, "share", share)
    schedule = Halving(weight(who, alpha), positive(who, "eta", eta), *known)
    return Algorithm(Corrected(K, k), Normalized(), schedule, who)


def _shrinking(who: str, alpha: float, eta: float, shift: float, K: int, k: int | None) -> Algorithm:
    K = batch(who, "K", K)
    k = K if k is None else batch(who, "k", k, at_most=K)
    schedule = Anytime(weight(who, alpha), positive(who, "eta", eta), shift)
    return Algorithm(Corrected(K, k), Normalized(), schedule, who)


def from_plan(plan: Planned) -> Algorithm:
    """Normalized STORM with the parameters of a plan; with the schedule of an AnytimePlan, which has a shift."""
    sizes = {"K": plan.batch, "k": plan.sub_batch}
    shift = getattr(plan, "shift", None)
    if shift is not None:
        return normalized_storm_anytime(alpha=plan.alpha, eta=plan.eta, shift=shift, **sizes)
    return normalized_storm(alpha=plan.alpha, eta=plan.eta, **sizes)
