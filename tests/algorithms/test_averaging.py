"""Averages of iterates: what is handed out, and that the rest of an algorithm does not notice."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from contract import SEED, X1, B, Walk, problem, walked

from normstorm.algorithms import CATALOGUE, Algorithm
from normstorm.algorithms.averaging import ExponentialAverage, NoAveraging, PolyakRuppert, RunningMean
from normstorm.random import seed_words

STEPS, ETA = 30, 0.05
CLOSE = {"rtol": 0, "atol": 1e-12}
SGD = CATALOGUE["sgd"](eta=ETA, K=B)
STORM = CATALOGUE["normalized_storm"](alpha=0.2, eta=ETA, K=B)


@jax.jit
def walk(algorithm: Algorithm, x: jax.Array) -> Walk:
    return walked(problem(), algorithm, x, jnp.asarray(seed_words([SEED])[0]), STEPS)


def made(name: str, **given: Any) -> Walk:
    return walk(CATALOGUE[name](eta=ETA, K=B, **given), jnp.asarray(X1))


def means(points: Any) -> np.ndarray:
    """Of the first 1, 2, .. points, each from all of them."""
    return np.array([np.mean(points[: t + 1], axis=0) for t in range(len(points))])


@pytest.mark.parametrize("algorithm", [SGD, STORM])
def test_by_default_the_iterate_is_handed_out_and_nothing_is_kept(algorithm: Algorithm) -> None:
    found = walk(algorithm, jnp.asarray(X1))
    np.testing.assert_array_equal(found.points, found.x)
    state, _ = algorithm.first(problem(), jnp.asarray(X1), problem().sample(jax.random.key(0), B))
    assert algorithm.averaging == NoAveraging() and jax.tree.leaves(state.averaging) == []


@pytest.mark.parametrize("algorithm", [SGD, STORM])
def test_an_average_of_any_algorithm_leaves_its_path_alone(algorithm: Algorithm) -> None:
    plain = walk(algorithm, jnp.asarray(X1))
    averaged = walk(replace(algorithm, averaging=PolyakRuppert()), jnp.asarray(X1))
    for field in ("x", "m", "cost"):
        np.testing.assert_allclose(getattr(averaged, field), getattr(plain, field), **CLOSE)
    np.testing.assert_allclose(averaged.points, means(plain.x), **CLOSE)
    assert np.abs(averaged.points - plain.x)[2:].max(axis=1).min() > 1e-3, "an average is another point"


def test_schedule_free_without_interpolation_is_averaged_sgd() -> None:
    one, other = made("schedule_free_sgd", beta=0.0), made("averaged_sgd")
    for ours, theirs in zip(one, other, strict=True):
        np.testing.assert_allclose(ours, theirs, **CLOSE)


def test_schedule_free_with_full_interpolation_is_primal_averaging() -> None:
    """Gradients are asked at the average: x_{t+1} = x_t + (z_{t+1} - x_t) / (t + 1), z_{t+1} = z_t - eta g(x_t)."""
    found = made("schedule_free_sgd", beta=1.0)
    np.testing.assert_allclose(found.x, found.points, **CLOSE)
    z = X1 - ETA * np.vstack([np.zeros_like(X1), np.cumsum(found.m, axis=0)])
    np.testing.assert_allclose(found.points, means(z), **CLOSE)
    assert np.abs(found.x - made("schedule_free_sgd", beta=0.5).x).max() > 1e-3


def test_an_exponential_average_without_memory_is_the_iterate() -> None:
    forgetful = made("averaged_sgd", ema=0.0)
    np.testing.assert_allclose(forgetful.points, forgetful.x, **CLOSE)
    np.testing.assert_allclose(forgetful.x, walk(SGD, jnp.asarray(X1)).x, **CLOSE)


def test_the_point_after_the_last_step_is_that_of_the_next_one() -> None:
    """Handing out at step t + 1 needs no gradient of step t + 1."""

    @jax.jit
    def two(algorithm: Algorithm, x: jax.Array, keys: jax.Array) -> tuple[Any, Any]:
        state, _ = algorithm.first(problem(), x, algorithm.draw(problem(), keys[0]))
        after, _ = algorithm.step(problem(), state, algorithm.draw(problem(), keys[1]), jnp.int32(2))
        return algorithm.last(state, jnp.int32(1)), algorithm.point(after)

    for algorithm in (
        *(SGD, replace(STORM, averaging=ExponentialAverage(0.7)), CATALOGUE["averaged_sgd"](eta=ETA)),
        CATALOGUE["schedule_free_sgd"](eta=ETA, beta=0.6),
    ):
        last, point = two(algorithm, jnp.asarray(X1), jax.random.split(jax.random.key(3)))
        np.testing.assert_allclose(last, point, rtol=0, atol=1e-15)


def test_a_long_mean_in_single_precision_goes_on_moving() -> None:
    """Two million points, the second half one thousandth further: a plain running mean loses most of that."""
    half, far = 1_000_000, np.float32(1.001)

    @jax.jit
    def mean() -> RunningMean:
        def add(t: jax.Array, state: RunningMean) -> RunningMean:
            return state.add(t, jnp.where(t > half, far, jnp.float32(1)))

        return jax.lax.fori_loop(1, 2 * half + 1, add, RunningMean.init(jnp.float32(1)))

    moved = (float(far) - 1) / 2
    assert float(mean().mean) - 1 == pytest.approx(moved, rel=1e-3)
    term = (far - np.float32(1)) / np.float32(2 * half)
    assert np.float32(1) + np.float32(term) == np.float32(1), "or this shows nothing"


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        ("averaged_sgd", {"ema": 1}, "averaged_sgd: ema must be a number in [0, 1); got ema=1"),
        ("schedule_free_sgd", {"beta": 1.1}, "schedule_free_sgd: beta must be a number in [0, 1]; got beta=1.1"),
    ],
)
def test_refusals(name: str, given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as error:
        CATALOGUE[name](eta=1, **given)
    assert str(error.value) == message
