"""A race: what it returns is certified and within what it may cost, however it is cut, and whoever ends it."""

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import own
import pytest

from normstorm import Constants, Result, minimize
from normstorm.algorithms.kalman import kalman_storm
from normstorm.algorithms.sgd import sgd
from normstorm.problems.user import from_loss
from normstorm.solve.certify import best_bound, certify, race_test
from normstorm.solve.fast_arm import MOST_TESTS, Allowance, run_fast_arm
from normstorm.solve.promise import CANDIDATES, Promise, descend, keep, promise_of, share_of_test
from normstorm.solve.race import _weighed, allowance_of, exact_norms, nothing_promised
from normstorm.solve.value import value_at
from normstorm.solve.watch import Contradictions

TARGET = 0.1


@pytest.fixture(autouse=True)
def double_precision() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


def box(key: jax.Array, n: int) -> jax.Array:
    return jax.random.uniform(key, (n, 3), minval=-0.5, maxval=0.5)


def whole(x: jax.Array) -> jax.Array:
    return 0.5 * jnp.sum(x**2) + 0.125


KNOWN = replace(own.KNOWN, sigma0=0.9)  # half the diagonal of the box is 0.866
STREAM = from_loss(own.squares, box, start=own.START, constants=KNOWN, objective=whole, name="box")


@pytest.fixture(scope="module")
def stream() -> Result:
    with jax.enable_x64(True):
        return minimize(STREAM, target=TARGET, confidence=0.95, seeds=3, progress=False)


def test_every_seed_has_a_true_certificate(stream: Result) -> None:
    race = stream.race
    assert stream.method == "race" and race.ended_by == "fast arm" and stream.certificate.target == TARGET
    assert all(bound <= TARGET for bound in race.bounds) and race.violations == 0
    # grad F(x) = x and F is known: both are checked without JAX.
    assert race.norms[0] == pytest.approx(np.linalg.norm(stream.x)) and race.norms[0] <= stream.certificate.upper_bound
    assert stream.value.value == pytest.approx(0.5 * np.sum(np.square(stream.x)) + 0.125) and stream.value.error == 0
    assert stream.certificate.confidence == pytest.approx(0.95)


def test_costs_add_up(stream: Result) -> None:
    race = stream.race
    assert race.cost == race.search + race.testing == race.costs[0] == stream.sample_gradients
    assert race.search == stream.trace.cost[0] and race.promised_by == "plan"
    assert max(race.costs) <= 2 * race.promise_cost and race.promise_cost == race.plan_cost
    assert stream.trace.stopped_at[0] > 0 and np.isnan(stream.trace.mean_grad_norm).all()


