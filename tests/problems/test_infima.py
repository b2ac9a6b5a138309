"""Lower bounds of F*: every ingredient of their proofs by itself, and no search that goes below them."""

import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest

from normstorm.problems import get, infima, moments
from normstorm.problems.linear import logistic_nonconvex
from normstorm.problems.network import network_bound, tanh_network


def loss(problem, x):
    """F of LogisticNonconvex at every row of x, written anew."""
    z = x @ problem.data.T
    return np.mean(np.logaddexp(0, -z), axis=1) + problem.lam * np.sum(x**2 / (1 + x**2), axis=1)


def descended(problem, x, steps=300):
    """Gradient descent from every row of x."""
    a, lam = problem.data, problem.lam
    step = 1 / (np.linalg.eigvalsh(a.T @ a / len(a))[-1] / 4 + 2 * lam)
    for _ in range(steps):
        p = 1 / (1 + np.exp(np.clip(x @ a.T, -500, 500)))
        x = x - step * (-p @ a / len(a) + 2 * lam * x / (1 + x**2) ** 2)
    return x


def test_two_inequalities_behind_the_cells() -> None:
    """The dual of the loss in thirty digits, the chord of s/(1 + s) in exact fractions."""
    rng = np.random.default_rng(0)
    with mpmath.workdps(30):
        for z, t in zip(rng.normal(0, 4, 200), rng.uniform(0, 1, 200), strict=True):
            q = mpmath.mpf(t)
            entropy = -q * mpmath.log(q) - (1 - q) * mpmath.log(1 - q)
            assert mpmath.log1p(mpmath.exp(-mpmath.mpf(z))) >= entropy - q * mpmath.mpf(z)
    for a, b, c in (sorted(map(Fraction, row)) for row in rng.uniform(0, 9, (200, 3))):
        slope = 1 / ((1 + a) * (1 + c))
        assert b / (1 + b) >= a / (1 + a) + slope * (b - a) and c / (1 + c) == a / (1 + a) + slope * (c - a)


@pytest.mark.parametrize("options", [{}, {"lam": 0.02, "seed": 3}, {"dim": 3, "n": 40, "lam": 0.3}])
def test_a_cell_holds_nothing_below_its_bound(options: dict) -> None:
    """Random cells, and in each the best of points that descend in it (and are put back); the bound in many digits."""
    problem, rng = logistic_nonconvex(**options), np.random.default_rng(1)
    rows, lam = problem.data, problem.lam
    d = rows.shape[1]
    low = rng.choice([0.0, 0.2, 1.0], (8, d))
    high = low + rng.choice([0.1, 1.0, 30.0], (8, d))
    bounds, minimisers = infima._cells(rows, lam, low, high, np.zeros((8, d)))
    for cell in range(8):
        x = np.concatenate(
            [rng.choice([-1, 1], (40, d)) * rng.uniform(low[cell], high[cell], (40, d)), minimisers[[cell]]]
        )
        for _ in range(30):
            x = descended(problem, x, steps=1)
            x = np.where(x < 0, -1, 1) * np.clip(np.abs(x), low[cell], high[cell])
        assert loss(problem, x).min() >= bounds[cell]
    with mpmath.workdps(30):
        q = [1 / (1 + mpmath.exp(mpmath.mpf(z))) for z in rows @ minimisers[0]]
        total = mpmath.fsum(-p * mpmath.log(p) - (1 - p) * mpmath.log(1 - p) for p in q) / len(q)
        for j in range(d):
            k = 1 / ((1 + mpmath.mpf(low[0, j]) ** 2) * (1 + mpmath.mpf(high[0, j]) ** 2))
            pull = mpmath.fsum(p * mpmath.mpf(a) for p, a in zip(q, rows[:, j], strict=True)) / len(q)
            s = mpmath.mpf(low[0, j]) ** 2
            total += -(pull**2) / (4 * lam * k) + lam * (s / (1 + s) - k * s)
        assert 0 <= total - bounds[0] <= 1e-7 * (1 + abs(total)), "rounded down, and by little"


