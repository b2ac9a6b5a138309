"""The test that may be watched: a second, slow computation from the proof page, laws, and attempts to make it fail."""

import math

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from normstorm.theory import scatter
from normstorm.theory.fresh_samples import Summary, upper_bound
from normstorm.theory.scatter import Scatter
from normstorm.theory.sequential_test import PILOT_SHARE, Moments, PointTest, SampleRange, pilot_size, psi

ANGLES = np.linspace(0, 2 * math.pi, 20_001)
CIRCLE = np.stack([np.cos(ANGLES), np.sin(ANGLES)], axis=1)


class Spied(PointTest):
    """Keeps the centre, range and weights of every block as they were chosen before it."""

    def _centre(self, seen):
        centre, r = super()._centre(seen)
        self.chosen = [*getattr(self, "chosen", []), [centre, r]]
        return centre, r

    def _weights(self, seen, r):
        found = super()._weights(seen, r)
        self.chosen[-1] += found
        return found


def noise_blocks(rng, sizes, dim=2, norm=0.1):
    """Skewed noise of length at most 1 around a gradient along the first axis."""
    rows = []
    for n in sizes:
        along = np.where(rng.random(n) < 0.8, -0.25, 1.0)
        across = rng.uniform(-1, 1, (n, dim)) * np.sqrt((1 - along**2) / dim)[:, None]
        across[:, 0] = norm + along * 0.9
        rows.append(across)
    return rows


def slow_bounds(chosen, blocks, delta, method):
    """The page's two theorems at the last look, sample by sample, in many digits."""
    log1 = mpmath.log((2 if method == "pairs" else 1) / (mpmath.mpf(delta) * (1 - mpmath.mpf(PILOT_SHARE))))
    a, M, Lam = mpmath.zeros(2, 1), mpmath.zeros(2, 2), mpmath.mpf(0)
    A = B = U = mpmath.mpf(0)
    for (centre, r, lam, mu), rows in zip(chosen, blocks, strict=True):
        waiting = mpmath.mpf(0)
        for g in rows:
            g, c = mpmath.matrix(g), mpmath.matrix(centre)
            length = mpmath.norm(a)
            if method == "pairs" and length > 0:
                rho = r * length
                y = min(mu * rho, 0.8)
                U += y / rho * (g.T * a)[0] + (-mpmath.log(1 - y) - y) / rho**2 * ((g - c).T * a)[0] ** 2
                A += y / rho * Lam
                waiting += y / rho
            weight = (-mpmath.log(1 - lam * r) - lam * r) / mpmath.mpf(r) ** 2
            a, M, Lam = a + lam * g, M + weight * (g - c) * (g - c).T, Lam + lam
        exact = np.array(M.tolist(), float)
        B += waiting * (float(np.linalg.eigvalsh(exact)[-1]) + log1)
    largest = float(np.max(CIRCLE @ np.array(a, float).ravel() + np.sum((CIRCLE @ exact) * CIRCLE, axis=1)))
    pairs = (B + mpmath.sqrt(B**2 + 4 * A * max(U + log1, 0))) / (2 * A) if A else math.inf
    return float((largest + log1) / Lam), float(pairs)


@pytest.mark.parametrize("method", ["top", "pairs"])
@pytest.mark.parametrize("seed", range(3))
def test_the_bounds_are_those_of_the_page(method, seed):
    """The maximum over directions is over 20,001 of them there, and over 48 numbers s here: 2 in a thousand apart."""
    blocks = noise_blocks(np.random.default_rng(seed), (40, 30, 50, 35), norm=0.02)
    test = Spied(2, 0.15, 0.05, SampleRange(1.0, 0.0), method)
    test.pilot(blocks[0])
    bounds = [test.bound]
    for rows in blocks[1:]:
        test.add(rows)
        bounds += [test._by_top() * (1 + 1e-9), test._by_pairs() * (1 + 1e-9)]
        assert test.bound == min(bounds)
    top, pairs = slow_bounds(test.chosen, blocks[1:], 0.05, method)
    assert top <= test._by_top() <= top * 1.002
    assert pairs <= test._by_pairs() <= pairs * (1 + 1e-7) or pairs == test._by_pairs() == math.inf


