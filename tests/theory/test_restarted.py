"""The plan of SPIDER with exact restarts: its conditions written a second time, and runs that try to break it."""

import math

import numpy as np
import pytest

from normstorm import Constants
from normstorm.theory.restarted import RestartedPlan, restarted_plan

CASES = [
    (Constants(1, 0, 1, 0, 2, noise="almost-sure"), 0.05, 0.01, 20_000),
    (Constants(2, 0, 1, 0, 1, noise="almost-sure", mean_square=(0.5, 0, 1, 0)), 0.02, 0.001, 5_000),
    (Constants(1, 0.3, 1, 0.1, 2, noise="almost-sure"), 0.1, 0.05, 3_000),
    (Constants(1, 50, 1, 0, 1e-4, noise="almost-sure"), 0.9, 0.01, 9),
    (Constants(1, 0, 0, 0, 2), 0.5, 0.5, 1),
]


def conditions(c: Constants, eps: float, delta: float, plan: RestartedPlan) -> tuple[float, float, float]:
    """Both conditions of docs/theory/race.md as ratios that must be at least 1, and where it stops."""
    s = c.in_mean_square
    G = s.L1 * c.gap + math.sqrt(s.L1**2 * c.gap**2 + 2 * s.L0 * c.gap)
    L, every = s.L0 + s.L1 * G, c.L0 + c.L1 * G
    ell = math.log(2 * plan.epochs * plan.period / delta)
    r = np.array(
        [
            0.0
            if j == 1
            else plan.eta * (L * math.sqrt(2 * ell * (j - 1) / plan.batch) + 2 * every * ell / 3 / plan.batch)
            for j in range(1, plan.period + 1)
        ]
    )
    half = L * plan.eta / 2
    steps = plan.epochs * plan.period
    return eps / (2 * r[-1] + half), steps * plan.eta * (eps - r[-1] - r.mean() - half) / c.gap, eps - r[-1]


@pytest.mark.parametrize(("constants", "eps", "delta", "rows"), CASES)
def test_the_plan_meets_the_conditions_of_the_statement(constants, eps: float, delta: float, rows: int) -> None:
    plan = restarted_plan(constants, eps, delta, rows)
    short, long, stop = conditions(constants, eps, delta, plan)
    assert short >= 1 and long >= 1 and plan.stop == pytest.approx(stop) and plan.eta * constants.L1 <= 1
    if plan.epochs > 1:  # and hardly longer than they ask
        assert long <= 1.02 + 2 / plan.epochs
    assert plan.cost == plan.epochs * (rows + 2 * plan.batch * (plan.period - 1)) + rows


def test_it_is_cheaper_than_exact_descent_on_many_rows_alone() -> None:
    c = Constants(1, 0, 1, 0, 2, noise="almost-sure")
    ratios = [restarted_plan(c, 0.05, 0.01, n).cost / (2 * n * c.L0 * c.gap / 0.05**2) for n in (500, 20_000, 10**6)]
    assert ratios[0] > 1 and ratios[1] < 0.5 and ratios[2] < 0.08


def test_constants_in_mean_square_alone_promise_nothing() -> None:
    assert restarted_plan(Constants(1, 0, 1, 0, 2, noise="mean-square"), 0.1, 0.01, 100) is None
    assert restarted_plan(Constants(1, 0, 1, 0, 1e300), 1e-90, 0.01, 100) is None


def test_errors_stay_below_their_bound_where_rows_disagree_as_much_as_they_may() -> None:
    """f_i = +-x^2/2 along a walk of equal steps: every difference is as long as 3A allows and of random sign.

    300 runs of an epoch with delta = .2: a bound that held with probability .8 only would be broken 60 times, and more
    than 90 times with probability 1e-5; with S = 1 it is broken less often, as the union over steps is not tight.
    """
    rng, q, runs, delta = np.random.default_rng(0), 64, 300, 0.2
    ell = math.log(2 * q / delta)
    signs = rng.choice([-1.0, 1.0], (runs, q - 1))
    errors = np.abs(np.cumsum(signs, axis=1))  # in units of eta L0; F = 0, so all of it is error
    bound = np.sqrt(2 * ell * np.arange(1, q)) + 2 * ell / 3
    broken = np.sum(np.any(errors > bound, axis=1))
    assert broken <= 90
    assert np.sum(np.any(errors > bound / 3, axis=1)) > 90  # a bound of a third would not do
