"""What `plan` returns, and what it refuses."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from normstorm.theory import CATALOGUE, Constants, MeanSquare, bound, plan
from normstorm.theory.plan import round_up
from normstorm.theory.planner.allocate import Allocator
from normstorm.theory.planner.solver import Solver, Triple

PLAIN = Constants(1, 0, 1, 0, 1, 1)
AFFINE = Constants(1, 1, 1, 0.5, 1, 1)
STEEP = Constants(10, 2, 0.1, 0.1, 5, 10)
WILD = Constants(1, 1, 1, 2, 1, 1)


def recomputed(found):
    """The bound from nothing but what a plan states."""
    delta = None if found.confidence is None else 1 - found.confidence
    return float(
        bound(
            found.certificate,
            found.constants,
            T=found.horizon,
            alpha=found.alpha,
            eta=found.eta,
            K=found.batch,
            k=found.sub_batch,
            delta=delta,
            free=found.free,
        )
    )


@pytest.mark.parametrize("constants", [PLAIN, AFFINE, STEEP, Constants(0, 2, 0.3, 0, 1), Constants(1, 1, 0, 0, 1)])
@pytest.mark.parametrize("confidence", [0.95, None])
@pytest.mark.parametrize("rule", ["sharp", "paper"])
@pytest.mark.parametrize("question", [{"horizon": 3000}, {"budget": 40_000}])
def test_a_plan_proves_what_it_states(constants, confidence, rule, question):
    found = plan(constants, confidence=confidence, rule=rule, **question)
    assert recomputed(found) == pytest.approx(found.bound, rel=1e-9)
    assert sum(term.value for term in found.terms) == pytest.approx(found.bound, rel=1e-9)
    assert found.sample_gradients == found.batch + (found.horizon - 1) * (found.batch + found.sub_batch)
    assert 1 <= found.sub_batch <= found.batch
    assert found.beta == 1 - found.alpha
    if "budget" in question:
        assert found.sample_gradients <= 40_000 < found.sample_gradients + found.batch + found.sub_batch
    else:
        assert found.horizon == 3000


@pytest.mark.parametrize("constants", [PLAIN, AFFINE, STEEP])
def test_target_is_met_at_the_fewest_sample_gradients(constants):
    found = plan(constants, target=0.2)
    assert found.bound <= 0.2
    shorter = plan(constants, horizon=found.horizon - 1, batch=found.batch, sub_batch=found.sub_batch)
    assert shorter.bound > 0.2
    # No other batches reach the target with 1 % fewer sample gradients.
    assert plan(constants, budget=round(found.sample_gradients * 0.99)).bound > 0.2


@pytest.mark.parametrize("rule", ["sharp", "paper"])
def test_target_with_fixed_batches(rule):
    found = plan(STEEP, target=1.0, batch=8, sub_batch=2, rule=rule)
    assert (found.batch, found.sub_batch) == (8, 2)
    assert found.bound <= 1.0
    assert plan(STEEP, horizon=found.horizon - 1, batch=8, sub_batch=2, rule=rule).bound > 1.0


def test_one_of_the_batches_fixed():
    free = plan(AFFINE, budget=30_000)
    assert plan(AFFINE, budget=30_000, batch=free.batch).bound == pytest.approx(free.bound, rel=1e-6)
    assert plan(AFFINE, budget=30_000, sub_batch=free.sub_batch).bound == pytest.approx(free.bound, rel=1e-6)
    assert plan(AFFINE, budget=30_000, batch=3).batch == 3
    assert plan(AFFINE, budget=30_000, sub_batch=3).sub_batch == 3


def test_batches_of_a_fixed_horizon():
    assert (plan(PLAIN, horizon=100).batch, plan(PLAIN, horizon=100).sub_batch) == (1, 1)
    only_batch = plan(PLAIN, horizon=100, batch=6)
    assert (only_batch.batch, only_batch.sub_batch) == (6, 6)
    only_sub = plan(PLAIN, horizon=100, sub_batch=6)
    assert (only_sub.batch, only_sub.sub_batch) == (6, 6)


def test_the_papers_corollary_in_expectation_uses_the_smallest_batch_it_admits():
    found = plan(Constants(1, 1, 1, 0.3, 1, 1), target=1.0, confidence=None, rule="paper")
    assert found.batch == found.sub_batch == math.ceil(64 * 0.09) == 6
    assert found.bound <= 1.0
    assert plan(Constants(1, 1, 1, 0.125, 1, 1), horizon=10, confidence=None, rule="paper").batch == 1


@pytest.mark.parametrize("horizon", [1, 2, 10, 10**15])
@pytest.mark.parametrize("confidence", [0.99, None])
def test_extreme_horizons(horizon, confidence):
    for constants in (PLAIN, AFFINE, STEEP):
        found = plan(constants, horizon=horizon, confidence=confidence)
        assert math.isfinite(found.bound)
        assert recomputed(found) == pytest.approx(found.bound, rel=1e-9)
    if horizon == 10**15:
        assert found.alpha < 1e-7
        assert found.bound < 1e-4


def test_numpy_integers_and_floats_are_welcome():
    found = plan(Constants(*np.float32([1, 0, 1, 0, 1])), horizon=np.int64(50), batch=np.int32(2))
    assert (found.horizon, found.batch) == (50, 2)


def test_a_guarantee_names_probability_horizon_bound_and_assumptions():
    text = plan(PLAIN, horizon=1000, confidence=0.95).guarantee
    for part in ("at least 0.95", "t = 1..1000", "3A and 4A", "last iterate is promised nothing"):
        assert part in text
    assert text.endswith(".") and "\n" not in text
    in_mean = plan(PLAIN, horizon=1000, confidence=None).guarantee
    assert in_mean.startswith("In expectation") and "3B and 4B" in in_mean
    sure = plan(Constants(1, 0, 1, 0, 1, 1, noise="almost-sure"), horizon=1000, confidence=None)
    assert "3A and 4A" in sure.guarantee


def test_a_guarantee_never_rounds_its_probability_up():
    text = plan(PLAIN, horizon=1000, confidence=0.9999999999999).guarantee
    assert text.startswith("With probability at least 0.9999999999999,")


def test_notes_warn_where_nothing_is_gained():
    hopeless = plan(PLAIN, horizon=3)
    assert "nothing better than the starting point" in hopeless.explain()
    assert not plan(PLAIN, horizon=10**5).notes
    still = plan(Constants(1, 1, 0, 0, 1, 1), horizon=100)
    assert (still.alpha == 1) == any("beta = 0" in note for note in still.notes)


def test_printed_bounds_are_rounded_up():
    rng = np.random.default_rng(0)
    for value in 10.0 ** rng.uniform(-300, 300, 2000):
        shown = float(round_up(value))
        assert value <= shown <= value * 1.0011
    assert float(round_up(0.12103)) == 0.1211
    assert round_up(0.5) == "0.5"


def test_only_the_certificate_asked_for():
    for certificate in CATALOGUE.values():
        confidence = None if certificate.kind == "expectation" else 0.99
        found = plan(STEEP, horizon=5000, certificate=certificate.name, confidence=confidence)
        assert found.certificate == certificate.name
        assert found.bound >= plan(STEEP, horizon=5000, confidence=confidence).bound * (1 - 1e-9)


def test_mean_square_constants_give_expectation_only():
    constants = Constants(1, 1, 1, 0.5, 1, 1, noise="mean-square")
    sure = Constants(1, 1, 1, 0.5, 1, 1, noise="almost-sure")
    loose = plan(sure, horizon=1000, confidence=None).bound
    assert plan(constants, horizon=1000, confidence=None).bound < loose
    with pytest.raises(ValueError, match="confidence must be None for constants with noise='mean-square'"):
        plan(constants, horizon=1000)


def test_json_ready():
    found = plan(AFFINE, horizon=1000)
    text = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    keys = "beta alpha eta horizon batch sub_batch bound certificate guarantee sample_gradients"
    assert set(keys.split()) <= set(text)
    assert text["constants"]["L0"] == 1.0


BAD = [
    ({}, r"exactly one of target, horizon, budget must be given; got none"),
    ({"target": 0.1, "horizon": 5}, r"exactly one of .*; got target=0.1, horizon=5"),
    ({"target": 0.1, "budget": 5}, r"exactly one of"),
    ({"horizon": 0}, r"horizon must be an integer in \[1, 1e\+18\]; got horizon=0"),
    ({"horizon": -3}, r"horizon must be an integer"),
    ({"horizon": 1.5}, r"horizon must be an integer.*got horizon=1.5"),
    ({"horizon": math.nan}, r"horizon must be an integer.*got horizon=nan"),
    ({"horizon": True}, r"horizon must be an integer"),
    ({"horizon": "9"}, r"horizon must be an integer"),
    ({"horizon": 10**19}, r"horizon must be an integer"),
    ({"budget": 0}, r"budget must be an integer"),
    ({"budget": math.inf}, r"budget must be an integer"),
    ({"budget": 3, "batch": 4}, r"budget must be an integer >= batch = 4; got budget=3"),
    ({"budget": 3, "sub_batch": 4}, r"budget must be an integer >= batch = 4; got budget=3"),
    ({"target": 0}, r"target must be a finite number > 0; got target=0"),
    ({"target": -1.0}, r"target must be a finite number > 0"),
    ({"target": math.nan}, r"target must be a finite number > 0"),
    ({"target": math.inf}, r"target must be a finite number > 0"),
    ({"target": "0.1"}, r"target must be a finite number > 0"),
    ({"horizon": 5, "confidence": 1.0}, r"confidence must be a number in \(0, 1\).*got confidence=1.0"),
    ({"horizon": 5, "confidence": 0.0}, r"confidence must be a number in \(0, 1\)"),
    ({"horizon": 5, "confidence": 1e-300}, "^plan: confidence must be at least 1e-16; got confidence=1e-300"),
    ({"horizon": 5, "confidence": -0.5}, r"confidence must be a number in \(0, 1\)"),
    ({"horizon": 5, "confidence": math.nan}, r"confidence must be a number in \(0, 1\)"),
    ({"horizon": 5, "confidence": "high"}, r"confidence must be a number in \(0, 1\)"),
    ({"horizon": 5, "batch": 0}, r"batch must be an integer"),
    ({"horizon": 5, "sub_batch": 0}, r"sub_batch must be an integer in \[1, 1e\+18\]; got sub_batch=0"),
    ({"horizon": 5, "batch": 2, "sub_batch": 3}, r"sub_batch must be .* \[1, batch\]; got sub_batch=3, batch=2"),
    ({"horizon": 5, "rule": ["sharp"]}, r"rule must be one of sharp, paper; got rule=\['sharp'\]"),
    ({"horizon": 5, "certificate": ["sure"]}, r"certificate must be one of .*; got certificate=\['sure'\]"),
    ({"horizon": 5, "rule": "best"}, r"rule must be one of sharp, paper; got rule='best'"),
    ({"horizon": 5, "certificate": "magic"}, r"certificate must be one of paper, union, .*; got certificate='magic'"),
    ({"horizon": 5, "certificate": "expectation"}, r"in high probability; got certificate='expectation'"),
    ({"horizon": 5, "certificate": "sure", "confidence": None}, r"for a guarantee in expectation"),
    ({"horizon": 5, "certificate": "sure", "rule": "paper"}, r"certificate must be left out with rule='paper'"),
    ({"horizon": 5, "batch": 3, "rule": "paper", "confidence": None}, r"batch must be .* >= .* = 16 .*; got batch=3"),
    ({"budget": 9, "rule": "paper", "confidence": None}, r"budget must be an integer >= batch = 16"),
    ({"target": np.True_}, r"target must be a finite number > 0"),
    ({"target": np.array([1.0])}, r"target must be a finite number > 0"),
    ({"target": 10**400}, r"target must be a finite number > 0"),
    ({"target": 1e-300}, r"target must be at least .*; got target=1e-300"),
    ({"target": 1e-30}, r"target must be at least .*; got target=1e-30"),
    ({"target": 1e-30, "rule": "paper"}, r"target must be at least .*; got target=1e-30"),
    ({"target": 1e-3, "certificate": "sure"}, r"target must be at least .*; got target=0.001"),
]  # fmt: skip


@pytest.mark.parametrize(("question", "message"), BAD, ids=[str(q)[:60] for q, _ in BAD])
def test_bad_input_is_one_sentence(question, message):
    with pytest.raises(ValueError, match=message) as caught:
        plan(AFFINE, **question)
    text = str(caught.value)
    assert text.startswith("plan: ") and "\n" not in text


def test_leftover_budget_buys_a_larger_batch():
    found = plan(Constants(1, 0.5, 1e100, 0.1, 1), budget=1000, confidence=None)
    assert (found.horizon, found.batch) == (1, 1000)


def test_short_runs_for_a_target_are_not_too_dear():
    # One step with K samples is enough here, and its bound falls like K^(-1/2).
    constants = Constants(48.7, 0, 98.6, 0.5, 0.0105)
    only = {"confidence": None, "certificate": "expectation"}
    found = plan(constants, target=4.68, **only)
    assert (found.horizon, found.sub_batch) == (1, 1)
    assert plan(constants, horizon=1, batch=round(found.batch * 0.99), **only).bound > 4.68


@pytest.mark.parametrize("budget", [60, 1000])
@pytest.mark.parametrize("noise", [(0.056, 2.0), (3.0, 0.0)])
def test_short_runs_at_a_budget_are_found(budget, noise):
    constants = Constants(0.45, 0, *noise, 0.03)
    solver = Solver(constants, 0.01)
    found = Allocator(solver, None, None).for_budget(budget)
    sizes = [(T, (budget - (T - 1) * k) // T, k) for T in range(1, 13) for k in (1, 2, 8)]
    for other in solver.solve([Triple(T, K, k) for T, K, k in sizes if k <= K]):
        assert found.value <= other.value * (1 + 1e-3), other.triple


def test_a_valley_of_another_certificate_is_found():
    """`adaptive_convex` is best at K = 5 with 287.6, `adaptive` at K = 22 with 284.8."""
    constants = Constants(728.3742, 0.0571357, 606.9403, 0.6999979, 359.3659, 78.501)
    found = plan(constants, budget=5924, confidence=0.95)
    assert found.bound < 285.2 and found.certificate == "adaptive"


@pytest.mark.parametrize("confidence", [0.99, None])
def test_nothing_above_the_first_gradient_is_stated_of_one_step(confidence):
    for question in ({"budget": 1}, {"target": 1.0}, {"target": 3.0, "batch": 5}):
        found = plan(PLAIN, confidence=confidence, **question)
        assert found.bound == 1.0 and found.horizon == 1, question
        assert recomputed(found) == pytest.approx(1.0, rel=1e-9)
        assert any("nothing better than the starting point" in note for note in found.notes)
    two = plan(PLAIN, horizon=2, confidence=confidence)
    assert two.bound == pytest.approx(1 + two.eta / 2, rel=1e-9)


def test_the_observed_bound_of_a_plan():
    """P and Q are those of the terms: the bound is (gap and curvature terms) + 2 P/(A T) with A = a - 2 Q."""
    for constants in (AFFINE, STEEP, Constants(0, 2, 0.3, 0, 1)):
        found = plan(constants, horizon=3000)
        descent = sum(term.value for term in found.terms if term.name in ("gap", "curvature"))
        A = 1 - found.eta * constants.L1 / 2 - 2 * found.slope
        assert found.bound == pytest.approx(descent + 2 * found.error / A, rel=1e-9)
        for mean in (0.0, 0.7):
            assert found.observed_bound(mean) == pytest.approx((mean + found.error) / (1 - found.slope), rel=1e-9)
    assert plan(AFFINE, horizon=3000, confidence=None).observed_bound(0.1) is None
    with pytest.raises(ValueError, match="observed_bound: mean_estimate_norm must be a finite number >= 0; got"):
        found.observed_bound(-1.0)


@pytest.mark.parametrize("question", [{"horizon": 3000}, {"horizon": 3000, "confidence": None}])
def test_constants_in_both_senses_lower_the_bound(question):
    constants = replace(AFFINE, noise="almost-sure")
    both = replace(constants, mean_square=MeanSquare(0.6, 0.7, 0.5, 0.4))
    found = plan(both, **question)
    assert found.bound < 0.9 * plan(constants, **question).bound
    if question.get("confidence", 1) is None:
        assert found.bound == pytest.approx(plan(both.in_mean_square, **question).bound, rel=1e-5)
        assert "2, 3B and 4B hold" in found.guarantee
    else:
        assert "3A, 4A, 3B and 4B hold" in found.guarantee
        same = replace(constants, mean_square=MeanSquare(1, 1, 1, 0.5))
        # The same numbers in 4B say a little more than 4A: sqrt(sigma0^2 + sigma1^2 g^2) at the first step.
        assert 0.98 < plan(same, **question).bound / plan(constants, **question).bound <= 1 + 1e-6


def test_degenerate_problems_are_named():
    with pytest.raises(ValueError, match=r"plan: constants must be a normstorm.Constants; got constants=None"):
        plan(None, horizon=5)
    with pytest.raises(ValueError, match=r"gap must be > 0; got gap=0\.0, which says that x1 already minimises F"):
        plan(Constants(1, 0, 1, 0, 0), horizon=5)
    with pytest.raises(ValueError, match="L0 and L1 must not both be 0"):
        Constants(0, 0, 1, 0, 1)
    with pytest.raises(ValueError, match=r"sigma1 must be a number in \[0, 1.25e\+08\], .*; got sigma1=1e\+160"):
        plan(Constants(1, 0.5, 1, 1e160, 1), horizon=10, confidence=None, rule="paper")
    with pytest.raises(ValueError, match="of sizes whose ratios are finite"):
        plan(Constants(1e300, 0, 1, 0, 1e300), horizon=5)
    with pytest.raises(ValueError, match="large enough for a finite bound by certificate lyapunov; got horizon=100"):
        plan(WILD, horizon=100, certificate="lyapunov")