@settings(max_examples=60)
@given(st.floats(0, 1), st.floats(0, 1), st.floats(0.01, 2) | st.just(math.inf), st.floats(0.01, 4), st.floats(0.01, 2))
def test_ranges_hold_every_sample(sigma0, sigma1, spread, bound, length):
    """From the centre that was chosen, if G is at most the bound that is known then."""
    test = PointTest(2, 0.1, 0.05, SampleRange(sigma0, sigma1, spread))
    test.bound, test.samples = bound, 100
    centre, r = test._centre(Moments(np.array([length, 0.0]), 0.5, 0.4, 0.1))
    noise = sigma0 + sigma1 * bound
    assert r > (noise + bound if not centre.any() else 2 * min(noise, spread))
    assert not centre.any() or centre[0] == length


def test_the_pilot_is_the_fixed_bound_with_its_share():
    rows = noise_blocks(np.random.default_rng(0), (300,))[0]
    test = PointTest(2, 0.1, 0.05, SampleRange(1.0, 0.5, 0.9))
    test.pilot(rows)
    covariance = np.cov(rows.T)
    top, mean = np.linalg.eigvalsh(covariance)[-1], float(np.linalg.norm(rows.mean(axis=0)))
    summary = Summary(300, mean, float(np.trace(covariance)), (), float(top))
    assert test.bound == pytest.approx(upper_bound(summary, 1.0, 0.5, 0.05 / 16, "almost-sure", 0.9), rel=1e-8)
    assert test.bound > upper_bound(summary, 1.0, 0.5, 0.05 / 16, "almost-sure", 0.9)


@pytest.mark.parametrize("method", ["top", "pairs"])
def test_what_is_chosen_does_not_know_its_own_block(method):
    rng = np.random.default_rng(5)
    blocks = noise_blocks(rng, (64, 32, 32))
    others = [*blocks[:2], -3 * blocks[2]]
    tests = []
    for rows in (blocks, others):
        test = Spied(2, 0.15, 0.05, SampleRange(1.0, 0.2), method)
        test.pilot(rows[0])
        for block in rows[1:]:
            test.add(block)
        tests.append(test)
    for one, other in zip(tests[0].chosen, tests[1].chosen, strict=True):
        assert all(np.array_equal(p, q) for p, q in zip(one, other, strict=True))
    assert tests[0]._Lam == tests[1]._Lam and tests[0]._scatter.trace != tests[1]._scatter.trace


@given(st.floats(1e-20, 0.8) | st.just(0.0))
def test_psi_is_above_the_exact_one(x):
    with mpmath.workdps(60):
        exact = -mpmath.log(1 - mpmath.mpf(x)) - mpmath.mpf(x)
        assert exact <= mpmath.mpf(float(psi(x))) <= exact * (1 + 1e-9)


@given(st.floats(0, 0.8), st.floats(-1, 1))
def test_the_lemma(x, zeta):
    assert math.exp(x * zeta - float(psi(x)) * zeta**2) <= (1 + x * zeta) * (1 + 1e-15)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.booleans(), st.integers(2, 12), st.floats(0, 300))
def test_largest_is_above_every_direction(seed, sketched, dim, size):
    """Also where a sketch of four rows stands for M."""
    rng = np.random.default_rng(seed)
    found, M = Scatter(dim), np.zeros((dim, dim))
    if sketched:
        found._sketched, found._limit, found._matrix = True, 4, np.zeros((0, dim))
    for _ in range(4):
        rows = rng.normal(size=(5, dim)) * rng.exponential(size=dim)
        weight = float(rng.exponential())
        found.add(rows, weight)
        M += weight * rows.T @ rows
    a = size * rng.normal(size=dim)
    values, vectors = np.linalg.eigh(M)
    w = np.concatenate([rng.normal(size=(300, dim)), vectors.T, -vectors.T, [a + 1e-9]])
    w /= np.linalg.norm(w, axis=1, keepdims=True)
    best = float(np.max(w @ a + np.sum((w @ M) * w, axis=1)))
    assert best <= found.largest(a) * (1 + 1e-9)
    assert values[-1] <= found.top() * (1 + 1e-9)
    assert found.trace == pytest.approx(np.trace(M))
    if not sketched:
        assert found.largest(a) <= (np.linalg.norm(a) + values[-1]) * (1 + 1e-9)
        assert found.top() == pytest.approx(values[-1])


