"""The scalar functions inside `ville`, `ville2` and the tangent certificates, against formulas and brute force."""

import math

import numpy as np
import pytest
from mpmath import mp, mpf

from normstorm.theory.certificates.suprema import _poisson_mean, bernoulli_mean, kearns_saul


def test_kearns_saul_against_its_formula_and_its_limits():
    assert kearns_saul(np.array([0.0, 1.0])).tolist() == [0.0, 1.0]
    ratios = np.concatenate([np.logspace(-12, -0.01, 200), 1 - np.logspace(-1, -15, 60)])
    for ratio, value in zip(ratios, kearns_saul(ratios), strict=True):
        truth = (1 - mpf(ratio) ** 2) / (2 * mp.log(1 / mpf(ratio)))
        assert truth <= value <= min(mpf(1), truth * (1 + mpf("2e-9"))), ratio


@pytest.mark.parametrize("ratio", [1e-3, 0.1, 0.25, 0.5, 0.9, 0.999, 1.0])
def test_kearns_saul_is_a_proxy_and_touches(ratio):
    """log E exp(lam X) <= lam^2 ks/2 for the law on {-ratio, 1} of mean zero, with equality at one lam."""
    chance = ratio / (1 + ratio)
    touching = 2 * math.log(1 / ratio) / (1 + ratio)
    lam = np.unique(np.append(np.logspace(-3, 2, 4001), touching or 1e-3))
    moment = np.logaddexp(math.log1p(-chance) - lam * ratio, math.log(chance) + lam)
    proxy = float(kearns_saul(np.array(ratio)))
    assert np.all(moment <= lam**2 * proxy / 2 + 1e-15)
    assert np.max(2 * moment / lam**2) > proxy * (1 - 1e-3 if ratio == 1 else 1 - 1e-8)


def test_the_root_of_the_proxy_is_subadditive():
    """What adaptive_convex rests on, for radii r and q in [r/4, r]; it fails for smaller q."""
    rng = np.random.default_rng(10)
    r, share = 10 ** rng.uniform(-4, 4, (2, 20_000)), rng.uniform(0.25, 1, (2, 20_000))

    def root(r, q):
        return r * np.sqrt(kearns_saul((q / r) ** 2))

    apart, together = root(r, share * r).sum(axis=0), root(r.sum(axis=0), (share * r).sum(axis=0))
    assert np.all(together <= apart * (1 + 1e-9)) and np.min(together / apart) < 0.99
    assert root(2.0, 0.16 + 0.06) > (root(1.0, 0.16) + root(1.0, 0.06)) * 1.001


def test_the_series_behind_the_subadditive_root_changes_sign_once():
    """Coefficients of b^n/n! in (6 - b) e^2b - (12 + 2b + 3b^2) e^b + 6 + 3b + b^2, and its value at 4 log 4."""

    def coefficient(n: int) -> int:
        tail = {0: 6, 1: 3, 2: 2}.get(n, 0)
        return 6 * 2**n - (n * 2**n) // 2 - 12 - 2 * n - 3 * n * (n - 1) + tail

    signs = [np.sign(coefficient(n)) for n in range(200)]
    assert signs[:4] == [0] * 4 and set(signs[4:12]) == {1} and set(signs[12:]) == {-1}
    b = 4 * math.log(4)
    series = math.fsum(coefficient(n) * b**n / math.factorial(n) for n in range(150))
    closed = (6 - b) * math.exp(2 * b) - (12 + 2 * b + 3 * b * b) * math.exp(b) + 6 + 3 * b + b * b
    assert series == pytest.approx(closed, rel=1e-6) and closed > 300


def smallest_over_theta(moment, c: float) -> float:
    """Brute force: a grid of theta, and a finer one around its best point."""
    theta = np.logspace(-10, 2.8, 6001)
    for _ in range(2):
        values = (moment(theta) + c) / theta
        at = int(values.argmin())
        theta = np.linspace(theta[max(at - 1, 0)], theta[min(at + 1, len(theta) - 1)], 4001)
    return min(float(values.min()), 1.0)


@pytest.mark.parametrize("p", [1e-9, 1e-4, 0.03, 0.25, 0.5, 0.9, 0.99, 1 - 1e-6])
@pytest.mark.parametrize("c", [1e-12, 5e-5, 1e-2, 0.3, 2.0, 30.0])
def test_means_are_the_best_over_theta(p, c):
    bernoulli = float(bernoulli_mean(np.array(p), np.array(c)))
    truth = smallest_over_theta(lambda t: np.logaddexp(math.log1p(-p), math.log(p) + t), c)
    assert truth * (1 - 1e-9) <= bernoulli <= truth * (1 + 1e-6), (bernoulli, truth)
    poisson = float(_poisson_mean(np.array(p), np.array(c)))
    truth = smallest_over_theta(lambda t: p * np.expm1(t), c)
    assert truth * (1 - 1e-9) <= poisson <= truth * (1 + 1e-6), (poisson, truth)
    assert bernoulli <= poisson * (1 + 1e-9)


def test_means_at_the_ends():
    for p, c, value in [(0.0, 0.0, 0.0), (1.0, 0.5, 1.0), (0.3, math.log(1 / 0.3), 1.0), (0.3, math.inf, 1.0)]:
        assert float(bernoulli_mean(np.array(p), np.array(c))) == value
    assert float(_poisson_mean(np.array(0.3), np.array(math.inf))) == 1.0
