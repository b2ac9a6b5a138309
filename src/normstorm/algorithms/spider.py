"""SPIDER and PAGE: recursive estimates that are restarted, every q steps or by a coin.

    v_t = g(x_t; S1 samples)                                  at a restart; S1 = None: grad F(x_t) of a finite sum of n
    v_t = v_{t-1} + g(x_t; xi_t) - g(x_{t-1}; xi_t)           else, S2 samples

Steps are counted from 1: restarts are at steps 1, 1 + q, 1 + 2 q, ...

Cost: S1 sample gradients at a restart (n if S1 is None), 2 S2 at any other step.
"""

from __future__ import annotations

import math
from typing import Any

from normstorm._shared.validate import batch, flag, fraction, nonnegative, positive, traced

from .core import Algorithm
from .geometries import Capped, Euclidean, Normalized, Powered, Stopping
from .restarts import Restarted, Tossed, Whole
from .schedules import Constant


def spider_1(*, eps: float, L: float, S1: int | None, S2: int, q: int, n0: float = 1.0, stop: float = 0.0) -> Algorithm:
    """SPIDER, option I: eps, L, n0 > 0, stop >= 0, S1 samples at restarts, S2 else, period q.

        if ||v_t|| <= 2 stop: return x_t
        x_{t+1} = x_t - eps / (L n0) v_t / ||v_t||

    After the return the path stays and nothing is asked.

    Assumes: samples L-smooth in mean square, bounded variance.
    Rate: O(sigma^2 eps^-2 + L gap sigma eps^-3) samples for eps, with S1 of order eps^-2.
    Source: Fang, Li, Lin and Zhang, "SPIDER: near-optimal non-convex optimization via stochastic path-integrated
    differential estimator" (2018), Algorithm 1, option I (stop is its epsilon tilde).
    Departures: sizes are given as integers, not computed from eps.
    """
    who = "spider_1"
    geometry = Stopping(Normalized(), 2 * nonnegative(who, "stop", stop))
    eta = positive(who, "eps", eps) / (positive(who, "L", L) * positive(who, "n0", n0))
    return Algorithm(_restarted(who, S1, S2, q), geometry, Constant(1.0, eta), who)


def spider_2(*, eps: float, L: float, S1: int | None, S2: int, q: int, n0: float = 1.0) -> Algorithm:
    """SPIDER, option II: eps, L, n0 > 0, S1 samples at restarts, S2 else, period q.

        x_{t+1} = x_t - min{ eps / (L n0 ||v_t||), 1 / (2 L n0) } v_t

    Assumes: samples L-smooth in mean square, bounded variance.
    Rate: O(sigma^2 eps^-2 + L gap sigma eps^-3) samples for eps, with S1 of order eps^-2.
    Source: Fang, Li, Lin and Zhang, "SPIDER: near-optimal non-convex optimization via stochastic path-integrated
    differential estimator" (2018), Algorithm 1, option II.
    Departures: sizes are given as integers, not computed from eps.
    """
    who = "spider_2"
    curvature = positive(who, "L", L) * positive(who, "n0", n0)
    geometry = Capped(1 / (2 * curvature), positive(who, "eps", eps) / curvature)
    return Algorithm(_restarted(who, S1, S2, q), geometry, Constant(1.0, 1.0), who)


def l0l1_spider(*, eps: float, L0: float, L1: float, S1: int | None, S2: int, q: int) -> Algorithm:
    """(L0, L1)-SPIDER: eps, L0 > 0, L1 >= 0, S1 samples at restarts, S2 else, period q.

        x_{t+1} = x_t - min{ 1 / (2 L0), eps / (L0 ||v_t||), eps / (L1 ||v_t||^2) } v_t

    Assumes: samples smooth in mean square with constant L0 + L1 ||grad F||, bounded variance.
    Rate: O(eps^-3) samples for eps with batches that grow with 1 / eps; O(n + sqrt(n) eps^-2) for a finite sum. With
    the authors' numbers in the minimum.
    Source: Reisizadeh, Li, Das and Jadbabaie, "Variance-reduced clipping for non-convex optimization" (2023).
    Departures: the three numbers 1/2, 1, 1 in the minimum are ours; that it has a constant, a 1 / ||v|| and a
    1 / ||v||^2 entry agrees with the authors' code.
    """
    who = "l0l1_spider"
    eps, L0, L1 = positive(who, "eps", eps), positive(who, "L0", L0), nonnegative(who, "L1", L1)
    geometry = Capped(1 / (2 * L0), eps / L0, eps / L1 if traced(L1) or L1 > 0 else math.inf)
    return Algorithm(_restarted(who, S1, S2, q), geometry, Constant(1.0, 1.0), who)


