"""The slope study at a small scale: the estimator finds a known power law, the rules are those of the theorems."""

import math

import jax
import numpy as np
import pytest

from normstorm.engine.run import run
from normstorm.lab.studies import slopes
from normstorm.problems import synthetic
from normstorm.problems.noise import coordinate, fourier

HORIZONS = (10, 100, 1000, 10_000)


def test_the_slope_of_a_power_law_is_its_exponent() -> None:
    assert math.isclose(slopes.slope(HORIZONS, 3.0 * np.array(HORIZONS) ** -0.37), -0.37, rel_tol=1e-12)
    uneven = (10, 20, 1000)
    assert math.isclose(slopes.slope(uneven, 0.1 * np.array(uneven) ** -0.5), -0.5, rel_tol=1e-12)
    values = np.array([1.0, 0.2, 0.1, 0.01])
    assert math.isclose(slopes.slope(HORIZONS, values), np.polyfit(np.log(HORIZONS), np.log(values), 1)[0])


def test_the_interval_covers_the_exponent_as_often_as_it_says() -> None:
    """200 samples from a known law, level 0.8, 40 seeds each: the percentile bootstrap covers about 0.79 of them.

    The count is binomial with a standard deviation of 0.029; the margin of 0.12 is above four of them, a false alarm
    of less than 1e-4 (and the seeds are fixed).
    """
    rng = np.random.default_rng(1)
    truth = np.array(HORIZONS) ** -0.25
    hits = 0
    for i in range(200):
        samples = truth[:, None] * (1 + 0.3 * rng.uniform(-1, 1, (4, 40)))
        low, high = slopes.interval(HORIZONS, samples, level=0.8, resamples=300, seed=i)
        hits += low <= -0.25 <= high
    assert abs(hits / 200 - 0.8) < 0.12


def test_the_interval_is_a_point_without_spread() -> None:
    low, high = slopes.interval(HORIZONS, np.tile(np.array(HORIZONS)[:, None] ** -0.5, 5))
    assert math.isclose(low, -0.5) and math.isclose(high, -0.5)


@pytest.mark.parametrize(
    ("rule", "noise", "alpha", "eta"),
    [
        (slopes.paper_rule, fourier(0.5, 20.0), -2 / 3, -2 / 3),
        (slopes.momentum_rule, fourier(0.5, 20.0), -1 / 2, -3 / 4),
        (slopes.paper_rule, coordinate(), 0.0, -1 / 2),
    ],
)
def test_the_rules_have_the_exponents_of_the_theory(rule, noise, alpha, eta) -> None:
    problem = synthetic.quadratic(dim=3, noise=(noise,))
    short, long = rule(problem, 10**5), rule(problem, 10**7)
    assert math.isclose(math.log(long["alpha"] / short["alpha"]), alpha * math.log(100), abs_tol=1e-9)
    assert math.isclose(math.log(long["eta"] / short["eta"]), eta * math.log(100), rel_tol=1e-9)
    assert short["K"] == (129 if alpha == 0 else 1)


def test_a_measurement_is_what_its_runs_say() -> None:
    setting = next(s for s in slopes.SETTINGS if s.law is slopes.STORM and s.objective == "exp-quad")
    found = slopes.measure_slope(setting, horizons=(16, 160, 1600), seeds=8)
    assert found["horizons"] == [16, 160, 1600] and len(found["parameters"]) == 3 and found["seeds"] == 8
    assert math.isclose(found["slope"], slopes.slope((16, 160, 1600), found["mean"]))
    assert found["low"] <= found["slope"] <= found["high"]
    ends = zip(found["q10"], found["mean"], found["q90"], strict=True)
    assert all(a <= b <= c for a, b, c in ends)
    assert all(-0.5 < s < 0 for s in found["local"])
    with jax.enable_x64(True):
        problem = setting.problem()
        algorithm = setting.law.algorithm(**found["parameters"][0])
        trace = run(problem, algorithm, problem.start(), 16, range(8))
    assert trace.record_steps.size == 16
    assert math.isclose(found["mean"][0], trace.grad_norm.mean(), rel_tol=1e-12)
    assert math.isclose(found["floor"][0], trace.grad_norm[:, 8:].mean(), rel_tol=1e-12)


def test_a_slope_is_seen_only_with_its_whole_interval() -> None:
    fine = {"predicted": -0.25, "tolerance": 0.03, "slope": -0.24, "low": -0.26, "high": -0.23}
    assert slopes.is_seen(fine)
    assert not slopes.is_seen(fine | {"high": -0.21})
    assert not slopes.is_seen(fine | {"low": -0.29})
    assert not slopes.is_seen(fine | {"slope": -0.1})
