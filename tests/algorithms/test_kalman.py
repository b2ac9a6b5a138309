"""Kalman-STORM: what it promises of its gain, its error bar, its steps and its units, beside its transcription."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from normstorm.algorithms import CATALOGUE, Algorithm
from normstorm.algorithms.filtering import Filtered
from normstorm.algorithms.geometries import norm
from normstorm.problems import get
from normstorm.random import normal, seed_words, step_key

WHOLE = CATALOGUE["kalman_storm"]()


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Bowl:
    """b f(y/a): f = sum h x^2/2 + q x^4/4 + noise <z, x> + wild w h x^2/2 with standard normal z and w."""

    h: jax.Array
    q: Any = 0.0
    noise: Any = 1.0
    wild: Any = 0.0
    a: Any = 1.0
    b: Any = 1.0

    def sample(self, key: jax.Array, n: int) -> jax.Array:
        return normal(key, (n, self.h.size + 1), self.h.dtype)

    def grad(self, y: Any, batch: jax.Array) -> Any:
        x = self._flat(y) / self.a
        z = jnp.mean(batch, 0)
        g = (1 + self.wild * z[-1]) * self.h * x + self.q * x**3 + self.noise * z[:-1]
        return self._like(y, g * self.b / self.a)

    def full_grad(self, y: Any) -> Any:
        return replace(self, noise=0.0, wild=0.0).grad(y, jnp.zeros((1, self.h.size + 1), self.h.dtype))

    def _flat(self, y: Any) -> jax.Array:
        return jnp.concatenate([leaf.ravel() for leaf in jax.tree.leaves(y)])

    def _like(self, y: Any, g: jax.Array) -> Any:
        leaves, form = jax.tree.flatten(y)
        ends = np.cumsum([leaf.size for leaf in leaves])[:-1]
        return form.unflatten([p.reshape(leaf.shape) for p, leaf in zip(jnp.split(g, ends), leaves, strict=True)])


H = np.linspace(0.2, 2.0, 6)
BOWL, START = Bowl(jnp.asarray(H), q=0.5, wild=0.3), np.linspace(-1, 1, 6)


@partial(jax.jit, static_argnames="steps")
def states(problem: Any, algorithm: Algorithm, x: Any, words: jax.Array, steps: int, other: Any = -1) -> Any:
    """All states; the sample of step `other` is drawn from another key."""

    def step(state: Any, t: jax.Array) -> Any:
        key = step_key(words, jnp.where(t == other, 10**6, t))
        state, _ = algorithm.step(problem, state, algorithm.draw(problem, key), t)
        return state, state

    first, _ = algorithm.first(problem, x, algorithm.draw(problem, step_key(words, 1)))
    later = jax.lax.scan(step, first, jnp.arange(2, steps + 1))[1]
    return jax.tree.map(lambda a, b: jnp.concatenate([a[None], b]), first, later)


def walk(problem: Any = BOWL, x: Any = START, seed: int = 3, other: int = -1) -> Any:
    x = jax.tree.map(jnp.asarray, x)
    return states(problem, WHOLE, x, jnp.asarray(seed_words([seed])[0]), 200, other)


@jax.jit
def step(problem: Any, state: Any, words: jax.Array, t: jax.Array) -> Any:
    return WHOLE.step(problem, state, WHOLE.draw(problem, step_key(words, t)), t)


@pytest.mark.parametrize("start", [START, 0 * START])
def test_units_do_not_matter(start: np.ndarray) -> None:
    """The samples bend, so that a derivative is not zero at 0 either; equal to rounding, which 200 steps let grow."""
    plain = walk(replace(BOWL, noise=1.0), start)
    for a, b in ((1e-3, 1e3), (1e3, 1e-3), (1e3, 1e3)):
        scaled = walk(replace(BOWL, a=a, b=b), a * start)
        np.testing.assert_allclose(scaled.x / a, plain.x, rtol=0, atol=1e-10)
        np.testing.assert_allclose(scaled.estimator.V * (a / b) ** 2, plain.estimator.V, rtol=1e-8)
    assert np.ptp(plain.x, axis=0).max() > 0.1


def test_a_start_without_curvature_still_has_a_length() -> None:
    """At 0 the chain has no second derivative along its gradient, and most samples there are zero."""
    chain = get("chain")

    @jax.tree_util.register_dataclass
    @dataclass(frozen=True)
    class Scaled:
        a: Any

        def sample(self, key: jax.Array, n: int) -> Any:
            return chain.sample(key, n)

        def grad(self, y: jax.Array, batch: Any) -> jax.Array:
            return chain.grad(y / self.a, batch) / self.a

    one, other = (walk(Scaled(a), np.zeros(16), seed=0) for a in (1.0, 1000.0))
    np.testing.assert_allclose(other.x[:60] / 1000, one.x[:60], rtol=0, atol=1e-9)
    assert norm(one.x[-1]) > 1 and (np.asarray(one.x[0]) == 0).all()


def test_the_gain_is_known_before_its_sample() -> None:
    plain, t = walk(), 60
    other = walk(other=t)
    same = slice(0, t - 1)
    np.testing.assert_array_equal(plain.m[same], other.m[same])
    assert plain.estimator.gain[t - 1] == other.estimator.gain[t - 1]
    assert (np.asarray(plain.m[t - 1]) != np.asarray(other.m[t - 1])).all()
    assert plain.estimator.gain[t] != other.estimator.gain[t]


def test_any_pytree() -> None:
    tree = {"a": START[:2].reshape(1, 2), "b": [START[2:], np.zeros(0)]}
    flat, cut = walk(), walk(x=tree)
    np.testing.assert_allclose(cut.x["b"][0], flat.x[:, 2:], rtol=0, atol=1e-11)
    np.testing.assert_allclose(cut.estimator.V, flat.estimator.V, rtol=1e-9)


def test_single_precision_goes_the_same_way() -> None:
    """Of 40 steps, after which rounding has grown to a few units of 1e-4."""
    single = walk(jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), BOWL), np.float32(START))
    assert single.x.dtype == single.estimator.V.dtype == jnp.float32
    np.testing.assert_allclose(single.x[39], walk().x[39], rtol=0, atol=2e-3)


def test_the_error_bar_is_calibrated() -> None:
    """16 seeds: the median of true squared error over V lies within a factor of 2.

    Each is a mean of about 6 squares, so the median of 16 has a standard error near .15: false alarms below 1e-5.
    """
    words = jnp.asarray(seed_words(list(range(16))))
    end = jax.vmap(lambda w: jax.tree.map(lambda a: a[-1], states(BOWL, WHOLE, jnp.asarray(START), w, 3000)))(words)
    errors = jax.vmap(lambda m, x: norm(m - BOWL.full_grad(x)) ** 2)(end.m, end.x_prev)
    ratio = float(np.median(errors / end.estimator.V))
    assert 0.5 < ratio < 2
    assert float(np.median(end.estimator.V)) < 0.02, "or m has learnt nothing"
    assert np.mean(end.estimator.alarms) < 5


def test_an_error_bar_that_lies_is_caught() -> None:
    """m is moved and V is not: within two renewals an alarm raises V, and the estimate recovers."""
    before = jax.tree.map(lambda a: a[-1], walk())
    f = before.estimator
    wrong = f.m + 1.5
    words = jnp.asarray(seed_words([77])[0])
    state = before._replace(m=wrong, estimator=f._replace(m=wrong, sum=0 * f.sum, gains=0 * f.gains, since=0 * f.since))
    for t in range(201, 3000):
        state, _ = step(BOWL, state, words, jnp.int32(t))
        if state.estimator.alarms > f.alarms:
            break
    assert state.estimator.alarms == f.alarms + 1 and state.estimator.V > 3 * f.V
    assert state.estimator.excess > 3


def test_a_step_too_far_is_taken_back() -> None:
    """The wall of a steep bowl, met at once because the first curvature is said to be small."""
    steep = Bowl(jnp.asarray(1000 * H), noise=0.1)
    key = jnp.asarray(seed_words([0])[0])
    first = jax.tree.map(lambda a: a[0], walk(steep))
    tried = first._replace(x=first.x_prev - 100 * first.m)
    after, cost = step(steep, tried, key, jnp.int32(2))
    np.testing.assert_array_equal(after.x_prev, first.x_prev)
    np.testing.assert_array_equal(after.m, first.m)
    assert after.estimator.V == first.estimator.V and after.estimator.bend >= 4 * first.estimator.bend
    assert cost == 2
    nowhere, _ = step(steep, first._replace(x=first.x * np.inf), key, jnp.int32(2))
    np.testing.assert_array_equal(nowhere.m, first.m)
    assert np.isfinite(nowhere.x).all() and np.isfinite(nowhere.estimator.bend)


def test_a_table_of_a_separable_sum_stays_finite() -> None:
    """Gradients fall by orders of magnitude, and what rounding took from the long ones must not be followed."""
    problem = get("separable-exponential", n=20)
    found = states(
        problem, CATALOGUE["kalman_storm"](table=True), problem.start(), jnp.asarray(seed_words([1])[0]), 4000
    )
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(found))
    assert norm(problem.full_grad(found.x[-1])) < 1e-6


def test_nothing_to_see() -> None:
    still = walk(Bowl(jnp.zeros(6), noise=0.0))
    assert (np.asarray(still.x) == START).all() and (np.asarray(still.estimator.reach) == 0).all()


def test_refusals() -> None:
    for given, words in (({"scale": 0.0}, "scale must be"), ({"K": 0}, "K must be"), ({"K": 2, "k": 3}, "k must be")):
        with pytest.raises(ValueError, match=f"^kalman_storm: {words}"):
            CATALOGUE["kalman_storm"](**given)
    assert isinstance(WHOLE.estimator, Filtered)