def symmetric_spider(*, eta: float, S1: int | None, S2: int, q: int, power: float = 1.0) -> Algorithm:
    """SPIDER for alpha-symmetric smoothness: eta > 0, power in [0, 1], S1 samples at restarts, S2 else, period q.

        x_{t+1} = x_t - eta v_t / ||v_t||^power

    Assumes: alpha-symmetric smoothness, which contains L0 + L1 ||grad F||, and noise that may grow with ||grad F||.
    Rate: O(eps^-3) samples for eps with power = 1 and batches that grow with 1 / eps.
    Source: Chen, Zhou, Liang and Lu, "Generalized-smooth nonconvex optimization is as efficient as smooth nonconvex
    optimization" (2023), with power = 1.
    Departures: other powers are in experiments only; a zero estimate means "stay".
    """
    who = "symmetric_spider"
    geometry = Powered(fraction(who, "power", power))
    return Algorithm(_restarted(who, S1, S2, q), geometry, Constant(1.0, positive(who, "eta", eta)), who)


def beta_gd(*, eta: float, power: float = 1.0) -> Algorithm:
    """Gradient descent divided by a power of the gradient norm: eta > 0, power (their beta) in [0, 1].

        x_{t+1} = x_t - eta grad F(x_t) / ||grad F(x_t)||^power

    Cost: n sample gradients at every step, the full gradient of a finite sum of n.
    Assumes: alpha-symmetric smoothness with alpha <= power; no noise.
    Rate: O(eps^-2) iterations for eps, with eta of order eps^power.
    Source: Chen, Zhou, Liang and Lu, "Generalized-smooth nonconvex optimization is as efficient as smooth nonconvex
    optimization" (2023).
    Departures: a zero gradient means "stay".
    """
    who = "beta_gd"
    return Algorithm(Whole(), Powered(fraction(who, "power", power)), Constant(1.0, positive(who, "eta", eta)), who)


def page(*, eta: float, chance: float, S1: int | None, S2: int, normalized: bool = False) -> Algorithm:
    """PAGE: eta > 0, a restart with probability `chance` in [0, 1], with S1 samples, else S2 samples.

        x_{t+1} = x_t - eta v_t          normalized: x_t - eta v_t / ||v_t||

    The first step is a restart; a coin, drawn for each seed on its own, decides about every later one.

    Cost: S1 sample gradients (n if S1 is None) at step 1; later S1 with probability `chance` and 2 S2 else.
    Assumes: samples L-smooth in mean square, bounded variance.
    Rate: O(eps^-3) samples for eps. None known for the normalised step.
    Source: Li, Bao, Zhang and Richtarik, "PAGE: a simple and optimal probabilistic gradient estimator for nonconvex
    optimization" (2021), Algorithm 1.
    Departures: the estimate of x_{T+1} is not asked; the normalised step is ours.
    """
    who = "page"
    estimator = Tossed(_large(who, S1), batch(who, "S2", S2), fraction(who, "chance", chance))
    geometry: Any = Normalized() if flag(who, "normalized", normalized) else Euclidean()
    return Algorithm(estimator, geometry, Constant(1.0, positive(who, "eta", eta)), who)


def _large(who: str, S1: int | None) -> int | None:
    return None if S1 is None else batch(who, "S1", S1)


def _restarted(who: str, S1: int | None, S2: int, q: int) -> Restarted:
    return Restarted(_large(who, S1), batch(who, "S2", S2), batch(who, "q", q))