def test_a_sketch_is_sharp_if_few_directions_matter():
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(500, 3)) @ rng.normal(size=(3, scatter.WIDEST + 1))
    found = Scatter(rows.shape[1])
    found._limit = 20
    for part in np.split(rows, 10):
        found.add(part, 0.5)
    exact = 0.5 * np.linalg.norm(rows, 2) ** 2
    assert exact <= found.top() <= exact * (1 + 1e-6) and len(found._matrix) <= 90


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([1e-6, 3.0, 1e8]), st.sampled_from(["top", "pairs"]))
def test_units_do_not_matter(seed, scale, method):
    blocks = noise_blocks(np.random.default_rng(seed), (64, 64, 64))
    bounds = []
    for s in (1.0, scale):
        test = PointTest(2, 0.3 * s, 0.05, SampleRange(s, 0.3), method)
        test.pilot(s * blocks[0])
        bounds.append([test.bound / s, *(test.add(s * rows) / s for rows in blocks[1:])])
    assert bounds[0] == pytest.approx(bounds[1], rel=1e-6)
    assert bounds[0] == sorted(bounds[0], reverse=True), "it only falls"


def false_ones(law, method, runs, delta, target=0.25, sigma1=0.0):
    """How many of so many tests certify a target that lies just below the true norm."""
    norm, wrong = target * (1 + 1e-6), 0
    for seed in range(runs):
        rng = np.random.default_rng(seed)
        test = PointTest(2, target, delta, SampleRange(1.0 - sigma1 * norm, sigma1), method)
        test.pilot(law(rng, 48, norm))
        for _ in range(8):
            if test.bound > target:
                test.add(law(rng, 48, norm))
        wrong += test.bound <= target
    return wrong


def rare(rng, n, norm):
    along = np.where(rng.random(n) < 0.04, 1.0, -0.04 / 0.96)
    return np.stack([norm + along, np.zeros(n)], axis=1)


def coin(rng, n, norm):
    return np.stack([norm + np.where(rng.random(n) < 0.5, 1.0, -1.0), np.zeros(n)], axis=1)


@pytest.mark.parametrize(("law", "sigma1"), [(rare, 0.0), (coin, 0.0), (coin, 0.4)])
@pytest.mark.parametrize("method", ["top", "pairs"])
def test_false_certificates_are_as_rare_as_promised(law, sigma1, method):
    """At most 50 x 0.3 = 15 are expected of 50; 15 + 4 sqrt(50 x 0.21) = 27 are allowed (false alarm < 3e-4)."""
    assert false_ones(law, method, 50, 0.3, sigma1=sigma1) <= 27


def test_the_check_of_coverage_has_teeth(monkeypatch):
    """Without the squares and log(1/delta) the same test is wrong most of the time."""
    monkeypatch.setattr("normstorm.theory.sequential_test.psi", lambda x: 1e-9 * np.asarray(x))
    monkeypatch.setattr(PointTest, "_level", property(lambda self: 0.0, lambda self, value: None), raising=False)
    assert false_ones(coin, "top", 50, 0.3) > 27


def test_pairs_are_for_large_dimensions():
    """Noise on a sphere: the pilot expects fewer samples of pairs at d = 400 and a small target, not at d = 5."""
    chosen = {}
    for dim, target in ((5, 0.01), (400, 0.01), (400, 0.2)):
        g = np.random.default_rng(0).normal(size=(256, dim))
        test = PointTest(dim, target, 0.01, SampleRange(1.0, 0.0))
        test.pilot(g / np.linalg.norm(g, axis=1, keepdims=True))
        chosen[dim, target] = test.method
    assert chosen == {(5, 0.01): "top", (400, 0.01): "pairs", (400, 0.2): "top"}


def test_noise_that_grows_needs_a_larger_pilot():
    assert pilot_size(SampleRange(1, 0), 0.01) == pilot_size(SampleRange(1, 50, 2.0), 0.01) == 256
    n = pilot_size(SampleRange(1, 5), 0.01)
    bound = upper_bound(Summary(n, 0.1, 1.0), 1.0, 5.0, 0.01 * PILOT_SHARE, "almost-sure")
    assert n > 256 and math.isfinite(bound)


def test_without_a_range_to_go_on_is_idle():
    rows = noise_blocks(np.random.default_rng(0), (16, 16))
    test = PointTest(2, 0.1, 0.01, SampleRange(1.0, 50.0))
    test.pilot(rows[0])
    assert test.bound == test.add(rows[1]) == math.inf and test.hopeless(6)
