"""Edges that algorithms share: gradients that are zero, x in several leaves, and sums that outgrow their terms."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from contract import CASES, SEED, X1, N, Rows, problem, rows_of

from normstorm.algorithms import Algorithm
from normstorm.algorithms.restarts import where_wanted
from normstorm.algorithms.schedules import KahanSum
from normstorm.random import seed_words, step_key


def words(algorithm: Algorithm) -> set[type]:
    """The classes of which it is made."""
    geometry = algorithm.geometry
    inner = getattr(geometry, "inner", geometry)
    return {type(word) for word in (algorithm.estimator, geometry, inner, algorithm.schedule, algorithm.averaging)}


def covering() -> list[str]:
    """Cases of vectors that have all classes between them."""
    seen: set[type] = set()
    chosen = []
    for name, one in CASES.items():
        if one.x1 is X1 and not words(one.algorithm) <= seen:
            seen |= words(one.algorithm)
            chosen.append(name)
    return chosen


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Still:
    """A finite sum of constants."""

    name = "still"
    size = N

    def sample(self, key: jax.Array, n: int) -> jax.Array:
        return rows_of(key, n)

    def grad(self, x: jax.Array, batch: jax.Array) -> jax.Array:
        return jnp.zeros_like(x)

    def full_grad(self, x: jax.Array) -> jax.Array:
        return jnp.zeros_like(x)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Split:
    """The same problem with x in two leaves."""

    inner: Rows

    name = "split"
    size = N

    def sample(self, key: jax.Array, n: int) -> jax.Array:
        return self.inner.sample(key, n)

    def grad(self, x: Any, batch: jax.Array) -> Any:
        return split(self.inner.grad(joined(x), batch))

    def full_grad(self, x: Any) -> Any:
        return split(self.inner.full_grad(joined(x)))


def split(x: jax.Array) -> dict[str, jax.Array]:
    return {"a": x[:1], "b": x[1:].reshape(-1, 1)}


def joined(x: dict[str, jax.Array]) -> jax.Array:
    return jnp.concatenate([x["a"], x["b"].ravel()])


@jax.jit
def three_steps(asked: Any, algorithm: Algorithm, x: Any) -> tuple[Any, Any, Any]:
    """x_4, m_3 and the point that is handed out at last."""
    seed = jnp.asarray(seed_words([SEED])[0])
    state, _ = algorithm.first(asked, x, algorithm.draw(asked, step_key(seed, 1)))

    def step(t: jax.Array, state: Any) -> Any:
        return algorithm.step(asked, state, algorithm.draw(asked, step_key(seed, t)), t)[0]

    state = jax.lax.fori_loop(2, 4, step, state)
    return state.x, state.m, algorithm.last(state, 3)


@jax.jit
def whole_and_parts(asked: Rows, algorithm: Algorithm, x: jax.Array) -> tuple[Any, Any]:
    """Both in one program, which is compiled in less time than two."""
    return three_steps(asked, algorithm, x), three_steps(Split(asked), algorithm, split(x))


@pytest.mark.parametrize("name", [*covering(), *(name for name, one in CASES.items() if one.x1 is not X1)])
def test_a_zero_gradient_means_stay(name: str) -> None:
    """And shrink, where there is a decay."""
    one = CASES[name]
    x, m, point = three_steps(Still(), one.algorithm, jnp.asarray(one.x1))
    kept = (1 - 0.05 * getattr(one.algorithm.geometry, "decay", 0.0)) ** 3
    np.testing.assert_allclose(x, kept * one.x1, rtol=1e-14)
    np.testing.assert_allclose(point, kept * one.x1, rtol=1e-14)
    assert not np.any(m)


@pytest.mark.parametrize("name", covering())
def test_a_pytree_is_one_vector(name: str) -> None:
    whole, parts = whole_and_parts(problem(), CASES[name].algorithm, jnp.asarray(X1))
    for one, two in zip(whole, parts, strict=True):
        np.testing.assert_allclose(joined(two), one, rtol=0, atol=1e-14)


def test_a_long_sum_in_single_precision_keeps_small_terms() -> None:
    """Half a million terms of 1e-4 onto 4096: one by one in single precision nearly all of them would be lost."""
    terms, start, term = 500_000, np.float32(4096), np.float32(1e-4)
    begun = KahanSum(jnp.asarray(start), jnp.zeros((), jnp.float32))

    @jax.jit
    def added(begun: KahanSum) -> KahanSum:
        return jax.lax.fori_loop(0, terms, lambda _, seen: seen.add(jnp.asarray(term)), begun)

    found = float(added(begun).total)
    assert found == pytest.approx(float(start) + terms * float(term), rel=1e-6)
    assert start + term == start, "or this shows nothing"


def test_those_that_want_something_have_it_in_turn_and_the_others_keep_what_they_have() -> None:
    """Alone, many at once, and many at once around a loop that was traced for one; one number is the same for all."""
    scale, given, wanted = jnp.asarray(3.0), jnp.arange(5.0), jnp.array([True, False, True, True, False])

    def one(given: jax.Array, wanted: jax.Array) -> jax.Array:
        def again(_: object, x: jax.Array) -> jax.Array:
            return where_wanted(lambda given: scale * given[0] + given[1], wanted, (x, jnp.ones(())), x)

        return jax.lax.fori_loop(0, 2, again, given)

    expected = [9 * x + 4 if w else x for x, w in zip(given.tolist(), wanted.tolist(), strict=True)]
    np.testing.assert_array_equal(jax.jit(jax.vmap(one))(given, wanted), expected)
    np.testing.assert_array_equal([one(x, w) for x, w in zip(given, wanted, strict=True)], expected)
    np.testing.assert_array_equal(jax.vmap(lambda w: one(given[2], w))(wanted), [22 if w else 2 for w in wanted])
    program = str(jax.make_jaxpr(jax.vmap(one))(given, wanted))
    assert "argmax" in program and "select_n" not in program.partition("argmax")[0], "nobody is served for others"
