"""High probability through a Lyapunov function of the error: lyapunov, adaptive, adaptive_tangent, adaptive_convex.

V_t = sqrt(||eps_t||^2 + rho_t^2) falls by about alpha ||eps_{t-1}|| a step, so that the errors' norms sum up without
the supremum of the gradient norm in the leading terms. Statements and proofs: docs/theory/lyapunov.md. `lam` is the
free parameter of Ville's inequality, fixed before the run.
"""

from __future__ import annotations

import numpy as np

from .case import TOTAL_RAISED, Array, Bound, Case, Parts, close_linear, deterministic, ratio
from .suprema import kearns_saul


def lyapunov(case: Case, lam: Array) -> Bound:
    """rho constant, fitted to the noise at a zero gradient (docs/theory/lyapunov.md#lyapunov)."""
    return _weighted(case, lam, omega=0.0)


def adaptive(case: Case, lam: Array) -> Bound:
    """rho_t follows the noise level B0 + B1 g_t: sigma1 of any size (docs/theory/lyapunov.md#adaptive)."""
    return _weighted(case, lam, omega=1.0)


def linear_error(case: Case, lam: Array) -> tuple[Parts, Array, Array]:
    """(P by its parts, Q0, Q1) of `adaptive`: sum ||eps_t|| <= P + (Q0 + Q1 G) sum g_t while g_t <= G."""
    if case.constants.is_deterministic:
        return {}, np.zeros(()), np.zeros(())
    return _per_weight(case, *_weighted_error(case, lam, omega=1.0), case.alpha)


def _weighted(case: Case, lam: Array, omega: float) -> Bound:
    if case.constants.is_deterministic:
        return deterministic(case)
    return _close(case, *_weighted_error(case, lam, omega), case.alpha)


def _weighted_error(case: Case, lam: Array, omega: float) -> tuple[Parts, Array, Array]:
    """alpha times P, Q0 and Q1."""
    steps = case.T - 1
    a0, a1 = case.proxy
    error, Q = steady_error(case, omega)
    error["first gradient"] = first_step(case, lam, omega)
    error["confidence"] = lam / 2 * steps * a0 * a0 + case.log_inverse_delta / lam
    return error, Q + lam * a0 * a1, lam / 2 * a1 * a1


def adaptive_tangent(case: Case, lam: Array) -> Bound:
    """`adaptive` with V's noise bounded along a tangent (docs/theory/lyapunov.md#adaptive_tangent).

    Ratios that vary with the gradient norm are replaced by their larger end.
    """
    if case.constants.is_deterministic:
        return deterministic(case)
    A, (_, chi) = case.radius, _scales(case)
    proxies = _proxies(case, least=1.0)
    return _tangent(case, lam, proxies, [(chi * A[0] / 4, chi * A[1] / 4), _smooth_square(case, chi)])


def adaptive_convex(case: Case, lam: Array) -> Bound:
    """`adaptive_tangent` with the same ratios split by convexity, hence never above it.

    sqrt(ks(r, q^2)) is convex and homogeneous in (r, q) for q/r in [1/4, 1], and R^2/c in (R, c): both are at most
    their value at a zero gradient plus g times their slope (docs/theory/lyapunov.md#adaptive_convex).
    """
    if case.constants.is_deterministic:
        return deterministic(case)
    proxies = _proxies(case, least=0.25)
    scale, chi = _scales(case)
    squares = [scale * A * ratio(A, B) / 4 for A, B in zip(case.radius, case.deviation, strict=True)]
    return _tangent(case, lam, proxies, [(squares[0], squares[1]), _smooth_square(case, chi)])


def _tangent(case: Case, lam: Array, proxies: list[Array], squares: list[tuple[Array, Array]]) -> Bound:
    """Close the tangent's bound: `proxies` belong to the linear part, `squares` are choices for the quadratic one."""
    p0, p1 = proxies
    scale, _ = _scales(case)
    absorbed = lam / 4 * p0 * case.beta * scale * ratio(p0, case.deviation[0]) * (1 + TOTAL_RAISED)
    bounds = []
    for s0, s1 in squares:
        error, Q = steady_error(case, omega=1.0)
        error["first gradient"] = first_step(case, lam, omega=1.0)
        error["confidence"] = lam / 2 * (case.T - 1) * s0 * (p0 + s0) + case.log_inverse_delta / lam
        Q0 = Q + lam / 2 * (2 * p0 * p1 + p0 * s1 + p1 * s0 + 2 * s0 * s1)
        Q1 = lam / 2 * (p1 * p1 + p1 * s1 + s1 * s1)
        bounds.append(_close(case, error, Q0, Q1, case.alpha - absorbed))
    return _smaller(*bounds)


def _proxies(case: Case, least: float) -> list[Array]:
    """(p0, p1): the root of the proxy of D_t along a unit vector is at most p0 + p1 g_t."""
    sure, mean = case.constants, case.mean
    step, fresh = case.beta * case.eta / case.k, case.alpha / case.K
    later = [(fresh * s, fresh * m) for s, m in ((sure.sigma0, mean.sigma0), (sure.sigma1, mean.sigma1))]
    smooth = ((sure.L0, mean.L0), (sure.L1, mean.L1))
    first = [(2 * step * L + r, step * M + q) for (L, M), (r, q) in zip(smooth, later, strict=True)]
    squares = [_split(first, least), _split(later, least) if sure.mean_square else [r * r for r, _ in later]]
    return [np.sqrt(case.k * a + (case.K - case.k) * b) for a, b in zip(*squares, strict=True)]