def test_interrupted_anywhere_it_goes_on_as_if_it_had_not_been(
    stream: Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def asked(**options: object) -> Result:
        return minimize(STREAM, target=TARGET, confidence=0.95, seeds=3, **options)

    kept, left = tmp_path / "race", 3

    def interrupt(done: int, most: int) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            raise KeyboardInterrupt

    for later in (9, 10**9):
        with pytest.raises(KeyboardInterrupt):
            asked(progress=interrupt, checkpoint=kept)
        left = later
    calls: list[int] = []

    def broken_off(*given: object) -> object:
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return race_test(*given)

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr("normstorm.solve.fast_arm.race_test", broken_off)
        asked(progress=False, checkpoint=kept)
    found = asked(progress=interrupt, checkpoint=kept)
    assert found.race == stream.race and np.array_equal(found.x, stream.x) and found.certificate == stream.certificate
    again = asked(progress=False, checkpoint=kept)
    assert again.race == stream.race, "a race that is over is only read"
    with pytest.raises(ValueError, match="must belong to this run; its race is"):
        minimize(STREAM, target=0.2, confidence=0.95, seeds=3, progress=False, checkpoint=kept)


def test_a_seed_does_not_depend_on_the_others(stream: Result) -> None:
    alone = minimize(STREAM, target=TARGET, confidence=0.95, seeds=[1], width=stream.trace.width, progress=False)
    assert alone.race.costs[0] == stream.race.costs[1] and alone.race.bounds[0] == stream.race.bounds[1]


def test_a_budget_is_spent_on_the_smallest_bound(stream: Result) -> None:
    found = run_fast_arm(STREAM, own.START, kalman_storm(), 3, Allowance(None, 0.05, 2000, 2000))
    at = found.standing
    assert (at.search + at.spent <= 4000).all() and (at.search + at.spent > 3900).all() and (at.tests == 1).all()
    assert (at.search < 2000).all(), "the rule ends the search before its limit"
    for i, one in enumerate(found.certificates):
        assert np.linalg.norm(found.point(i)) <= one.upper_bound < stream.race.bounds[i] and one.target is None


def test_search_and_tests_keep_to_what_they_may_cost() -> None:
    for search, tests in ((12, 40), (40, 300), (301, 64)):
        found = run_fast_arm(STREAM, own.START, kalman_storm(), 3, Allowance(1e-3, 0.05, search, tests))
        assert (found.standing.search <= search).all() and (found.standing.spent <= tests).all()
        assert not any(one is not None and one.certified for one in found.certificates)


def test_a_finite_sum_is_certified_without_any_constant() -> None:
    found = minimize(own.without_constants, target=TARGET, seeds=2, progress=False)
    assert found.plan is None and found.race.promised_by is None and "budget ends it" in found.promise
    assert found.certificate.sense == "exact" and found.certificate.upper_bound <= TARGET
    true = np.linalg.norm(np.asarray(found.x) - own.ROWS.mean(axis=0))
    assert true <= found.certificate.upper_bound and found.race.rows == len(own.ROWS)
    value = 0.5 * np.mean(np.sum((np.asarray(found.x) - own.ROWS) ** 2, axis=1))
    assert found.value.value == pytest.approx(value) and found.value.kind == "all rows"


def test_a_loss_and_rows_are_enough_and_false_constants_void_what_rests_on_them() -> None:
    rows = np.linspace(-1, 1, 30)[:, None] * np.ones(2)

    def loss(x: jax.Array, row: jax.Array) -> jax.Array:
        return 0.5 * jnp.sum((x - row) ** 2)

    free = minimize(loss, rows, np.ones(2), target=0.01, progress=False)
    assert free.certificate.sense == "exact" and free.certificate.upper_bound <= 0.01
    assert free.contradictions is None and free.void == ""
    record = (int(np.isfinite(free.trace.grad_norm[0]).sum()) + 1) * len(rows)
    assert free.beside == {"rounding": 48 * free.race.tests, "record": record, "losses": 2 * len(rows)}
    for sigma0, words in ((2.0, ""), (0.1, "Nothing that rests on the stated constants is guaranteed")):
        stated = from_loss(loss, rows, np.ones(2), constants=Constants(1, 0, sigma0, 0, 2))
        found = minimize(stated, target=0.01, progress=False)
        assert found.contradictions is not None and found.void.startswith(words) and bool(found.void) == bool(words)
        np.testing.assert_array_equal(found.x, free.x)


def test_a_stream_without_a_noise_bound_gets_an_estimate_that_says_so() -> None:
    unknown, x = replace(STREAM, known=None, objective=None), np.full(3, 0.02)
    asked = race_test(unknown, x, TARGET, 0.05, 20_000, (0.03, 0.25), 0, 1), best_bound(unknown, x, 0.05, 4000, 0)
    for found in asked:
        assert found.sense == "estimated" and found.guarantee.startswith("An estimate and no proof")
        assert np.linalg.norm(x) <= found.upper_bound
    assert asked[0].certified and asked[1].samples == 4000
    sentence = nothing_promised(unknown, x, asked[0])
    assert "constants (sigma0, sigma1) or a method range" in sentence and "none of 256 sample gradients" in sentence
    value = value_at(unknown, x)
    assert value.kind == "fresh samples" and abs(value.value - float(whole(x))) < 5 * value.error
    assert exact_norms(unknown, x[None]) is None


def test_a_range_is_enough_for_a_proof() -> None:
    ranged = replace(STREAM, known=None, range=lambda x, radius: (jnp.asarray(0.867), jnp.asarray(radius)))
    found = race_test(ranged, np.zeros(3), 0.2, 0.05, 10**5, (0.0, 0.25), 0, 1)
    assert found.sense == "almost-sure" and found.certified


def test_a_point_that_is_too_steep_is_given_up() -> None:
    steep = np.array([0.5, 0.0, 0.0])
    found = race_test(STREAM, steep, TARGET, 0.05, 10**6, (0.05, 0.25), 0, 1)
    assert not found.certified and found.samples < 2000


def promised(by_descent: bool) -> Promise:
    found = promise_of(own.KNOWN, 1.0, 0.9, own.problem)
    return replace(found, passes=found.passes if by_descent else None, restarted=None)


def test_what_was_promised_is_kept() -> None:
    for by_descent in (True, False):
        promise = promised(by_descent)
        assert promise.by == ("exact descent" if by_descent else "plan")
        (kept,), said = keep(promise, own.problem, own.START, [7], None, None, own.KNOWN)
        assert said.found == 0 and (by_descent or said.checked > 1)
        assert kept.certificate.certified and kept.run + kept.spent <= promise.cost
        assert np.linalg.norm(kept.x - own.ROWS.mean(axis=0)) <= kept.certificate.upper_bound <= 1.0


def test_a_fast_arm_that_gives_up_leaves_the_promise() -> None:
    found = minimize(own.problem, target=TARGET, seeds=2, rho=1e-9, progress=False)
    race = found.race
    assert race.ended_by == race.promised_by == "exact descent" and found.certificate.certified
    assert race.search == kalman_storm(table=True).cost(1, 40) and race.cost <= race.promise_cost + race.search
    assert "gave up" in found.reason


def test_descent_is_the_recursion_of_the_page() -> None:
    centre, x, passes = own.ROWS.mean(axis=0), own.START, 0
    L0, L1 = own.KNOWN.L0, own.KNOWN.L1
    while True:
        g, passes = x - centre, passes + 1
        if np.linalg.norm(g) <= 0.03:
            break
        x = x - g / (L0 + L1 * np.linalg.norm(g))
    found, asked, said = descend(own.problem, own.START, own.KNOWN, 0.03, 10**6)
    assert said.checked == passes - 1 and said.found == 0
    assert asked == passes and np.allclose(found, x, rtol=1e-12, atol=1e-14)
    assert descend(own.problem, own.START, own.KNOWN, 0.03, 2)[1] == 2


def test_shares_of_all_tests_are_at_most_delta() -> None:
    fast = sum(1 / (r * (r + 1)) for r in range(1, MOST_TESTS + 1))
    assert fast + CANDIDATES * share_of_test(1.0) <= 1


def test_allowances() -> None:
    promise = promised(True)
    found = allowance_of(40, 1.0, None, 0.1, promise, 0.5, 12)
    assert found.search + found.tests <= max(0.5 * promise.cost, 12 + 0.25 * promise.cost)
    two_passes = allowance_of(40, None, 1000, 0.1, None, 1.0, 12)  # one over the end of the search, one over its start
    assert two_passes == Allowance(None, 0.1, 920, 80)
    assert allowance_of(400, None, 1000, 0.1, None, 1.0, 12) == Allowance(None, 0.1, 600, 400)
    assert allowance_of(400, None, 500, 0.1, None, 1.0, 12) == Allowance(None, 0.1, 250, 250)
    assert sum(allowance_of(None, 1.0, None, 0.1, None, 1.0, 12)[2:]) == 10**6
    assert math.isclose(sum(allowance_of(10**6, 1.0, None, 0.1, None, 1.0, 12)[2:]), 10**8)


def test_a_run_that_leaves_the_finite_numbers_returns_its_start() -> None:
    rows = np.random.default_rng(0).normal(size=(50, 2))
    problem = from_loss(lambda x, a: -(jnp.dot(a, x) ** 2) * (1 + jnp.dot(a, x) ** 2), rows, np.ones(2), name="falls")
    found = minimize(problem, target=1e-2, progress=False)
    z = rows @ np.ones(2)
    exact = np.linalg.norm(rows.T @ (-2 * z - 4 * z**3) / 50)
    assert np.array_equal(found.x, np.ones(2)) and found.value.value == pytest.approx(np.mean(-(z**2) * (1 + z**2)))
    assert found.certificate.sense == "exact" and found.certificate.upper_bound == pytest.approx(exact)
    assert not found.certificate.certified and "the start" in found.reason and "not reached: 0.01" in str(found)
    assert found.race.cost == found.race.search + found.race.testing and found.race.testing == 50


def test_nothing_is_certified_where_x_is_not_finite() -> None:
    problem = from_loss(lambda x, a: jnp.sum(jnp.arctan(x - a)), np.ones((5, 2)), np.zeros(2))
    found = certify(problem, np.full(2, math.inf), exact=True)
    assert found.upper_bound == math.inf and not found.certified and "not finite" in found.guarantee
    assert certify(problem, np.full(2, 1e3), exact=True).certified


def test_a_finite_sum_without_constants_is_certified_by_its_rows() -> None:
    problem = from_loss(lambda x, a: 0 * jnp.sum(x * a), np.ones((300, 2)), np.ones(2))
    found = race_test(problem, np.ones(2), 0.1, 0.01, 1000, (0.0, 0.0), 0, 1)
    assert found.sense == "exact" and found.samples == 300 and found.upper_bound == 0


@pytest.mark.parametrize("target", [1e300, 1e-320])
def test_targets_whose_square_is_no_number_are_refused(target: float) -> None:
    with pytest.raises(ValueError, match=r"minimize: target must lie in \[1e-100, 1e\+100\]; got"):
        minimize(STREAM, target=target, progress=False)


def test_a_budget_that_cannot_be_counted_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^minimize: budget must be at most 2\*\*62; got budget=1000000"):
        minimize(lambda x, a: jnp.sum((x - a) ** 2), np.ones((9, 2)), np.zeros(2), budget=10**30, progress=False)


def test_a_certificate_holds_its_own_samples_to_the_noise_that_it_assumes() -> None:
    """Samples of a box with a diagonal of 1.73: a stated sigma0 of .866 is true, of .3 it is not."""
    true = certify(STREAM, own.START, samples=256)
    assert true.contradicted == 0 and "contradict" not in true.guarantee
    false = from_loss(own.squares, box, start=own.START, constants=replace(KNOWN, sigma0=0.3))
    for asked in ({"samples": 256}, {"target": 3.0}):
        found = certify(false, own.START, **asked)
        assert (
            0 < found.contradicted <= found.samples
            and "samples contradict them: nothing is certified" in found.guarantee
        )
        assert found.passed and not found.certified
    raced = run_fast_arm(false, own.START, kalman_storm(), 1, Allowance(0.2, 0.01, 4000, 4000)).certificates[0]
    assert raced.passed and not raced.certified and raced.contradicted > 0


def test_a_search_that_ends_above_the_start_returns_the_start() -> None:
    """x has moved, F has grown, and nothing is certified."""
    rows = np.random.default_rng(0).normal(size=(50, 2))
    steep = from_loss(lambda x, row: jnp.abs(x @ row - 1) * 1e3, rows, np.zeros(2))
    found = run_fast_arm(steep, np.zeros(2), sgd(eta=1.0), 2, Allowance(1e-9, 0.01, 40, 200))
    assert found.above.all() and not found.lost.any()
    np.testing.assert_array_equal(found.point(0), np.zeros(2))
    assert found.certificates[0].sense == "exact" and found.standing.spent[0] <= 200
    result = minimize(steep, target=1e-9, budget=400, algorithm=sgd(eta=1.0), progress=False)
    assert result.reason.startswith("the start, as F is larger where the run has ended") and not result.x.any()


def test_double_precision_unless_the_start_is_single() -> None:
    def loss(x: jax.Array, row: jax.Array) -> jax.Array:
        return 0.5 * jnp.sum((x - row) ** 2)

    rows = np.linspace(-1, 1, 12)[:, None] * np.ones(2)
    with jax.enable_x64(False):
        for start, kind in (([1, 1], np.float64), (np.ones(2), np.float64), (jnp.ones(2), np.float32)):
            found = minimize(loss, rows, start, target=0.01, progress=False)
            assert found.x.dtype == kind and found.certificate.certified
    with pytest.raises(ValueError, match=r"^minimize: x0 must be a pytree of floating-point arrays; got x0='a'"):
        minimize(loss, rows, "a", target=0.01)
    with pytest.raises(ValueError, match=r"^minimize: width must be one of"):
        minimize(loss, rows, np.ones(2), target=0.01, width=0)


def test_spider_is_promised_and_kept_where_rows_are_many() -> None:
    """20,000 rows: cheaper than exact descent, run until its estimate is short, and certified by a pass."""
    rows = np.random.default_rng(0).uniform(-0.5, 0.5, (20_000, 3))
    known = Constants(1, 0, 3, 0, 1.6, noise="almost-sure")
    problem = from_loss(own.squares, rows, start=own.START, constants=known)
    target = 0.3 * float(np.linalg.norm(own.START - rows.mean(axis=0)))
    promise = promise_of(known, target, 0.99, problem)
    assert promise.by == "SPIDER" and promise.cost == promise.restarted.cost < 0.6 * promise.descent_cost
    assert "SPIDER" in promise.statement and "exact descent would ask" in promise.statement
    with jax.enable_x64(True):
        both, said = keep(promise, problem, own.START, [0, 7], None, None, known)
    assert said.found == 0 and said.checked > 2 * promise.restarted.batch
    for kept in both:
        assert kept.certificate.sense == "exact" and kept.certificate.certified
        assert kept.run + kept.spent <= promise.cost and kept.spent == len(rows)
    assert not np.array_equal(both[0].x, both[1].x)


def test_contradictions_of_any_seed_are_in_void() -> None:
    """A certificate that rests on them is none, whoever's samples they are; one by a pass over all rows stays."""
    found = minimize(STREAM, target=0.5, seeds=2, progress=False)
    assert found.certificate.certified and found.race.contradicted == (0, 0) and not found.void
    other = replace(found, race=found.race._replace(contradicted=(0, 3)))
    assert "3 fresh samples of all seeds contradict it" in other.void
    against = Contradictions(10, 1, 0, "in step 3 of seed 1", 0)
    weighed = _weighed(found, against, 0.5, None)
    assert not weighed.certificate.certified and weighed.certificate.passed and "contradicted" in weighed.reason
    exact = replace(found, certificate=replace(found.certificate, sense="exact"))
    assert _weighed(exact, against, 0.5, None).certificate.certified
