"""Bounds from fresh samples: coverage by simulation, limits, and the number of samples promised."""

import math

import numpy as np
import pytest

from normstorm.theory.fresh_samples import Summary, group_factor, groups_for, samples_for, upper_bound

TRIALS = 4000


def summarised(gradients, groups=1):
    """One Summary for each trial of an array (trials, samples, dimension)."""
    n = gradients.shape[1]
    mean = gradients.mean(axis=1)
    trace = ((gradients - mean[:, None]) ** 2).sum(axis=(1, 2)) / (n - 1)
    means = gradients[:, : n - n % groups].reshape(len(gradients), groups, -1, gradients.shape[2]).mean(axis=2)
    norms = np.linalg.norm(means, axis=2)
    tops = np.linalg.norm(gradients - mean[:, None], 2, axis=(1, 2)) ** 2 / (n - 1)
    return [
        Summary(n, float(m), float(t), tuple(map(float, g)), float(top))
        for m, t, g, top in zip(np.linalg.norm(mean, axis=1), trace, norms, tops, strict=True)
    ]


@pytest.mark.parametrize("delta", [0.3, 0.05])
@pytest.mark.parametrize(("n", "dimension"), [(5, 1), (40, 1), (40, 20)])
@pytest.mark.parametrize("skew", [0.5, 0.9])
def test_coverage_under_bounded_noise(delta, n, dimension, skew):
    # A two-point law along the gradient, skewed against the bound, and noise of total length 1 with the rest. The
    # frequency of failure among 4000 may exceed delta by four standard errors (false alarm < 4e-5 at equality).
    rng = np.random.default_rng(n + dimension)
    G, sigma = 0.7, 1.0
    along = np.where(rng.random((TRIALS, n)) < skew, (1 - skew) / skew, -1.0)
    gradients = rng.normal(size=(TRIALS, n, dimension))
    gradients[:, :, 0] = 0.0
    length = np.maximum(np.linalg.norm(gradients, axis=2), 1e-300)
    gradients *= (np.sqrt(1 - along**2) / length)[:, :, None]
    gradients[:, :, 0] = G + sigma * along
    bounds = [upper_bound(s, sigma, 0.0, delta, "almost-sure") for s in summarised(gradients)]
    failures = np.mean(np.array(bounds) < G)
    assert failures <= delta + 4 * math.sqrt(delta * (1 - delta) / TRIALS)


@pytest.mark.parametrize("delta", [0.3, 0.05])
def test_coverage_under_heavy_tails(delta):
    # Student's t with 2.5 degrees of freedom has finite variance only.
    rng = np.random.default_rng(7)
    n, G = 63, 0.5
    gradients = rng.standard_t(2.5, size=(TRIALS, n, 3)) * math.sqrt(0.2 / 3)
    gradients[:, :, 0] += G
    sigma0 = 1.0  # E||noise||^2 = 3 x 0.2/3 x 2.5/0.5 = 1
    bounds = [upper_bound(s, sigma0, 0.0, delta, "mean-square") for s in summarised(gradients, groups_for(delta))]
    assert np.mean(np.array(bounds) < G) <= delta + 4 * math.sqrt(delta * (1 - delta) / TRIALS)


def test_affine_noise_is_solved_for_the_gradient():
    # With bound G the noise level is sigma0 + sigma1 G: putting it in as a constant gives the same bound.
    summary = Summary(500, 1.0, 0.3)
    G = upper_bound(summary, 0.2, 0.5, 0.05, "almost-sure")
    assert upper_bound(summary, 0.2 + 0.5 * G, 0.0, 0.05, "almost-sure") == pytest.approx(G)
    G = upper_bound(summary, 0.2, 0.5, 0.05, "mean-square")
    assert upper_bound(summary, math.hypot(0.2, 0.5 * G), 0.0, 0.05, "mean-square") == pytest.approx(G)


@pytest.mark.parametrize("sense", ["almost-sure", "mean-square"])
def test_limits(sense):
    assert upper_bound(Summary(3, 1.0, 1.0), 1.0, 5.0, 0.01, sense) == math.inf
    assert upper_bound(Summary(10**12, 1.0, 0.0), 1.0, 0.5, 0.01, sense) == pytest.approx(1.0, rel=1e-4)
    assert upper_bound(Summary(100, 1.0, 0.0), 0.0, 0.0, 0.01, sense) == pytest.approx(1.0)
    few, many = (upper_bound(Summary(n, 1.0, 1.0), 1.0, 0.0, 0.01, sense) for n in (50, 500))
    assert many < few


def test_quiet_samples_beat_the_worst_case():
    loud, quiet = (upper_bound(Summary(2000, 1.0, t), 10.0, 0.0, 0.05, "almost-sure") for t in (100.0, 0.01))
    assert quiet - 1 < 0.3 * (loud - 1)


def test_the_top_eigenvalue_takes_the_place_of_the_trace():
    """As if all noise were along one direction of this variance; a larger one than the trace is not used."""
    spread = upper_bound(Summary(2000, 1.0, 4.0, (), 0.5), 3.0, 0.1, 0.05, "almost-sure")
    assert spread == upper_bound(Summary(2000, 1.0, 0.5), 3.0, 0.1, 0.05, "almost-sure")
    assert spread < upper_bound(Summary(2000, 1.0, 4.0, (), 9.0), 3.0, 0.1, 0.05, "almost-sure")


def test_a_local_range_is_a_constant_that_does_not_grow():
    summary = Summary(2000, 1.0, 0.5)
    local = upper_bound(summary, 3.0, 0.7, 0.05, "almost-sure", 0.9)
    assert local == upper_bound(summary, 0.9, 0.0, 0.05, "almost-sure")
    assert upper_bound(summary, 3.0, 0.7, 0.05, "almost-sure", 90.0) == upper_bound(
        summary, 3.0, 0.7, 0.05, "almost-sure"
    )


@pytest.mark.parametrize("sense", ["almost-sure", "mean-square"])
def test_samples_for_a_precision(sense):
    n = samples_for(0.1, 2.0, 0.5, 0.25, 0.01, sense)
    noise = 0.5 + 0.25 * 2.0 if sense == "almost-sure" else math.hypot(0.5, 0.25 * 2.0)
    norms = (1.0,) * groups_for(0.01) if sense == "mean-square" else ()
    excess = upper_bound(Summary(n, 1.0, noise**2, norms), noise, 0.0, 0.01, sense) - 1.0
    # The half of delta that the other proof takes costs log(2/delta) instead of log(1/delta).
    assert 0.09 <= excess <= 0.1 * (1 + 1e-9)


def test_groups_pay_for_small_failure_probabilities():
    assert groups_for(0.3) == 1
    assert groups_for(1e-6) > 20
    assert group_factor(1, 0.05) == pytest.approx(19)
    assert group_factor(groups_for(1e-6), 1e-6) < 200 < group_factor(1, 1e-6)
