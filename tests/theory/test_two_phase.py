"""What is promised of a point before a run: formulas against a second writing, and against chance."""

import math
from itertools import pairwise

import numpy as np
import pytest

from normstorm import Constants
from normstorm.theory.descent import descent_passes
from normstorm.theory.fresh_samples import Summary, expected_samples, upper_bound
from normstorm.theory.two_phase import TRUSTED, candidate_factor, candidate_samples, two_phase

KNOWN = Constants(L0=2.0, L1=0.5, sigma0=1.0, sigma1=0.3, gap=1.0, grad_norm=1.0, noise="almost-sure")


def test_a_good_candidate_is_missed_with_probability_delta_at_most() -> None:
    """All of the average in a few steps, which is the worst: 20,000 draws, six standard deviations allowed."""
    rng, delta = np.random.default_rng(0), 0.1
    for T in (3, 8, 19, 100):
        R, c = min(8, T), candidate_factor(T, delta)
        edges = np.linspace(0, T, R + 1).astype(int)
        for share in (0.2, 0.6, 1.0):
            g = np.where(np.arange(T) % 5 < 5 * share, 1.0, 0.0)
            g *= 1 / g.mean()
            drawn = np.stack([g[rng.integers(a, b, 20_000)] for a, b in pairwise(edges)])
            assert np.mean((drawn > c).all(axis=0)) <= delta + 6 * math.sqrt(delta / 20_000)


def test_a_candidate_passes_its_test() -> None:
    """Noise as long as 4A allows, at a gradient as long as it may be: 300 tests, delta may fail (six deviations)."""
    rng, target, part, delta, share = np.random.default_rng(1), 0.5, 0.8, 0.1, 1e-3
    n = candidate_samples(KNOWN, target, part, delta, share)
    gradient, radius = np.array([part * target, 0.0, 0.0]), KNOWN.sigma0 + KNOWN.sigma1 * part * target
    failed = 0
    for _ in range(300):
        noise = rng.normal(size=(n, 3))
        mean = gradient + np.mean(radius * noise / np.linalg.norm(noise, axis=1, keepdims=True), axis=0)
        summary = Summary(n, float(np.linalg.norm(mean)), math.inf)
        failed += upper_bound(summary, KNOWN.sigma0, KNOWN.sigma1, share, "almost-sure") > TRUSTED * target
    assert failed <= 300 * delta + 6 * math.sqrt(300 * delta)
    few = Summary(n // 2, part * target + radius * 2 / math.sqrt(n // 2), math.inf)
    assert upper_bound(few, KNOWN.sigma0, KNOWN.sigma1, share, "almost-sure") > target, "half of them would not do"


def test_the_promise_keeps_its_parts_together() -> None:
    found = two_phase(KNOWN, 0.5, 0.99, 1e-5)
    assert candidate_factor(found.plan.horizon, 0.01) * found.plan.bound <= 0.9 * 0.5
    assert found.cost == found.plan.sample_gradients + found.candidates * found.samples
    assert two_phase(KNOWN, 0.5, 0.99, 1e-5, rows=10).samples == 10


def test_passes_of_exact_descent() -> None:
    """The worst function there is for the step: g stays just above the target, and every step gains h(target)."""
    for L0, L1, target in ((2.0, 0.5, 0.1), (1.0, 0.0, 0.3), (0.0, 3.0, 0.7)):
        known = Constants(L0=L0, L1=L1, sigma0=1.0, sigma1=0.0, gap=1.5)
        passes, gain = descent_passes(known, target), target**2 / (2 * (L0 + L1 * target))
        assert (passes - 1) * gain <= known.gap * (1 + 1e-8) and known.gap <= passes * gain
    quiet = Constants(2.0, 0.5, 1.0, 0.0, gap=1.0, noise="almost-sure", mean_square=(1.0, 0.25, 1.0, 0.0))
    assert descent_passes(quiet, 0.1) == math.ceil(2 * (1.0 + 0.025) / 0.01 * (1 + 1e-9)), "3B is enough for F"


@pytest.mark.parametrize(("trace", "radius", "drift"), [(1.0, 1.0, 0.0), (0.25, 2.0, 0.1), (1e-4, 1.0, 0.05)])
def test_expected_samples_are_the_first_that_reach_the_target(trace: float, radius: float, drift: float) -> None:
    def bound(n: int) -> float:
        summary = Summary(n, math.hypot(drift, math.sqrt(trace / n)), trace, (), trace)
        return upper_bound(summary, radius, 0.0, 0.01, "almost-sure")

    n = expected_samples(trace, radius, 0.3, drift, 0.01)
    assert bound(n) <= 0.3 < bound(n - 1)
