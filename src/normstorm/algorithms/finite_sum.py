"""Variance reduction for a finite sum of n components; a batch is K component numbers, with replacement."""

from __future__ import annotations

from normstorm._shared.validate import batch, flag, positive

from .core import Algorithm
from .geometries import Euclidean
from .restarts import GradientTable, PeriodicRestarts, Snapshot
from .schedules import Constant


def svrg(*, eta: float, period: int, K: int = 1) -> Algorithm:
    """SVRG: eta > 0, a snapshot s with its full gradient every `period` steps, K components a step.

        at steps 1, 1 + period, ...:  s = x_t,  mu = grad F(s)
        v_t = g(x_t; i_t) - g(s; i_t) + mu,      x_{t+1} = x_t - eta v_t

    Cost: 2 K sample gradients at every step, and n more at every snapshot.
    Assumes: a finite sum of L-smooth components.
    Rate: O(n + n^{2/3} eps^-2) sample gradients for eps.
    Source: Johnson and Zhang, "Accelerating stochastic gradient descent using predictive variance reduction" (2013),
    option I; also Reddi, Hefny, Sra, Poczos and Smola (2016).
    Departures: mini-batches with replacement; the snapshot is the last iterate, never one picked at random.
    """
    who = "svrg"
    estimator = Snapshot(batch(who, "K", K), batch(who, "period", period))
    return Algorithm(estimator, Euclidean(), Constant(1.0, positive(who, "eta", eta)), who)


def saga(*, eta: float, K: int = 1, two: bool = False) -> Algorithm:
    """SAGA: eta > 0, K components a step, the last gradient of every component is kept.

        a_i = grad f_i(x_1) for all i
        v_t = mean over i in i_t of (grad f_i(x_t) - a_i) + mean of a;      then a_j = grad f_j(x_t) for j in j_t
        x_{t+1} = x_t - eta v_t

    j_t = i_t; `two` draws j_t independently of i_t, which the non-convex theory wants.

    Cost: n + K sample gradients at the first step, K at every later one; with `two` n + 2 K and 2 K.
    Assumes: a finite sum of L-smooth components.
    Rate: none stated here; the non-convex theorem is for `two` and K = 1.
    Source: Defazio, Bach and Lacoste-Julien, "SAGA: a fast incremental gradient method" (2014); `two`: Reddi, Sra,
    Poczos and Smola, "Fast incremental method for nonconvex optimization" (2016); both with K = 1.
    Departures: mini-batches with replacement (a number drawn twice is asked twice and stored once); no proximal step.
    """
    who = "saga"
    estimator = GradientTable(batch(who, "K", K), flag(who, "two", two))
    return Algorithm(estimator, Euclidean(), Constant(1.0, positive(who, "eta", eta)), who)


def sarah(*, eta: float, period: int, K: int = 1) -> Algorithm:
    """SARAH: eta > 0, a recursive estimate that is restarted with a full gradient every `period` steps.

        at steps 1, 1 + period, ...:  v_t = grad F(x_t)
        else:                         v_t = v_{t-1} + g(x_t; i_t) - g(x_{t-1}; i_t)
        x_{t+1} = x_t - eta v_t

    Cost: n sample gradients at a restart, 2 K at any other step.
    Assumes: a finite sum, components L-smooth in mean square.
    Rate: E ||grad F|| = O(m^{-1/4}) after one epoch of m steps with eta of order 1 / (L sqrt(m)), for an iterate picked
    at random.
    Source: Nguyen, Liu, Scheinberg and Takac, "SARAH: a novel method for machine learning problems using stochastic
    recursive gradient" (2017).
    Departures: mini-batches with replacement; an epoch begins at the last iterate, where the paper picks one at random.
    """
    who = "sarah"
    estimator = PeriodicRestarts(None, batch(who, "K", K), batch(who, "period", period))
    return Algorithm(estimator, Euclidean(), Constant(1.0, positive(who, "eta", eta)), who)
