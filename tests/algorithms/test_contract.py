"""What every algorithm of the catalogue owes: the paths of its transcription, the cost that it says, and more."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import transcriptions as tr
from contract import BIG, CASES, EXACT, SEED, STEPS, SUMS, X1, B, N, Walk, oracle, problem, walked
from toy import Metered, Toy
from transcriptions.cases import ALL

from normstorm.algorithms import CATALOGUE, Algorithm
from normstorm.engine import run
from normstorm.random import seed_words, step_key


class MeteredSum(Metered):
    """A full gradient asks for every component."""

    def full_grad(self, x: Any) -> Any:
        self.counts.asked += N
        return self.inner.full_grad(x)


@cache
def keys(steps: int) -> list[jax.Array]:
    """Of steps 1, 2, .., each by itself."""
    words = jnp.asarray(seed_words([SEED])[0])
    return list(jax.jit(jax.vmap(lambda t: step_key(words, t)))(jnp.arange(1, steps + 1)))


def test_every_algorithm_is_here() -> None:
    assert set(EXACT) <= CASES.keys()
    assert {c.algorithm.name for c in CASES.values()} == CATALOGUE.keys()


@jax.jit
def walk(problem: Any, algorithm: Algorithm, x: jax.Array) -> Walk:
    return walked(problem, algorithm, x, jnp.asarray(seed_words([SEED])[0]), STEPS)


@pytest.mark.parametrize("name", CASES)
def test_agrees_with_its_transcription(name: str) -> None:
    """And without noise the same program's estimate is the gradient, where it is one of `EXACT`."""
    one = CASES[name]
    theirs = one.transcription(oracle(one.K, BIG), one.x1, STEPS, **one.theirs)
    ours = walk(problem(), one.algorithm, jnp.asarray(one.x1))
    np.testing.assert_allclose(ours.x, theirs.x, rtol=0, atol=1e-10)
    np.testing.assert_allclose(ours.points, theirs.points, rtol=0, atol=1e-10)
    np.testing.assert_allclose(ours.m, one.scale * np.array(theirs.m), rtol=0, atol=1e-10)
    np.testing.assert_array_equal(np.cumsum(ours.cost), theirs.cost)
    if name in EXACT:
        still = problem(noise=0.0)
        ours = walk(still, one.algorithm, jnp.asarray(one.x1))
        np.testing.assert_allclose(ours.m, still.grad_at(ours.x[:-1]), rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "name", ["sign storm large first", "meta storm", "kalman table", "spider 1 stopped", "page", "svrg", "saga"]
)
def test_the_whole_engine_agrees(name: str) -> None:
    """One of every kind of state, branch and stream."""
    one = CASES[name]
    theirs = one.transcription(oracle(one.K, BIG), X1, STEPS, **one.theirs)
    ours = run(problem(), one.algorithm, jnp.asarray(X1), STEPS, (SEED,), candidates=STEPS)
    assert (ours.candidates.step[0] == np.arange(1, STEPS + 1)).all()
    path = np.concatenate([ours.candidates.x[0], ours.last])
    np.testing.assert_allclose(path, theirs.x, rtol=0, atol=1e-10)
    np.testing.assert_allclose(ours.estimate[0], theirs.m[-1], rtol=0, atol=1e-10)
    np.testing.assert_array_equal(ours.record_cost[0], np.array(theirs.cost)[ours.record_steps - 1])
    assert ours.cost[0] == theirs.cost[-1]
    np.testing.assert_allclose(ours.error_bar[0], theirs.bar, rtol=1e-6)


def has_branches(program: str) -> bool:
    return any(f" {word}[" in program for word in ("cond", "while", "scan"))


@pytest.mark.parametrize("name", CASES)
def test_cost_is_what_was_asked(name: str) -> None:
    """Where there is a branch or a loop, operation by operation, so that only the side that is taken asks."""
    algorithm, meter, x1 = CASES[name].algorithm, MeteredSum(problem()), jnp.asarray(CASES[name].x1)
    asked: list[tuple[int, Any]] = []

    def steps(first: jax.Array, *later: jax.Array) -> Any:
        state, cost = algorithm.first(meter, x1, algorithm.draw(meter, first))
        asked.append((meter.asked, cost))
        for t, key in enumerate(later, start=2):
            before = meter.asked
            state, cost = algorithm.step(meter, state, algorithm.draw(meter, key), t)
            asked.append((meter.asked - before, cost))
        return state

    branched = has_branches(str(jax.make_jaxpr(steps)(*keys(3))))
    if branched:
        asked, meter = [], MeteredSum(problem())
        with jax.disable_jit():
            steps(*keys(6))
    if algorithm.name == "kalman_storm":  # two derivatives count as two gradients more
        asked[0] = asked[0][0] + 2 * algorithm.estimator.k, asked[0][1]
    assert [count for count, _ in asked] == [int(cost) for _, cost in asked]
    assert branched or name not in SUMS or name == "beta gd", "restarts and tables are branches and loops"