def test_cuts_cover_what_they_cut() -> None:
    rng = np.random.default_rng(2)
    low, high = rng.uniform(0, 1, (2, 50, 4))
    low, high = np.minimum(low, high), np.maximum(low, high) + rng.choice([0, 1, 500], (50, 1))
    below, above = infima._cut(low, high, rng.normal(0, 1, (50, 4)))
    changed = below != low
    assert np.all(changed.sum(axis=1) == 1) and np.array_equal(changed, above != high)
    assert np.array_equal(below[changed], above[changed]), "one half ends where the other one begins"
    assert np.all((low[changed] < below[changed]) & (below[changed] < high[changed]))


@pytest.mark.parametrize("seed", range(4))
def test_the_bound_of_two_variables_is_below_a_fine_grid(seed: int) -> None:
    problem = logistic_nonconvex(n=30, dim=2, lam=0.15, seed=seed, flips=0.3)
    axis = np.linspace(-12, 12, 161)
    grid = np.stack(np.meshgrid(axis, axis), axis=-1).reshape(-1, 2)
    least = loss(problem, descended(problem, grid[np.argsort(loss(problem, grid))[:50]])).min()
    assert least - 2e-3 <= problem.infimum <= least
    q = infima._without_regulariser(problem.data)[1]
    t = min(q.min(), 1 - q.max())
    reach = math.log(2) / (t * np.linalg.eigvalsh(problem.data.T @ problem.data / 30)[0])
    logistic = loss(problem, grid) - problem.lam * np.sum(grid**2 / (1 + grid**2), axis=1)
    assert np.linalg.norm(grid[logistic <= math.log(2)], axis=1).max() <= reach


@pytest.mark.parametrize("options", [{}, {"seed": 1}, {"lam": 1.0}, {"dim": 30}, {"n": 20, "dim": 15}, {"lam": 0.0}])
def test_no_descent_goes_below_the_logistic_bound(options: dict) -> None:
    problem, rng = logistic_nonconvex(**options), np.random.default_rng(0)
    starts = rng.standard_normal((40, problem.data.shape[1])) * 10 ** rng.uniform(-1, 1.3, (40, 1))
    least = loss(problem, descended(problem, starts)).min()
    assert infima.logistic_bound(problem.data) <= problem.infimum <= least
    if not options:
        assert problem.infimum >= least - 1e-3 and problem.constants().gap < 0.031


def network(problem, theta):
    (x, y), h = problem.data, problem.hidden
    W, v = theta[:-h].reshape(h, -1), theta[-h:]
    t = np.tanh(x @ W.T)
    slopes = ((1 - t**2) * v)[:, :, None] * x[:, None, :]
    return t @ v - y, np.concatenate([slopes.reshape(len(y), -1), t], axis=1)


def fitted(problem, theta):
    """The least F on a path of damped Gauss-Newton steps."""

    def value(theta):
        return np.mean(network(problem, theta)[0] ** 2) / 2 + problem.rho / 4 * np.sum(theta**2) ** 2

    damping, least = 1e-2, value(theta)
    for _ in range(60):
        e, J = network(problem, theta)
        r2, one = theta @ theta, np.eye(len(theta))
        gradient = J.T @ e / len(e) + problem.rho * r2 * theta
        hessian = J.T @ J / len(e) + problem.rho * (r2 * one + 2 * np.outer(theta, theta))
        moved = theta - np.linalg.solve(hessian + damping * one, gradient)
        better = value(moved) < least
        damping *= 0.3 if better else 4
        if better:
            theta, least = moved, value(moved)
    return least


@pytest.mark.parametrize("options", [{}, {"rho": 0.02, "seed": 2}, {"hidden": 8, "inputs": 4}, {"inputs": 1, "n": 7}])
def test_no_network_goes_below_its_bound(options: dict) -> None:
    problem, rng = tanh_network(**options), np.random.default_rng(0)
    size = problem.hidden * (problem.data[0].shape[1] + 1)
    least = min(fitted(problem, rng.standard_normal(size) * scale) for scale in (0.3, 0.7, 0.7, 2.0))
    assert 0 < problem.infimum <= least
    if not options:
        assert problem.infimum >= least - 0.011 and problem.constants().gap < 0.218


