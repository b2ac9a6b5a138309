"""The main job: which point is returned, what is said of it, and what is refused."""

import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import jax
import numpy as np
import own
import pytest

from normstorm import Constants, minimize, plan
from normstorm.solve import CANDIDATES, CHOICES, Result, _promise, fingerprint

PLAN = plan(own.KNOWN, horizon=400, batch=2, sub_batch=1, confidence=0.9)
CENTRE = own.ROWS.mean(axis=0)


@pytest.fixture(autouse=True)
def double_precision() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


def solve(**options: object) -> Result:
    return minimize(own.problem, **({"plan": PLAN, "samples": 60, "progress": False} | options))


def true_norm(x: np.ndarray) -> float:
    """||grad F|| without JAX: F is half the mean squared distance from the rows."""
    return float(np.linalg.norm(np.asarray(x) - CENTRE))


@pytest.mark.parametrize("choose", CHOICES)
def test_each_rule_returns_its_point(choose: str) -> None:
    found = solve(choose=choose, seeds=[3, 4])
    trace = found.trace
    candidates, steps = trace.candidates.x[0], trace.candidates.step[0]
    expected = {"last": trace.last[0], "random": trace.uniform.x[0], "smallest": trace.smallest.x[0]}
    if choose == "two-phase":
        at = int(re.search(r"t = (\d+)", found.reason)[1])
        assert np.array_equal(found.x, candidates[list(steps).index(at)])
        assert found.sample_gradients == PLAN.sample_gradients + 60 * CANDIDATES
    else:
        assert np.array_equal(found.x, expected[choose])
        assert found.sample_gradients == PLAN.sample_gradients + 60
    if choose in ("random", "smallest"):
        pick = trace.uniform if choose == "random" else trace.smallest
        assert f"t = {pick.step[0]}" in found.reason
    # One comparison at confidence 0.9 for each rule; the seeds are fixed.
    assert true_norm(found.x) <= found.certificate.upper_bound
    assert found.certificate.confidence == 0.9 and found.certificate.samples == 60


def test_two_phase_takes_the_candidate_with_the_smallest_bound() -> None:
    found = solve(samples=20_000)
    norms = [true_norm(x) for x in found.trace.candidates.x[0]]
    # The standard error of a mean of 20,000 rows, whose spread is about 0.5, is below 0.004.
    assert true_norm(found.x) <= min(norms) + 0.03 < max(norms)
    assert found.certificate.mean_norm == pytest.approx(true_norm(found.x), abs=0.03)


def test_a_seed_alone_or_first_of_many_gives_the_same_point() -> None:
    alone, crowd = solve(seeds=[7]), solve(seeds=[7, 8, 9])
    assert np.array_equal(alone.x, crowd.x) and alone.certificate == crowd.certificate
    assert alone.trace.mean_grad_norm[0] == crowd.trace.mean_grad_norm[0]


def test_promises() -> None:
    bound = f"{PLAN.bound:.3g}"
    promises = {choose: solve(choose=choose).promise for choose in CHOICES}
    assert "over the choice of t" in promises["random"] and bound[:3] in promises["random"]
    assert promises["last"] == promises["smallest"] and "promises nothing" in promises["last"]
    assert promises["two-phase"].startswith("With probability at least 0.8, one of the 8 candidates")


@pytest.mark.parametrize("T", [400, 403, 15, 8, 5, 1])
def test_the_factor_of_the_candidates_is_proven_for_every_sequence(T: int) -> None:
    """P(all candidates exceed c B) = product over slices of the shares that do, at most delta for every sequence."""
    delta = 1 - PLAN.confidence
    words = _promise(replace(PLAN, horizon=T, bound=1.0), "two-phase", T)
    factor = float(re.search(r"at most ([\d.]+)\.$", words)[1])
    R = min(CANDIDATES, T)
    ends = np.arange(R + 1) * T // R
    rng = np.random.default_rng(T)
    worst = 0.0
    for _ in range(300):
        share = rng.uniform(0, 2 / factor)
        sizes = [round(share * n) for n in np.diff(ends)]  # so many large values in each slice, the worst shape
        g = np.zeros(T)
        for end, size in zip(ends[1:], sizes, strict=True):
            g[end - size : end] = 1
        if not g.any():
            continue
        g *= T / g.sum()  # average 1
        shares = [np.mean(g[a:b] > factor) for a, b in pairwise(ends)]
        worst = max(worst, float(np.prod(shares)))
    assert worst <= delta
    assert T < 400 or worst > delta / 4, "a smaller factor would fail: the check has teeth"


def test_observed_counts_diverged_seeds_as_violations() -> None:
    found = solve(seeds=3)
    means = np.array([PLAN.bound / 2, np.inf, PLAN.bound])
    trace = replace(found.trace, mean_grad_norm=means, diverged_at=np.array([0, 5, 0]))
    seen = replace(found, trace=trace).observed()
    assert (seen["seeds"], seen["diverged"], seen["violations"]) == (3, 1, 1)
    assert seen["mean_grad_norm"] == {"median": PLAN.bound, "q95": np.inf, "q99": np.inf, "max": np.inf}


def test_target_and_budget_make_the_plan() -> None:
    found = solve(plan=None, budget=PLAN.sample_gradients, confidence=0.9)
    assert found.plan == plan(own.KNOWN, budget=PLAN.sample_gradients, confidence=0.9)
    assert found.trace.steps == found.plan.horizon
    assert found.violations == 0, "true with probability 0.9 at least, and this seed is fixed"


def test_a_plan_in_expectation_uses_the_mean_square_alone() -> None:
    in_mean = plan(own.KNOWN, horizon=400, batch=2, sub_batch=1, confidence=None)
    found = solve(plan=in_mean, choose="last", samples=300)
    assert found.certificate.sense == "mean-square" and found.certificate.confidence == 0.99
    assert true_norm(found.x) <= found.certificate.upper_bound


def test_fingerprints_follow_the_data() -> None:
    other = replace(own.problem, data=own.ROWS + 1e-12)
    assert fingerprint(own.problem) == fingerprint(replace(own.problem)) != fingerprint(other)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"choose": "best"}, "choose must be one of two-phase, random, smallest, last; got choose='best'"),
        ({"plan": None}, "exactly one of target, budget, plan must be given; got target=None, budget=None"),
        ({"plan": None, "target": 1, "budget": 9}, "exactly one of target, budget, plan must be given"),
        ({"target": 1.0}, "exactly one of target, budget, plan must be given; got target=1.0"),
        ({"confidence": 0.95}, "confidence must be left out or the plan's, 0.9; got confidence=0.95"),
        ({"plan": replace(PLAN, horizon=2**31)}, "must lead to at most 1073741824 steps"),
        ({"plan": None, "target": -1.0}, "target must be a finite number > 0"),
        ({"plan": None, "target": 1.0, "confidence": 2}, r"confidence must be a number in \(0, 1\)"),
        ({"seeds": 0}, "seeds must be an integer in"),
        ({"seeds": [1, 1]}, "seeds must be different integers"),
        ({"samples": 1}, "samples must be an integer in"),
    ],
)
def test_refusals(options: dict[str, object], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        solve(**options)


def test_constants_must_serve_the_guarantee() -> None:
    weak = Constants(**own.KNOWN.to_dict() | {"noise": "mean-square"})
    with pytest.raises(ValueError, match="sense must be mean-square"):
        minimize(replace(own.problem, known=weak), target=1.0, progress=False)
