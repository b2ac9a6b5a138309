"""High probability through the supremum of the gradient norm: union, ville, ville2; and almost surely: sure, start.

On {g_s <= G for all s} the increments D_s of the estimator's error are bounded, and the sum of the errors' norms is
at most S(G); the loop is closed by a Delta with Psi(Delta) <= Delta. Statements and proofs:
docs/theory/high-probability.md.
"""

from __future__ import annotations

import numpy as np

from .case import (
    TOTAL_RAISED,
    Array,
    Bound,
    Case,
    Parts,
    at_most_one,
    close_linear,
    close_sup,
    deterministic,
    ratio,
)


def union(case: Case) -> Bound:
    """Pinelis' inequality at every t <= T, and a union bound over t: carries log(2T/delta)."""
    if case.constants.is_deterministic:
        return deterministic(case)
    log_term = case.log_inverse_delta + np.log(2 * case.T)
    factor = case.T * np.sqrt(2 * log_term) / case.spread
    return close_sup(case, _first_gradient(case), lambda G: {"noise": factor}, constant=True)


def ville(case: Case, share: Array) -> Bound:
    """Ville's inequality for the squared error, all t at once: no log T (docs/theory/high-probability.md#ville).

    `share` is the part of delta spent on the sum of squares when K > 1; 0 spends nothing and bounds each square by
    its largest value. At K = 1 nothing is to be gained from it and it is ignored.
    """
    if case.constants.is_deterministic:
        return deterministic(case)
    share = np.where(case.K == 1, 0.0, share)

    def factors(G: Array) -> Parts:
        z, n, radius = _pieces(case, G)
        variance = (ratio(case.norm(z, n), radius)) ** 2
        squares = _poisson_mean(variance, _second_log(case, share) / case.T)
        return _split_factor(case, case.T, squares, variance, share)

    return close_sup(case, _first_gradient(case), factors, constant=bool(np.all(case.K == 1)))


def ville2(case: Case, share: Array) -> Bound:
    """`ville` with second moments: Bernoulli moments for the squares, Kearns-Saul for the scalar products.

    Statement and proof: docs/theory/high-probability.md#ville2. `share` as in `ville`, here useful at K = 1 too.
    """
    if case.constants.is_deterministic:
        return deterministic(case)
    steps = case.T - 1

    def factors(G: Array) -> Parts:
        z, n, radius = _pieces(case, G)
        change, noise = _in_mean_square(case, G)
        mean = np.minimum(ratio(case.norm(change, noise), radius) ** 2, 1.0)
        squares = bernoulli_mean(mean, _second_log(case, share) / np.maximum(steps, 1))
        rest, quiet = case.alpha * n / case.K, case.alpha * noise / case.K
        r, q = case.beta * z / case.k + rest, case.beta * change / case.k + quiet
        first, later = (kearns_saul(ratio(b, a) ** 2) * a * a for a, b in ((r, q), (rest, quiet)))
        proxy = (case.k * first + (case.K - case.k) * later) / np.where(radius > 0, radius, 1.0) ** 2
        return _split_factor(case, steps, squares, proxy, share)

    # A case with T = 1 has no factor at all: the first gradient is the whole error.
    return close_sup(case, _first_gradient(case), factors, constant=case.constants.is_plain)


def sure(case: Case) -> Bound:
    """||eps_t|| <= beta ||eps_{t-1}|| + A0 + A1 g_t surely: no probability is spent (docs/theory/lyapunov.md#sure)."""
    if case.constants.is_deterministic:
        return deterministic(case)
    A0, A1 = case.radius
    memory = case.forgotten(case.T - 1) / case.alpha
    error = _first_gradient(case) | {"noise": (case.T - 1) * A0 * memory}
    return close_linear(case, error, A1 * memory)


def from_start(case: Case) -> Bound:
    """g_1 and what a path of T - 1 steps can add to it, surely (docs/theory/lyapunov.md#start)."""
    c, g1 = case.mean, case.constants.first_gradient
    slope, steps = c.L0 + c.L1 * g1, case.T - 1
    compound = np.exp(np.maximum(steps - 1, 0) * np.log1p(case.eta * c.L1))
    travel = case.eta * steps * slope / 2 * compound if slope > 0 else np.zeros(np.shape(case.eta))
    parts = {"start": np.asarray(g1), "travel": travel}
    value = np.where(at_most_one(case.eta, case.constants.L1), (g1 + travel) * (1 + TOTAL_RAISED), np.inf)
    return Bound(value, parts, np.ones(value.shape), np.ones(value.shape))


def kearns_saul(ratio: Array) -> Array:
    """Sub-Gaussian proxy of Bennett's two-point law on {-m/r, r}, over r^2, for ratio = m/r^2 in [0, 1].

    (1 - ratio^2)/(2 log(1/ratio)): 0 at 0, 1 at 1; raised by 1e-9 and cut at 1.
    """
    inside = (ratio > 0) & (ratio < 1)
    safe = np.where(inside, ratio, 0.5)
    logarithm = np.where(safe < 0.5, np.log(safe), np.log1p(safe - 1))
    value = (1 - safe) * (1 + safe) / (-2 * logarithm) * (1 + 1e-9)
    return np.where(inside, np.minimum(value, 1.0), np.where(ratio > 0, 1.0, 0.0))


