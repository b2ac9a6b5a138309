"""The coverage study at a small scale: it counts what it should, and says why a problem has no figures."""

from dataclasses import replace

import jax
import numpy as np
import pytest

from normstorm.algorithms.catalogue import from_plan
from normstorm.engine.run import run
from normstorm.lab.studies import coverage
from normstorm.problems import registry
from normstorm.theory.planner.planner import plan

SCALE = {"budget": 600, "confidence": 0.9, "seeds": 12}


@pytest.fixture(scope="module")
def row():
    return coverage.row("exp-quad", **SCALE)


def test_a_row_says_what_was_planned_and_what_was_seen(row) -> None:
    problem = registry.get("exp-quad")
    planned = plan(problem.constants(), budget=600, confidence=0.9)
    named = (planned.bound, planned.horizon, planned.batch, planned.sub_batch, planned.certificate)
    assert (row["bound"], row["horizon"], row["batch"], row["sub_batch"], row["certificate"]) == named
    assert row["sample_gradients"] == planned.batch + (planned.horizon - 1) * (planned.batch + planned.sub_batch) <= 600
    assert row["constants"] == problem.constants().to_dict() and row["dimension"] == 5 and row["seeds"] == 12
    assert 0 < row["median"] <= row["q99"] <= row["max"] < row["bound"] and row["violations"] == 0
    assert row["ratio"] == row["bound"] / row["q99"]


def test_seeds_above_a_lower_bound_are_counted(row) -> None:
    problem = registry.get("exp-quad")
    planned = plan(problem.constants(), budget=600, confidence=0.9)
    with jax.enable_x64(True):
        trace = run(problem, from_plan(planned), problem.start(), planned.horizon, range(12))
    third = float(np.sort(trace.mean_grad_norm)[2]) * (1 + 1e-4)  # between the third and the fourth of twelve
    seen = coverage.observe(problem, replace(planned, bound=third), 12)
    assert seen["violations"] == 9
    assert coverage.observe(problem, replace(planned, bound=1e-9), 12)["violations"] == 12
    assert seen["max"] == row["max"]


def test_a_seed_that_diverges_is_a_violation() -> None:
    problem = registry.get("exp-quad")
    planned = replace(plan(problem.constants(), budget=600, confidence=0.9), eta=1e6)
    assert coverage.observe(problem, planned, 12)["violations"] == 12


def test_a_problem_without_a_plan_has_a_reason(monkeypatch) -> None:
    def missing():
        raise ValueError("no such data")

    monkeypatch.setitem(registry.PROBLEMS, "missing", registry.Entry(missing, "not there"))
    found = coverage.row("missing", **SCALE)
    assert found == {"problem": "missing", "reason": "no such data"}


def fake(ratio: float, violations: int = 0, following: int = 0) -> dict:
    seen = {"ratio": ratio, "violations": violations, "seeds": 100, "confidence": 0.95}
    return seen | {"following_ratio": ratio / 2, "following_violations": following, "bound": 1, "first_gradient": 2}


def test_the_verdict_asks_for_both() -> None:
    fine = [fake(2.0), fake(3.9), fake(50.0), {"problem": "x", "reason": "y"}]
    found = {"problems": 3, "runs": 300, "violations": 0, "median_ratio": 3.9, "holds": True}
    follows = {"following_ratio": 1.95, "following_violations": 0, "above_start": 0}
    assert coverage.verdict(fine) == found | follows
    assert not coverage.verdict([fake(2.0, 0, 6)])["holds"]
    assert coverage.verdict([fake(2.0, 5)])["holds"]
    assert not coverage.verdict([fake(2.0), fake(2.0, 6)])["holds"]
    assert not coverage.verdict([fake(2.0), fake(4.1), fake(5.0)])["holds"]


def test_the_table_comes_row_by_row(row) -> None:
    rows = coverage.table(["exp-quad"], **SCALE)
    first = next(rows)
    assert {k: v for k, v in first.items() if k != "seconds"} == {k: v for k, v in row.items() if k != "seconds"}
    assert next(rows, None) is None
    shown = coverage.markdown([first, {"problem": "other", "reason": "unbounded noise"}]).splitlines()
    assert len({line.count("|") for line in shown if line.startswith("|")}) == 1
    assert shown[2].startswith("| exp-quad | 5 |") and shown[3].startswith("| other | unbounded noise |")
