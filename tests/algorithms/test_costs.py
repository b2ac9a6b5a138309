"""Costs as formulas, how many steps a budget buys, and what problems an algorithm needs."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from contract import BIG, CASES, MATRIX, STEPS, SUMS, TALL, W1, X1, B, N, oracle, problem, walked
from hypothesis import given
from hypothesis import strategies as st
from toy import Toy

from normstorm.algorithms import CATALOGUE, Algorithm
from normstorm.random import seed_words, step_key

COINS = ("page", "page whole")
STOPPED = "spider 1 stopped"
STAYING = ("kalman", "kalman table")
COUNTS = (1, 2, 3, 5, 6, 7, 11, 49, STEPS)


def counted(name: str) -> list[int]:
    """By the transcription, after every step; test_contract compares it with what the steps report."""
    one = CASES[name]
    return one.transcription(oracle(one.K, BIG), one.x1, STEPS, **one.theirs).cost


@pytest.mark.parametrize("name", [name for name in CASES if name not in (*COINS, *STAYING, STOPPED)])
def test_the_formula_is_what_is_counted(name: str) -> None:
    cost = counted(name)
    formula = [CASES[name].algorithm.cost(steps, N) for steps in COUNTS]
    assert formula == [cost[steps - 1] for steps in COUNTS]
    assert all(isinstance(value, int) for value in formula)


def test_a_path_that_stops_asks_less() -> None:
    algorithm, cost = CASES[STOPPED].algorithm, counted(STOPPED)
    moving = len(set(cost))
    assert 1 < moving < STEPS
    assert cost[:moving] == [algorithm.cost(t, N) for t in range(1, moving + 1)]
    assert cost[-1] < algorithm.cost(STEPS, N)


@pytest.mark.parametrize("name", STAYING)
def test_a_step_that_stays_asks_less(name: str) -> None:
    """A step asks what the formula says or, after one of no length, k less."""
    one = CASES[name]
    path = one.transcription(oracle(one.K, BIG), one.x1, STEPS, **one.theirs)
    most = np.diff([0, *(one.algorithm.cost(t, N) for t in range(1, STEPS + 1))])
    saved = most - np.diff([0, *path.cost])
    stayed = [False, *(bool((a == b).all()) for a, b in zip(path.x, path.x[1:-1], strict=False))]
    np.testing.assert_array_equal(saved, np.where(stayed, one.algorithm.estimator.k, 0))
    assert 5 < sum(stayed) < STEPS - 5, "or it shows little"


@jax.jit
def total(algorithm: Algorithm, words: jax.Array) -> jax.Array:
    """What a plain loop asks in all, for every seed."""
    return jax.vmap(lambda seed: walked(problem(), algorithm, jnp.asarray(X1), seed, STEPS).cost.sum())(words)


@pytest.mark.parametrize("name", COINS)
def test_coins_cost_their_expectation(name: str) -> None:
    """1,000 seeds: the mean lies within five standard errors, and a false alarm has probability below 1e-6."""
    algorithm, seeds = CASES[name].algorithm, 1000
    cost = np.asarray(total(algorithm, jnp.asarray(seed_words(list(range(seeds))))))
    error = np.std(cost, ddof=1) / np.sqrt(seeds)
    assert abs(np.mean(cost) - algorithm.cost(STEPS, N)) <= 5 * error
    assert error < 0.01 * algorithm.cost(STEPS, N), "or the margin shows nothing"
    large = N if algorithm.estimator.S1 is None else algorithm.estimator.S1
    restarts = (cost - large - 2 * B * (STEPS - 1)) / (large - 2 * B)
    assert (restarts == np.rint(restarts)).all() and len(set(restarts)) > 3, "coins belong to seeds"


# A cost is the estimator's alone, so one case of every estimator is enough.
@pytest.mark.parametrize("name", {str(one.algorithm.estimator): name for name, one in CASES.items()}.values())
@given(extra=st.integers(0, 10**7) | st.integers(0, 10**15))
def test_a_budget_is_used_up(name: str, extra: int) -> None:
    algorithm = CASES[name].algorithm
    budget = int(np.ceil(algorithm.cost(1, N))) + extra
    steps = algorithm.steps(budget, N)
    assert algorithm.cost(steps, N) <= budget < algorithm.cost(steps + 1, N)


def test_a_budget_below_the_first_step_is_refused() -> None:
    svrg = CATALOGUE["svrg"](eta=1, period=5, K=3)
    assert svrg.steps(46, 40) == 1
    with pytest.raises(ValueError) as error:
        svrg.steps(45, 40)
    assert str(error.value) == "svrg: budget must be at least the cost 46 of the first step; got budget=45"
    for budget in (float("inf"), float("nan")):
        with pytest.raises(ValueError, match="svrg: budget must be"):
            svrg.steps(budget, 40)
    with pytest.raises(ValueError, match=r"^svrg: size must be an integer >= 1; got size=None$"):
        svrg.steps(45)
    with pytest.raises(ValueError, match=r"^sgd: steps must be an integer >= 1; got steps=0$"):
        CATALOGUE["sgd"](eta=1).cost(0)


@pytest.mark.parametrize("name", CASES)
def test_requirements(name: str) -> None:
    wanted = {"finite sum"} if name in SUMS else {"matrix"} if name in MATRIX else set()
    assert CASES[name].algorithm.requirements == wanted


@pytest.mark.parametrize("name", CASES)
def test_a_refusal_is_what_the_steps_say(name: str) -> None:
    """A finite sum at a vector and at a matrix, and another problem: refused with one sentence, or taken."""
    algorithm, refused = CASES[name].algorithm, 0

    def two_steps(asked: Any, x: jax.Array) -> Any:
        samples = algorithm.draw(asked, step_key(jnp.zeros(2, jnp.uint32), 1))
        return algorithm.step(asked, algorithm.first(asked, x, samples)[0], samples, 2)

    for asked, x in ((problem(), X1), (problem(), W1), (Toy(4), X1)):
        reason = algorithm.refusal(asked, jnp.asarray(x))
        if reason is None:
            jax.eval_shape(two_steps, asked, jnp.asarray(x))
        else:
            refused += 1
            with pytest.raises(ValueError) as error:
                jax.eval_shape(two_steps, asked, jnp.asarray(x))
            assert str(error.value) == reason
    assert refused == {"finite sum": 1, "matrix": 2}.get("".join(algorithm.requirements), 0)


def test_a_pytree_of_matrices_is_not_refused() -> None:
    muon = CASES["muon"].algorithm
    assert muon.refusal(problem(), {"a": jnp.asarray(W1), "b": jnp.asarray(TALL)}) is None
    assert "got a leaf of shape (4,)" in str(muon.refusal(problem(), {"a": jnp.asarray(W1), "b": jnp.asarray(X1)}))
