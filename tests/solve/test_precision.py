"""Rounding: the bound of a rounded run, against runs that are rounded by an adversary, by float32 and by nobody."""

from collections.abc import Iterator
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import own
import pytest

from normstorm import Constants, Plan, minimize, plan
from normstorm.problems.user import from_loss
from normstorm.solve.precision import STANDS_IN, rounded_bound
from normstorm.theory.certificates import CATALOGUE, bound

PLAN = plan(own.KNOWN, horizon=1500, batch=2, sub_batch=1, confidence=0.9)


@pytest.fixture(autouse=True)
def double_precision() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


def planned(certificate: str, known: Constants, eta: float, T: int, alpha: float = 0.3) -> Plan:
    kind = CATALOGUE[certificate].kind
    delta = 0.1 if kind == "high probability" else None
    found = bound(certificate, known, T=T, alpha=alpha, eta=eta, K=4, k=2, delta=delta)
    return Plan(known, "sharp", certificate, T, alpha, eta, 4, 2, None if delta is None else 0.9, float(found), ())


@pytest.mark.parametrize("certificate", CATALOGUE)
def test_every_certificate_has_room_for_rounding(certificate: str) -> None:
    known = Constants(L0=1, L1=0.01, sigma0=1, sigma1=0.01, gap=3, grad_norm=2)
    exact = planned(certificate, known, eta=1e-3, T=4000)
    nearly = rounded_bound(exact, 1e-9, 1e-9)
    assert nearly == pytest.approx(exact.bound, rel=1e-6) or (certificate in STANDS_IN and nearly < exact.bound)
    values = [rounded_bound(exact, rho, q) for rho, q in ((0, 0), (0.01, 0), (0.01, 0.01), (0.02, 0.1))]
    assert values == sorted(values) and values[0] < values[-1] < np.inf
    assert rounded_bound(exact, 0.5, 0) == rounded_bound(exact, 0, np.inf) == np.inf


def adversarial(rho: float, q: float, eta: float, T: int) -> tuple[float, float]:
    """(average gradient norm, gap) of a noise-free run on Huber's function that is rounded as badly as allowed.

    grad F(x) = clip(x, -1, 1), so L0 = 1. Rounding takes rho off each step and q off each estimate.
    """
    gap = eta * T / 2
    x, total = gap + 0.5, 0.0
    for _ in range(T):
        gradient = min(max(x, -1.0), 1.0)
        total += abs(gradient)
        m = gradient - np.sign(gradient) * q * (1 + 1e-9)
        x -= eta * np.sign(m) - rho * eta * np.sign(gradient)
    return total / T, gap


@pytest.mark.parametrize(("rho", "q"), [(0.0, 0.0), (0.2, 0.0), (0.0, 0.3), (0.1, 0.2)])
def test_the_worst_rounding_breaks_the_exact_bound_and_keeps_the_rounded_one(rho: float, q: float) -> None:
    eta, T = 0.01, 20_000
    average, gap = adversarial(rho, q, eta, T)
    known = Constants(L0=1, L1=0, sigma0=0, sigma1=0, gap=gap, grad_norm=1)
    exact = planned("sure", known, eta, T)
    assert average <= rounded_bound(exact, rho, q)
    assert (average > exact.bound) == (rho > 0 or q > 0)


def shifted(offset: float, loss=own.squares):
    """own.problem moved away from the origin: in exact arithmetic the same runs, in float32 fewer digits."""
    return from_loss(loss, own.ROWS + offset, start=own.START + offset, constants=own.KNOWN, infimum=0.0)


def averages(problem, seeds: int = 4):
    """(float32 result, float64 result) with the same samples for the same seeds."""
    start = problem.x0
    return [
        minimize(problem, start.astype(dtype), plan=PLAN, seeds=seeds, samples=60, progress=False)
        for dtype in (np.float32, np.float64)
    ]


def test_single_precision_where_the_rule_says_that_it_is_enough() -> None:
    single, double = averages(own.problem)
    assert (single.precision.dtype, double.precision.dtype) == ("float32", "float64")
    assert single.precision.adequate and single.precision.bound < 1.001 * PLAN.bound
    assert double.precision.bound < (1 + 1e-9) * PLAN.bound
    room = single.precision.bound - PLAN.bound
    change = np.abs(single.trace.mean_grad_norm - double.trace.mean_grad_norm)
    assert 0 < change.max() <= room, "the runs differ, and by less than the rule grants"
    assert single.trace.mean_grad_norm.max() <= PLAN.bound
    assert "float32" in single.precision.statement and " %." in single.precision.statement
    assert single.precision.to_dict()["adequate"] is True


def test_a_start_that_single_precision_rounds_keeps_its_constants() -> None:
    problem = replace(own.problem, x0=np.array([0.1, 0.2, 0.3]))
    with jax.enable_x64(False):
        found = minimize(problem, budget=2000, confidence=0.9, method="plan", samples=60, progress=False)
    assert found.precision.dtype == "float32" and found.precision.adequate
    assert found.plan == plan(own.KNOWN, budget=2000 - 8 * 60, confidence=0.9)


def test_single_precision_that_does_not_resolve_the_step() -> None:
    problem = shifted(2.0**19)  # float32 has steps of 1/16 there
    with pytest.warns(RuntimeWarning, match=r"not kept in float32: rounding of x can change a step by .*; float64 is"):
        single, double = averages(problem)
    assert not single.precision.adequate and single.precision.step_lost > 1
    assert double.precision.adequate and double.trace.mean_grad_norm.max() <= PLAN.bound
    assert single.trace.mean_grad_norm.min() > PLAN.bound, "the guarantee is broken, not only unproven"


def test_single_precision_that_loses_the_digits_of_gradients() -> None:
    def cancelling(x, row):
        return 0.5 * jnp.sum(((x + 2.0**22) - (row + 2.0**22)) ** 2)

    problem = replace(own.problem, per_row=cancelling)
    with pytest.warns(RuntimeWarning, match="not kept in float32: rounding of gradients can add"):
        single, double = averages(problem)
    assert single.precision.step_lost < 1e-3 < single.precision.gradient_error
    assert double.precision.adequate and double.trace.mean_grad_norm.max() <= PLAN.bound
    true = [
        np.linalg.norm(found.trace.candidates.x - own.ROWS.mean(axis=0), axis=2).mean() for found in (single, double)
    ]
    assert true[0] > 3 * true[1], "what the single run takes for small gradients is not small"


def test_diverged_and_overflowing_runs_prove_nothing() -> None:
    def steep(x, row):
        return 0.5 * jnp.sum((x - row) ** 2) * 1e25 * 1e15

    with pytest.warns(RuntimeWarning, match="no bound follows"):
        found = minimize(
            replace(own.problem, per_row=steep), own.START, plan=PLAN, samples=60, choose="last", progress=False
        )
    assert found.precision.bound == np.inf and not found.precision.adequate
