"""Bounds of the mean of E||grad F(x_t)||: expectation, expectation_adaptive (docs/theory/expectation.md)."""

from __future__ import annotations

import numpy as np

from .case import Array, Bound, Case, close_linear, deterministic
from .lyapunov import above, spread_of_rho, steady_error

TERMS = 8  # of the sum in `expectation` that are added one by one


def expectation(case: Case) -> Bound:
    """Conditioning backwards from each t, summed exactly (docs/theory/expectation.md#expectation)."""
    if case.constants.is_deterministic:
        return deterministic(case)
    B0, B1 = case.deviation
    steps = case.T - 1
    first = first_deviation(case, case.constants.first_gradient)
    total = _summed(case, first, B0 / case.spread)
    standing = np.minimum(steps * B0 / case.spread, total)
    error = {"first gradient": total - standing, "noise": standing}
    return close_linear(case, error, B1 * case.forgotten(steps) / case.alpha)


def expectation_adaptive(case: Case) -> Bound:
    """The Lyapunov function of `adaptive` in the mean: any sigma1 at any K (docs/theory/expectation.md)."""
    if case.constants.is_deterministic:
        return deterministic(case)
    error, Q = steady_error(case, omega=1.0)
    error["first gradient"] = np.maximum(*(_start(case, g) for g in (0.0, case.constants.first_gradient)))
    one_step = case.T == 1
    error = {name: np.where(one_step, 0.0, part / case.alpha) for name, part in error.items()}
    first = first_deviation(case, case.constants.first_gradient)
    error["first gradient"] = np.where(one_step, first, error["first gradient"])
    return close_linear(case, error, np.where(one_step, 0.0, Q / case.alpha))


def first_deviation(case: Case, g: float) -> Array:
    """R1: the L2 norm of the first gradient's error at gradient norm g.

    sqrt(sigma0^2 + sigma1^2 g^2) under 4B; constants declared almost sure (4A) only give sigma0 + sigma1 g.
    """
    c = case.mean
    slope = c.sigma1 * g
    noise = c.sigma0 + slope if c.noise == "almost-sure" else np.hypot(c.sigma0, slope)
    return np.asarray(noise / np.sqrt(case.K))


def _start(case: Case, g: float) -> Array:
    B0, B1 = case.deviation
    q = spread_of_rho(case)
    return above(first_deviation(case, g) ** 2, q * (B0 + B1 * g)) + q * B1 * (g / 2)


def _summed(case: Case, R1: Array, u: Array) -> Array:
    """An upper bound of the sum over j < T of f(j) = sqrt(u^2 + (R1^2 - u^2) beta^(2j)).

    The first terms are summed as they are. f falls and is convex if R1 >= u, else it rises and is concave: integrals
    from midpoint to midpoint, or by trapezoids, bound the others. An integral is u X + (...)/gamma, which cancels when
    gamma X is small; what the cancellation can lose is added back.
    """
    rate = -np.log1p(-case.alpha)

    def f(X: Array | float) -> Array:
        exponent = np.where(X == 0, 0.0, -2 * rate * X)
        return np.sqrt(u * u * -np.expm1(exponent) + R1 * R1 * np.exp(exponent))

    def integral(low: float, high: Array) -> Array:
        top, y, X = f(low), f(high), high - low
        fall = (top * top - u * u) * case.forgotten(2 * X) / np.maximum(top + y, 1e-300)
        log_part = u * np.log1p(fall / np.maximum(y + u, 1e-300))
        lost = u * X + (np.abs(fall) + np.abs(log_part)) / rate
        return u * X + (fall - log_part) / rate + 4e-15 * lost

    steps = case.T - 1
    one_by_one = R1 + steps * u
    short = sum((np.where(j < case.T, f(j), 0.0) for j in range(TERMS)), start=np.zeros(()))
    beyond = np.maximum(case.T, TERMS)
    falling = short + integral(TERMS - 0.5, beyond - 0.5)
    last = np.maximum(beyond - 1, TERMS)
    rising = short + np.where(case.T > TERMS, integral(TERMS, last) + (f(TERMS) + f(last)) / 2, 0.0)
    rising = np.minimum(np.minimum(rising, case.T * f(steps)), one_by_one)
    return np.where(case.alpha == 1, one_by_one, np.where(u <= R1, falling, rising))
