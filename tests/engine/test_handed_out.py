"""An algorithm that hands out an average is measured, recorded, kept and returned there, as a plain loop says."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from contract import X1, B, Walk, problem, walked

from normstorm.algorithms import CATALOGUE, Algorithm
from normstorm.engine import run
from normstorm.engine.results import Trace
from normstorm.random import seed_words

STEPS, SEEDS = 60, (3, 2**63 + 5)
WITH = {"eta": 0.05, "K": B}
ALGORITHMS = {
    "iterate": CATALOGUE["sgd"](**WITH),
    "mean": CATALOGUE["averaged_sgd"](**WITH),
    "ema": CATALOGUE["averaged_sgd"](**WITH, ema=0.9),
    "schedule-free": CATALOGUE["schedule_free_sgd"](**WITH, beta=0.8),
}


@jax.jit
def plain(algorithm: Algorithm, x: jax.Array, words: jax.Array) -> Walk:
    return jax.vmap(lambda words: walked(problem(), algorithm, x, words, STEPS))(words)


def sizes(rows: Any) -> np.ndarray:
    return np.linalg.norm(rows, axis=1)


@cache
def result(name: str, average: bool = True) -> Trace:
    with jax.enable_x64(True):
        return run(problem(), ALGORITHMS[name], X1, STEPS, SEEDS, candidates=STEPS, records=16, average=average)


@cache
def witness(name: str) -> Walk:
    with jax.enable_x64(True):
        return jax.tree.map(np.asarray, plain(ALGORITHMS[name], jnp.asarray(X1), jnp.asarray(seed_words(SEEDS))))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_everything_is_measured_at_the_point_that_is_handed_out(name: str) -> None:
    found, loop = result(name), witness(name)
    at = found.record_steps - 1
    for i in range(len(SEEDS)):
        x, points, m = loop.x[i], loop.points[i], loop.m[i]
        norms = sizes(problem().grad_at(points[:-1]))
        np.testing.assert_allclose(found.mean_grad_norm[i], norms.mean(), rtol=1e-11)
        np.testing.assert_allclose(found.mean_by_cost[i], norms.mean(), rtol=1e-11, err_msg="every step costs the same")
        np.testing.assert_allclose(found.min_grad_norm[i], norms.min(), rtol=1e-11)
        np.testing.assert_allclose(found.grad_norm[i], norms[at], rtol=1e-11)
        np.testing.assert_allclose(found.running_mean[i], (np.cumsum(norms) / np.arange(1, STEPS + 1))[at], rtol=1e-11)
        np.testing.assert_allclose(found.value[i], [problem().value(p) for p in points[at]], rtol=1e-11)
        np.testing.assert_allclose(found.candidates.x[i], points[:-1], rtol=0, atol=1e-12)
        np.testing.assert_allclose(found.uniform.x[i], points[found.uniform.step[i] - 1], rtol=0, atol=1e-12)
        np.testing.assert_allclose(found.last[i], points[-1], rtol=0, atol=1e-12)
        smallest = int(np.argmin(sizes(m)))
        assert found.smallest.step[i] == smallest + 1
        np.testing.assert_allclose(found.smallest.x[i], points[smallest], rtol=0, atol=1e-12)
        error = sizes(m - problem().grad_at(x[:-1]))
        np.testing.assert_allclose(found.error[i], error[at], rtol=1e-9, err_msg="about the iterate")
        np.testing.assert_allclose(found.estimate[i], m[-1], rtol=0, atol=1e-12)
        np.testing.assert_array_equal(found.record_cost[i], np.cumsum(loop.cost[i])[at])
    if name != "iterate":
        assert np.abs(loop.points - loop.x)[:, 2:].max(axis=2).min() > 1e-4, "or this shows nothing"


@pytest.mark.parametrize("name", ["mean", "schedule-free"])
def test_gradients_that_are_asked_only_where_they_are_recorded(name: str) -> None:
    rarely, always = result(name, False), result(name)
    np.testing.assert_allclose(rarely.grad_norm, always.grad_norm, rtol=1e-12)
    np.testing.assert_allclose(rarely.value, always.value, rtol=1e-12)
    np.testing.assert_allclose(rarely.last, always.last, rtol=0, atol=1e-12)


def test_a_seed_that_diverges_stays_at_its_last_finite_point() -> None:
    """eta = 1000 on a quartic: within a few steps the iterate overflows; no average may become infinite with it."""
    with jax.enable_x64(True):
        lost = run(problem(), CATALOGUE["averaged_sgd"](eta=1e3), X1, STEPS, (1,), candidates=STEPS)
    assert lost.status.tolist() == ["diverged"]
    assert np.isfinite(lost.last).all() and np.isfinite(lost.min_grad_norm).all()
    kept = lost.candidates.step[0] < lost.diverged_at[0]
    assert kept.any() and np.isfinite(lost.candidates.x[0][kept]).all()


def test_chunks_hand_the_average_on() -> None:
    """Bit by bit, as they hand on the iterate."""
    whole = result("schedule-free")
    with jax.enable_x64(True):
        pieces = run(
            problem(), ALGORITHMS["schedule-free"], X1, STEPS, SEEDS, candidates=STEPS, records=16, progress_steps=7
        )
    for ours, theirs in ((pieces.last, whole.last), (pieces.candidates.x, whole.candidates.x)):
        np.testing.assert_array_equal(ours, theirs)
    np.testing.assert_array_equal(pieces.mean_grad_norm, whole.mean_grad_norm)
