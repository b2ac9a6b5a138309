"""Matrix methods on the built-in problem whose unknowns are a matrix, many seeds at once."""

from __future__ import annotations

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import transcriptions as tr
from contract import CASES, B, Walk, walked

from normstorm.algorithms import CATALOGUE, Algorithm
from normstorm.engine import run
from normstorm.problems import PROBLEMS, get
from normstorm.problems.base import FiniteSum
from normstorm.random import seed_words, step_key

STEPS, SEEDS, FEW = 40, 16, 3
PROBLEM = get("matrix-regression")
A, TARGETS = PROBLEM.data
START = np.outer([1.0, -0.5, 0.25, 0.5], [1.0, 0.3, -0.7]) + np.eye(4, 3)
NAMES = ("muon", "muon plain", "mvr2", "mvr1", "limuon 1", "limuon 2", "scion spectral", "scion row", "mars shampoo")


@cache
def samples() -> np.ndarray:
    """What the engine draws: seed, step, sample."""
    words, steps = jnp.asarray(seed_words(list(range(SEEDS)))), jnp.arange(1, STEPS + 1)
    draw = jax.vmap(jax.vmap(lambda w, t: PROBLEM.sample(step_key(w, t), B), (None, 0)), (0, None))
    return np.asarray(draw(words, steps))


@partial(jax.jit, static_argnames="steps")
def walks(algorithm: Algorithm, x: jax.Array, words: jax.Array, steps: int) -> Walk:
    """The plain loop for many seeds."""
    return jax.vmap(lambda seed: walked(PROBLEM, algorithm, x, seed, steps))(words)


def transcribed(name: str, seed: int) -> tr.Path:
    one = CASES[name]
    oracle = tr.Oracle(lambda X, i: np.outer(X @ A[i] - TARGETS[i], A[i]), n=len(A), samples=samples()[seed])
    return one.transcription(oracle, START, STEPS, **one.theirs)


@pytest.mark.parametrize("name", NAMES)
def test_every_seed_agrees_with_its_transcription(name: str) -> None:
    """Up to 1e-9: singular vectors of nearly equal singular values turn with rounding, products of them do not."""
    algorithm = CASES[name].algorithm
    found = walks(algorithm, jnp.asarray(START), jnp.asarray(seed_words(list(range(FEW)))), STEPS)
    for seed in range(FEW):
        theirs = transcribed(name, seed)
        np.testing.assert_allclose(found.x[seed], theirs.x, rtol=0, atol=1e-9)
        np.testing.assert_allclose(found.m[seed], theirs.m, rtol=0, atol=1e-9)
        assert found.cost[seed].sum() == theirs.cost[-1] == algorithm.cost(STEPS)
    assert np.ptp(found.x[:, -1], axis=0).max() > 1e-3, "seeds differ"


@pytest.mark.parametrize("name", ["muon", "limuon 2"])
def test_the_engine_agrees_for_every_seed(name: str) -> None:
    """One with products and one with decompositions: the two kinds of operation that only matrices have."""
    found = run(PROBLEM, CASES[name].algorithm, jnp.asarray(START), STEPS, SEEDS, candidates=STEPS)
    for seed in range(SEEDS):
        theirs = transcribed(name, seed)
        path = np.concatenate([found.candidates.x[seed], found.last[seed][None]])
        np.testing.assert_allclose(path, theirs.x, rtol=0, atol=1e-9)
        np.testing.assert_allclose(found.estimate[seed], theirs.m[-1], rtol=0, atol=1e-9)
        assert found.cost[seed] == theirs.cost[-1]


@pytest.mark.parametrize("name", CASES)
def test_it_serves_every_algorithm(name: str) -> None:
    assert CASES[name].algorithm.refusal(PROBLEM, PROBLEM.start()) is None


def test_it_alone_serves_matrix_methods_from_its_own_start() -> None:
    muon, svrg = CASES["muon"].algorithm, CASES["svrg"].algorithm
    made = {name: get(name) for name in PROBLEMS}
    assert [n for n, p in made.items() if muon.refusal(p, p.start()) is None] == ["matrix-regression"]
    sums = {n for n, p in made.items() if svrg.refusal(p, p.start()) is None}
    assert sums == {n for n, p in made.items() if isinstance(p, FiniteSum)} and len(sums) > 5


def test_they_descend() -> None:
    """From the start the gap falls by four fifths within 200 steps, for the mean of 16 seeds."""
    start = PROBLEM.start()
    first = float(PROBLEM.value(start)) - PROBLEM.infimum
    for make in ("muon", "scion"):
        algorithm = CATALOGUE[make](alpha=0.1, eta=0.02, K=4)
        found = walks(algorithm, start, jnp.asarray(seed_words(list(range(SEEDS)))), 200)
        last = jnp.stack([PROBLEM.value(x) for x in found.x[:, -1]])
        assert float(jnp.mean(last)) - PROBLEM.infimum < first / 5, make
