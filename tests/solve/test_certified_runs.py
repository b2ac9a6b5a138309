"""What `minimize` certifies along a run, and a run that ends when it is certified."""

import math
from typing import Any

import jax
import numpy as np
import pytest

from normstorm import Constants, minimize, plan
from normstorm.problems import from_loss, registry


@pytest.fixture(autouse=True)
def in_double() -> Any:
    with jax.enable_x64(True):
        yield


def test_three_numbers_stand_beside_each_other() -> None:
    found = minimize(registry.get("logistic-nonconvex"), budget=20_000, seeds=3, method="plan", progress=False)
    along = found.trajectory
    assert found.trace.mean_grad_norm.max() < max(along.bounds) < found.plan.bound
    assert along.bound == along.bounds[0]
    assert along.steps == found.plan.horizon
    assert along.confidence == 0.99
    assert along.guarantee.startswith("With probability at least 0.99, the average of ||grad F(x_t)|| over the ")
    assert found.certificate.upper_bound < found.plan.bound
    assert found.bound == found.plan.bound
    told = along.to_dict()
    assert {"bound", "weights", "ranges", "confidence"} <= told.keys()


def test_a_run_ends_when_it_is_certified() -> None:
    found = minimize(registry.get("dro-regression"), target=0.1, stop="certified", seeds=2, progress=False)
    assert max(found.trajectory.bounds) <= 0.1
    assert np.all(found.trace.stopped_at > 0)
    assert found.trace.cost.max() <= 40_000
    assert np.all(found.trace.mean_grad_norm < 0.1)
    assert found.sample_gradients < found.plan.sample_gradients
    assert found.bound == found.trajectory.bound
    assert found.violations == 0
    assert found.observed_bounds is None
    assert "smallest" in found.reason


def test_a_stream_without_ranges_says_what_would_give_one() -> None:
    def loss(x: Any, s: Any) -> Any:
        return (x - s) ** 2 / 2

    constants = Constants(1, 0, 2, 0, gap=3, noise="mean-square")
    problem = from_loss(loss, np.linspace(-1, 1, 20), start=np.array(2.0), constants=constants, infimum=0.0)
    found = minimize(problem, plan=plan(constants, budget=500, confidence=None), progress=False)
    assert math.isinf(found.trajectory.bound)
    assert "range" in found.trajectory.guarantee
    assert found.trajectory.guarantee.startswith("Along the run nothing is certified")


def test_what_cannot_be_asked_gets_one_sentence() -> None:
    problem = registry.get("quadratic")
    with pytest.raises(ValueError, match="minimize: target must be given if stop is 'certified'"):
        minimize(problem, budget=1000, stop="certified", progress=False)
    with pytest.raises(ValueError, match="minimize: stop must be one of plan, certified; got stop='soon'"):
        minimize(problem, budget=1000, stop="soon", progress=False)