def test_the_networks_slope_in_one_direction() -> None:
    """|E p tanh(w'x)| <= ||w|| S for random p and w; and a bound of nothing is 0."""
    rng = np.random.default_rng(4)
    for _ in range(200):
        x, p = rng.standard_normal((30, 3)) / 2, rng.standard_normal(30) + rng.normal()
        w = rng.standard_normal(3) * 10 ** rng.uniform(-2, 1)
        S = math.sqrt(np.mean(abs(p)) * np.linalg.eigvalsh((x.T * abs(p)) @ x / 30)[-1]) + np.linalg.norm(p @ x / 30)
        assert abs(np.mean(p * np.tanh(x @ w))) <= np.linalg.norm(w) * S / 2
    assert network_bound(np.ones((3, 2)), np.zeros(3), 1.0) == 0
    assert get("tanh-network").infimum_kind == "lower bound"


def test_the_minorant_of_the_bounded_loss() -> None:
    """In exact fractions: phi(v) >= ((1 + 2 u) v - v^2)/(1 + u)^2, with equality at v = u."""
    rng = np.random.default_rng(6)
    for u, v in (map(Fraction, row) for row in rng.exponential(3, (200, 2))):
        assert v / (1 + v) >= ((1 + 2 * u) * v - v**2) / (1 + u) ** 2
        assert u / (1 + u) == ((1 + 2 * u) * u - u**2) / (1 + u) ** 2


@pytest.mark.parametrize("seed", range(3))
def test_fourth_moments_in_every_direction(seed: int) -> None:
    """No direction, random or climbed, has a larger fourth moment than kappa says, or a smaller form than the least."""
    rng = np.random.default_rng(seed)
    rows, weights, squared = rng.standard_t(4, (60, 4)), rng.uniform(0.5, 2, 60), rng.uniform(0.1, 1, 60)
    found = moments.form(rows, weights, squared)
    matrix = (rows * weights[:, None]).T @ rows / 60
    for xi in rng.standard_normal((200, 4)):
        for _ in range(30):  # the fixed points of this map are the critical ones
            xi = np.linalg.solve(matrix, rows.T @ (squared * (rows @ xi) ** 3) / 60)
            xi = xi / math.sqrt(xi @ matrix @ xi)
        assert np.mean(squared * (rows @ xi) ** 4) <= found.kappa
        assert xi @ matrix @ xi / xi[-1] ** 2 >= found.least


@pytest.mark.parametrize("seed", range(3))
def test_no_residuals_go_below_their_moment_bound(seed: int) -> None:
    """The mean of r^2/(1 + r^2), from many starts at all scales; wrong ingredients make the bound 0 or too large."""
    rng = np.random.default_rng(seed)
    a = rng.standard_normal((80, 3)) * 10 ** rng.uniform(-1, 1, 3)
    b = a @ rng.standard_normal(3) * 0.2 + rng.standard_t(3, 80)
    least = 1.0
    for start in rng.standard_normal((60, 3)) * 10 ** rng.uniform(-2, 2, (60, 1)):
        x = start
        for _ in range(60):  # reweighted least squares
            w = 1 / (1 + (a @ x - b) ** 2) ** 2
            x = np.linalg.solve((a * w[:, None]).T @ a + 1e-12 * np.eye(3), a.T @ (w * b))
        r = np.stack([a @ start - b, a @ x - b])
        least = min(least, float(np.mean(r**2 / (1 + r**2), axis=1).min()))
    assert 0.05 < moments.moment_bound(a, b) <= least
    assert moments.moment_bound(np.ones((5, 2)), np.ones(5)) == 0 == moments.moment_bound(a[:, [0] * 20], b)
    for steep in (np.column_stack([a, a[:, 0] + 1e-8 * b]), a + 1e6, 1e-200 * a, 1e160 * a):
        assert moments.moment_bound(steep, b) == 0, "rounding would not be covered"


def test_the_bound_of_the_diabetes_data() -> None:
    """At random points of all scales nothing is below it, and the gap is three quarters of what it was."""
    problem, rng = get("dro-regression"), np.random.default_rng(0)
    a, b = problem.data
    assert 0.13 < problem.infimum < 0.2644 and problem.constants().gap < 0.285
    x = rng.standard_normal((400, 10)) * 10 ** rng.uniform(-2, 3, (400, 1))
    r = x @ a.T - b
    assert np.mean(r**2 / (1 + r**2), axis=1).min() >= problem.infimum