def _split(pieces: list[tuple[Array, Array]], least: float) -> list[Array]:
    """Squares of f0, f1 with r sqrt(ks(q^2/r^2)) <= f0 + f1 g, from (r, q) at a zero gradient and their slopes.

    A ratio q/r below `least` is raised to it, or to the other ratio if that is smaller still.
    """
    ratios = [ratio(q, r) for r, q in pieces]
    floor = np.minimum(np.maximum(*ratios), least)
    return [r * r * kearns_saul(np.maximum(s, floor) ** 2) for (r, _), s in zip(pieces, ratios, strict=True)]


def _scales(case: Case) -> tuple[Array, Array]:
    """c_t/mu_t = sqrt((1 - beta^2)/(1 + 2 beta)), and chi: R_t <= chi mu_t whatever the gradient."""
    scale = case.spread / np.sqrt(1 + 2 * case.beta)
    ratios = [ratio(A, B) for A, B in zip(case.radius, case.deviation, strict=True)]
    return scale, np.maximum(*ratios) * scale


def _smooth_square(case: Case, chi: Array) -> tuple[Array, Array]:
    """The quadratic part by bounded differences: better than its range when K is large."""
    a0, a1 = case.proxy
    return chi * a0, chi * a1


def steady_error(case: Case, omega: float) -> tuple[Parts, Array]:
    """alpha times the parts of sum ||eps_t|| that no probability enters, and alpha times their slope in sum g_t."""
    c = case.mean
    B0, B1 = case.deviation
    q = spread_of_rho(case)
    root = np.sqrt(case.beta * (1 + case.alpha))
    parts = {
        "noise": (case.T - 1) * case.alpha * B0 / case.spread + q * B0 * case.alpha**2 / (1 + root),
    }
    Q = case.alpha * omega * B1 / case.spread + (1 - omega) * B1
    if omega > 0:
        parts["drift"] = q * omega * B1 * case.eta * (case.T - 1) * (c.L0 / 2)
        Q = Q + q * omega * B1 * (case.eta * (c.L1 / 2) + np.maximum(0.5 - root, 0.0))
    return parts, Q


def first_step(case: Case, lam: Array, omega: float) -> Array:
    """J: how far V_1 starts above rho_1, plus rho's own start; the smallest of three valid forms.

    J is convex in ||grad F(x1)||, of which only an upper bound is known: its largest value is at an end.
    """
    g1 = case.constants.first_gradient
    at_zero, at_g1 = (_first_step_forms(case, lam, omega, g) for g in (0.0, g1))
    surely, in_mean, ranged = (np.maximum(a, b) for a, b in zip(at_zero, at_g1, strict=True))
    return np.minimum(surely, np.minimum(in_mean, ranged))


def _first_step_forms(case: Case, lam: Array, omega: float, g: float) -> tuple[Array, Array, Array]:
    B0, B1 = case.deviation
    q = spread_of_rho(case)
    n = case.constants.sigma0 + case.constants.sigma1 * g
    rho = q * (B0 + omega * B1 * g)
    start = q * omega * B1 * (g / 2)
    surely = above(n * n, rho)
    in_mean = above(case.first_square(g), rho)
    return (
        surely + start,
        in_mean + lam * n * n / (2 * case.K) + start,
        in_mean + lam * surely * surely / 8 + start,
    )


def spread_of_rho(case: Case) -> Array:
    """q = sqrt(beta (2 + beta)/(1 - beta^2)), the ratio of rho to the noise level."""
    return np.sqrt(case.beta * (2 + case.beta)) / case.spread


def above(square: Array | float, rho: Array) -> Array:
    """sqrt(square + rho^2) - rho without cancellation."""
    bottom = np.sqrt(square + rho * rho) + rho
    return np.where(bottom > 0, square / np.where(bottom > 0, bottom, 1.0), 0.0)


def _close(case: Case, error: Parts, Q0: Array, Q1: Array, weight: Array) -> Bound:
    return close_linear(case, *_per_weight(case, error, Q0, Q1, weight))


def _per_weight(case: Case, error: Parts, Q0: Array, Q1: Array, weight: Array) -> tuple[Parts, Array, Array]:
    """Divide by what multiplies sum ||eps_t||; a run of one step has no error but the first gradient's."""
    one_step = case.T == 1
    positive = np.where(weight > 0, weight, np.nan)
    error = {name: np.where(one_step, 0.0, part / positive) for name, part in error.items()}
    error["first gradient"] = np.where(one_step, case.first_noise, error["first gradient"])
    return error, np.where(one_step, 0.0, Q0 / positive), np.where(one_step, 0.0, Q1 / positive)


def _smaller(a: Bound, b: Bound) -> Bound:
    def pick(x: Array | None, y: Array | None) -> Array:
        assert x is not None and y is not None
        return np.where(a.value <= b.value, x, y)

    return Bound(
        pick(a.value, b.value),
        {name: pick(a.parts[name], b.parts[name]) for name in a.parts},
        pick(a.scale, b.scale),
        pick(a.descent, b.descent),
        pick(a.error, b.error),
        pick(a.slope, b.slope),
    )