@pytest.mark.parametrize("name", CASES)
def test_single_precision_stays_single(name: str) -> None:
    single = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), problem())

    def two_steps(problem: Any, algorithm: Algorithm, x: jax.Array, t: jax.Array) -> Any:
        samples = algorithm.draw(problem, step_key(jnp.zeros(2, jnp.uint32), t))
        state, _ = algorithm.first(problem, x, samples)
        return state, algorithm.step(problem, state, samples, t)[0]

    x1 = jnp.asarray(CASES[name].x1, jnp.float32)
    first, second = jax.eval_shape(two_steps, single, CASES[name].algorithm, x1, jnp.int32(2))
    types = [leaf.dtype for leaf in jax.tree.leaves(first)]
    assert [leaf.dtype for leaf in jax.tree.leaves(second)] == types
    assert jnp.float64 not in types


def test_a_path_that_stops_asks_nothing_more() -> None:
    stopped = tr.spider_1(oracle(B, BIG), X1, STEPS, **CASES["spider 1 stopped"].theirs)
    assert 1 < stopped.cost.index(stopped.cost[-1]) < STEPS - 2, "or the case above shows nothing"


@pytest.mark.parametrize("name", ["svrg", "saga", "sarah", "beta gd", "page whole"])
def test_a_finite_sum_is_wanted(name: str) -> None:
    with pytest.raises(ValueError, match="problem must be a finite sum with a size and a full gradient; got 'toy'"):
        run(Toy(4), CASES[name].algorithm, jnp.asarray(X1), 3, 1)


@pytest.mark.parametrize("name", ["muon", "limuon 2", "scion row"])
def test_matrices_are_wanted(name: str) -> None:
    with pytest.raises(ValueError, match=r"x must be a matrix or a pytree of matrices; got a leaf of shape \(4,\)"):
        run(problem(), CASES[name].algorithm, jnp.asarray(X1), 3, 1)


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        ("sgd", {"eta": -1}, "sgd: eta must be a finite number > 0; got eta=-1"),
        ("sgd", {"eta": 0.0}, "sgd: eta must be a finite number > 0; got eta=0.0"),
        ("sgd", {"eta": math.inf}, "sgd: eta must be a finite number > 0; got eta=inf"),
        ("momentum_sgd", {"alpha": 0, "eta": 1}, "momentum_sgd: alpha must be a number in (0, 1]; got alpha=0"),
        (
            "normalized_storm",
            {"alpha": 1, "eta": 1, "k": 2},
            "normalized_storm: k must be an integer in [1, K]; got k=2, K=1",
        ),
        (
            "momentum_sgd",
            {"alpha": 1, "eta": 1, "form": "x"},
            "momentum_sgd: form must be one of average, heavy_ball; got form='x'",
        ),
        (
            "momentum_sgd",
            {"alpha": 1, "eta": 1, "nesterov": 1},
            "momentum_sgd: nesterov must be True or False; got nesterov=1",
        ),
        (
            "clipped_sgd",
            {"eta": 1, "threshold": 1, "offset": -1},
            "clipped_sgd: offset must be a finite number >= 0; got offset=-1",
        ),
        (
            "mixed_clipping",
            {"alpha": 1, "eta": 1, "gamma": 1, "nu": 2},
            "mixed_clipping: nu must be a number in [0, 1]; got nu=2",
        ),
        (
            "generalized_signsgd",
            {"alpha": 1, "eta": 1, "b2": 1},
            "generalized_signsgd: b2 must be a number in [0, 1); got b2=1",
        ),
        (
            "normalized_storm_anytime",
            {"alpha": 1, "eta": 1, "shift": -1},
            "normalized_storm_anytime: shift must be a finite number >= 0; got shift=-1",
        ),
        (
            "agnostic_storm",
            {"eta": 1, "alpha": 0.6},
            "agnostic_storm: alpha must be a number in (0, 1/2]; got alpha=0.6",
        ),
        ("meta_storm", {"eta": 1, "p": 0.6}, "meta_storm: p must be a number in (0, 1/2]; got p=0.6"),
        (
            "spider_2",
            {"eps": 1, "L": 1, "S1": 0, "S2": 1, "q": 1},
            "spider_2: S1 must be an integer >= 1; got S1=0",
        ),
        ("svrg", {"eta": 1, "period": 0}, "svrg: period must be an integer >= 1; got period=0"),
    ],
)
def test_refusals(name: str, given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as error:
        CATALOGUE[name](**given)
    assert str(error.value) == message


def test_every_transcription_has_a_cost_by_the_papers_formula() -> None:
    used = {case.transcription.__name__ for case in CASES.values()}
    assert used - {case[0] for case in ALL.values()} == {"page", "kalman_storm"}  # whose cost is a matter of the run