def bernoulli_mean(p: Array, c: Array) -> Array:
    """inf over theta > 0 of (log(1 + p (e^theta - 1)) + c)/theta, cut at 1.

    It is the largest x with kl(x, p) <= c. Newton's method for that x gives a theta, and the expression is then
    evaluated at this theta: every theta is valid, so an inexact one costs tightness, never truth.
    """
    inside = (p > 0) & (p < 1) & (c > 0)
    inside &= c < -np.log(np.where(inside, p, 0.5))
    p_safe, c_safe = np.where(inside, p, 0.5), np.where(inside, c, 0.5)
    log_p, log_rest = np.log(p_safe), np.log1p(-p_safe)
    top = np.minimum(1 - 1e-12 * (1 - p_safe), 1 - 2.0**-52)
    # Both starts are at least x: kl(x, p) >= (x-p)^2/(2x), and for p >= 1/2 kl(x, p) >= (x-p)^2/(2p(1-p)).
    wide = p_safe + c_safe + np.sqrt(c_safe * (c_safe + 2 * p_safe))
    tight = np.where(p_safe >= 0.5, p_safe + np.sqrt(2 * p_safe * (1 - p_safe) * c_safe), wide)
    x = np.minimum(np.minimum(wide, tight), top)
    theta = np.maximum(np.log(x) - log_p - np.log1p(-x) + log_rest, 1e-9)
    for _ in range(4):  # kl(x, p) = x theta + log((1-x)/(1-p)), convex in x: Newton from above
        divergence = x * theta + np.log1p(-x) - log_rest
        x = np.clip(x - (divergence - c_safe) / theta, p_safe * (1 + 1e-12), top)
        theta = np.maximum(np.log(x) - log_p - np.log1p(-x) + log_rest, 1e-9)
    moment = np.where(
        theta < 1,
        np.log1p(p_safe * np.expm1(np.minimum(theta, 1.0))),
        np.logaddexp(log_rest, log_p + theta),
    )
    value = np.minimum((moment + c_safe) / theta * (1 + 1e-13), 1.0)
    return np.where(inside, value, np.where((p <= 0) & (c <= 0), 0.0, 1.0))


def _poisson_mean(p: Array, c: Array) -> Array:
    """inf over theta > 0 of (p (e^theta - 1) + c)/theta, cut at 1; any theta is valid, as in `bernoulli_mean`."""
    inside = (p > 0) & np.isfinite(c) & (c > 0)
    p_safe, c_safe = np.where(inside, p, 0.5), np.where(inside, c, 1.0)
    x = p_safe + c_safe + np.sqrt(c_safe * (c_safe + 2 * p_safe))
    for _ in range(6):
        theta = np.log(x / p_safe)
        divergence = x * theta - (x - p_safe)
        x = np.maximum(x - (divergence - c_safe) / np.where(theta > 0, theta, 1.0), p_safe * (1 + 1e-12))
    theta = np.clip(np.log(x / p_safe), 1e-9, 500.0)
    value = np.minimum((p_safe * np.expm1(theta) + c_safe) / theta * (1 + 1e-13), 1.0)
    return np.where(inside, value, 1.0)


def _first_gradient(case: Case) -> Parts:
    return {"first gradient": case.first_noise * case.forgotten(case.T) / case.alpha}


def _pieces(case: Case, G: Array) -> tuple[Array, Array, Array]:
    """(z, n, R) at gradient norm G: radii of a gradient difference, of a gradient, and of D."""
    c = case.constants
    z = 2 * case.eta * (c.L0 + c.L1 * G)
    n = c.sigma0 + c.sigma1 * G
    return z, n, case.beta * z + case.alpha * n


def _in_mean_square(case: Case, G: Array) -> tuple[Array, Array]:
    """L2 norms of a gradient difference and of a gradient's noise at gradient norm G."""
    c = case.mean
    noise = c.sigma0 + c.sigma1 * G if case.constants.mean_square is None else np.hypot(c.sigma0, c.sigma1 * G)
    return case.eta * (c.L0 + c.L1 * G), noise


def _second_log(case: Case, share: Array) -> Array:
    """log(1/delta_2); at beta = 0 the scalar products vanish and the squares may spend all of delta."""
    spent = np.where(case.beta == 0, 1.0, share)
    return case.log_inverse_delta - np.log(spent)


def _split_factor(case: Case, steps: Array, squares: Array, proxy: Array, share: Array) -> Parts:
    """S(G)/R(G) = sqrt(steps/(1-beta^2)) (sqrt(W + b) + sqrt(b)) in units of R, W = steps x squares, b the proxy's.

    Split into what an error without deviations would give and the price of confidence.
    """
    first_log = case.log_inverse_delta - np.where(case.beta == 0, 0.0, np.log1p(-share))
    b = 2 * case.beta**2 * proxy * first_log / case.spread**2
    W = steps * squares
    lead = np.sqrt(steps) / case.spread
    noise = lead * np.sqrt(W)
    return {"noise": noise, "confidence": lead * (np.sqrt(W + b) + np.sqrt(b)) - noise}
