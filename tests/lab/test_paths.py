"""Averages against cost, on paths written by hand."""

from types import SimpleNamespace

import numpy as np
import pytest

from normstorm.lab.compare.paths import Paths, paths

COST = np.array([1.0, 10.0, 100.0, 1000.0])


def path(*means: float, cost: np.ndarray = COST) -> Paths:
    return Paths(cost[None], np.array([means]))


@pytest.mark.parametrize(
    ("means", "target", "expected"),
    [
        ((4, 3, 2, 1), 0.5, np.inf),
        ((4, 3, 2, 1), 4, 1),
        ((4, 3, 2, 1), 2, 100),
        ((4, 3, 2, 1), np.sqrt(2), 10**2.5),
        ((1, 5, 1, 0.5), 1, 100),
        ((1, 5, 0.2, 1), 2, 10 ** (1 + np.log(5 / 2) / np.log(5 / 0.2))),
        ((1, 1, 1, 2), 1, np.inf),
        ((3, 2, np.inf, np.inf), 2.5, np.inf),
        ((np.inf, np.inf, np.inf, np.inf), 2.5, np.inf),
    ],
    ids=["never", "at once", "record", "between", "up and down", "in between", "up at last", "diverged", "nothing"],
)
def test_reaches(means: tuple[float, ...], target: float, expected: float) -> None:
    assert path(*means).reaches(target, 1000) == pytest.approx([expected], rel=1e-12)


def test_what_the_budget_does_not_pay_is_not_seen() -> None:
    found = path(4, 3, 2, 1)
    assert found.reaches(2, 100) == pytest.approx([100])
    assert found.reaches(1.9, 100) == [np.inf] and found.reaches(1.5, 550) == pytest.approx([550])
    assert found.final(550) == pytest.approx([1.5]) and found.final(5000) == [1]
    late = path(4, 3, 1, 9)
    assert late.reaches(2, 100) < 100 and late.reaches(2, 1000) == [np.inf]
    assert late.reaches(2, 550) == [np.inf], "the average is at 5 when the budget is spent"
    lost = path(4, 3, 1, np.inf)
    assert lost.reaches(2, 100) < 100 and lost.final(100) == [1] and lost.final(101) == [np.inf]


def test_a_seed_that_has_diverged_asks_no_more_and_stays_infinite() -> None:
    found = path(4, 3, np.inf, np.inf, cost=np.array([1.0, 10.0, 12.0, 12.0]))
    assert found.final(1000) == [np.inf] and found.reaches(3, 1000) == [np.inf]
    assert found.at(np.array([0.5, 10, 11, 500])) == pytest.approx(np.array([[np.nan, 3, np.inf, np.inf]]), nan_ok=True)


def trace(**changes: object) -> SimpleNamespace:
    steps = np.array([1, 2, 4])
    given = {
        "record_steps": steps,
        "record_cost": np.array([[1, 3, 7]], np.int64),
        "grad_norm": np.array([[8.0, 4.0, 2.0]]),
        "running_mean_by_cost": np.array([[8.0, 6.0, 4.25]]),
    }
    return SimpleNamespace(**given | changes)


def test_exact_where_the_run_kept_the_mean() -> None:
    assert paths(trace()).mean.tolist() == [[8, 6, 4.25]] and paths(trace()).cost.tolist() == [[1, 3, 7]]


def test_records_have_the_weight_of_what_was_asked_since_the_one_before() -> None:
    unknown = trace(running_mean_by_cost=np.full((1, 3), np.nan))
    assert paths(unknown).mean.tolist() == [[8, (8 + 2 * 4) / 3, (8 + 2 * 4 + 4 * 2) / 7]]


def test_an_opening_is_not_free() -> None:
    """SAGA's table: a gradient of each of 200 rows at the start, then one at a step."""
    asked = np.array([[201, 202, 204]], np.int64)
    unknown = trace(record_cost=asked, running_mean_by_cost=np.full((1, 3), np.nan))
    assert paths(unknown).mean == pytest.approx(np.array([[8, (201 * 8 + 4) / 202, (201 * 8 + 4 + 2 * 2) / 204]]))


def test_what_is_not_finite_is_infinite() -> None:
    broken = trace(running_mean_by_cost=np.array([[8.0, np.nan, np.nan]]))
    assert paths(broken).mean.tolist() == [[8, np.inf, np.inf]]
    unknown = {"running_mean_by_cost": np.full((1, 3), np.nan)}
    broken = trace(grad_norm=np.array([[8.0, np.nan, np.nan]]), **unknown)
    assert paths(broken).mean.tolist() == [[8, np.inf, np.inf]]


def test_a_seed_that_diverges_leaves_the_others_as_they_are() -> None:
    """Where the mean over all steps is not kept, it is infinite for a diverged seed and unknown for the others."""
    found = paths(
        trace(
            record_cost=np.array([[1, 3, 7], [1, 3, 3]], np.int64),
            grad_norm=np.array([[8.0, 4.0, 2.0], [8.0, np.nan, np.nan]]),
            running_mean_by_cost=np.full((2, 3), np.nan),
        )
    )
    assert found.mean.tolist() == [[8, 16 / 3, 24 / 7], [8, np.inf, np.inf]]
