"""Kalman-STORM: the error of the estimate is tracked, and all else follows from what is seen."""

from __future__ import annotations

from normstorm._shared.validate import batch, flag, positive

from .core import Algorithm
from .filtering import Filtered, FilteredSteps
from .geometries import Euclidean


def kalman_storm(*, scale: float = 1.0, K: int = 1, k: int | None = None, table: bool = False) -> Algorithm:
    """Kalman-STORM: K samples a step, the first k of them at two points, and nothing to tune.

        a = V/S,      V <- (1 - a) V + l^2 d^2,      m <- m + c + a (g_K(x) - m - c),   c = g_k(x) - g_k(x_prev)
        d = min{ s ||m||/(2 L) min{1, w/q}, 2 times the longest step },   w = min{1, ||m||^2/V}
        x_{t+1} = x_t - d m/||m||   if the w since the last such step add up to k/K; else x_t

    S is a running mean of ||g_K(x) - m - c||^2 that moves with x, by what a sample seen at both points says of its
    noise. L^2 is a running mean of the squared secants ||c||^2/d^2 with a memory that is long unless samples agree, and
    at least l^2, half the mean squared difference of consecutive secants; h is their mean along steps, M the plain mean
    of their squares, L^2 at most, s = min{1, max{1/8, 2 L |h|/M}}
    and q = min{1, l^2/(2 L h)}: where q = 1, a way to m = 0 would bring as much noise as it takes away. Where x stays,
    no old gradients are asked. V is checked whenever the weights since the last check add up to 1: the sum of
    g_K(x) - m - c over j steps has a mean square of j S if V is right, and V is raised where it is more than three
    times that. `Filter.alarms` counts it, and sqrt(V) is the error bar. The first L comes from two derivatives along
    m_1, for which no length is needed, so that the path follows any change of the units of x and F. `table` keeps the
    gradients of a finite sum from step n on, where one pass makes m exact; a sample is then measured as its change
    since it was kept. `scale` multiplies the first bound of d.

    Cost: 3 K + 3 k sample gradients at the first step, of which 3 k stand for derivatives, at most K + k at every
    later one, K if x did not move; with `table` n more at step n.
    Assumes: nothing; every sample gradient is differentiable twice where it begins.
    Rate: none proven before the run.
    Source: none but this catalogue.
    Departures: none.
    """
    who = "kalman_storm"
    K = batch(who, "K", K)
    k = K if k is None else batch(who, "k", k, at_most=K)
    steps = FilteredSteps(part=0.5 * positive(who, "scale", scale), share=k / K)
    return Algorithm(Filtered(K, k, flag(who, "table", table)), Euclidean(), steps, who)
