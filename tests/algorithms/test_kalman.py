"""Kalman-STORM: what it promises of its gain, its error bar, its steps and its units, beside its transcription."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import transcriptions as tr
from contract import SEED, STEPS, Rows, tables, walked
from transcriptions.cases import SHIFTS, X1, D, N

from normstorm.algorithms import CATALOGUE, Algorithm
from normstorm.algorithms.estimators import GradientSample
from normstorm.algorithms.filtering import Filter, Filtered, FilteredSteps
from normstorm.algorithms.geometries import norm
from normstorm.problems import from_loss, get
from normstorm.random import normal, seed_words, step_key

WHOLE = CATALOGUE["kalman_storm"]()


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Bowl:
    """b f(y/a): f = sum h x^2/2 + q x^4/4 + noise <z, x> + wild w h x^2/2 with standard normal z and w.

    z counts only if w > rare.
    """

    h: jax.Array
    q: Any = 0.0
    noise: Any = 1.0
    wild: Any = 0.0
    rare: Any = -np.inf
    a: Any = 1.0
    b: Any = 1.0

    def sample(self, key: jax.Array, n: int) -> jax.Array:
        return normal(key, (n, self.h.size + 1), self.h.dtype)

    def grad(self, y: Any, batch: jax.Array) -> Any:
        x = self._flat(y) / self.a
        z = jnp.mean(batch, 0)
        g = (1 + self.wild * z[-1]) * self.h * x + self.q * x**3
        g = g + self.noise * jnp.where(z[-1] > self.rare, z[:-1], 0)
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
def states(
    problem: Any, algorithm: Algorithm, x: Any, words: jax.Array, steps: int, other: Any = -1, push: Any = 0.0
) -> Any:
    """All states; the sample of step `other` is drawn from another key, and after step 40 m is pushed away."""

    def step(state: Any, t: jax.Array) -> Any:
        key = step_key(words, jnp.where(t == other, 10**6, t))
        state, cost = algorithm.step(problem, state, algorithm.draw(problem, key), t)
        m = jax.tree.map(lambda m: m + jnp.where(t == 40, push, 0).astype(m.dtype), state.m)
        state = state._replace(m=m, estimator=state.estimator._replace(m=m))
        return state, (state, cost)

    first, _ = algorithm.first(problem, x, algorithm.draw(problem, step_key(words, 1)))
    later = jax.lax.scan(step, first, jnp.arange(2, steps + 1))[1][0]
    return jax.tree.map(lambda a, b: jnp.concatenate([a[None], b]), first, later)


def walk(problem: Any = BOWL, x: Any = START, seed: int = 3, other: int = -1, push: float = 0.0) -> Any:
    """Of 200 steps. Whatever has six numbers in one array of double precision shares one compilation."""
    x = jax.tree.map(jnp.asarray, x)
    problem = jax.tree.map(lambda leaf: jnp.asarray(leaf, jax.tree.leaves(x)[0].dtype), problem)
    return states(problem, WHOLE, x, jnp.asarray(seed_words([seed])[0]), 200, other, push)


@pytest.mark.parametrize(
    ("start", "rare"), [(START, -np.inf), (0 * START, -np.inf), (0 * START, 1.0)], ids=["away", "at 0", "m_1 = 0"]
)
def test_units_do_not_matter(start: np.ndarray, rare: float) -> None:
    """The samples bend, so that a derivative is not zero at 0 either; equal to rounding, which 200 steps let grow.

    Where noise is rare and x = 0 the first samples are zero, and so the first length comes later.
    """
    bowl = replace(BOWL, rare=rare)
    plain = walk(bowl, start)
    for a, b in ((1e-3, 1e3), (1e3, 1e-3), (1e3, 1e3)):
        scaled = walk(replace(bowl, a=a, b=b), a * start)
        np.testing.assert_allclose(scaled.x / a, plain.x, rtol=0, atol=1e-10)
        np.testing.assert_allclose(scaled.estimator.V * (a / b) ** 2, plain.estimator.V, rtol=1e-8)
    binary = walk(replace(bowl, a=2.0**10, b=2.0**-10), 2.0**10 * start)
    np.testing.assert_array_equal(binary.x / 2.0**10, plain.x, "powers of 2 round nothing")
    assert np.ptp(plain.x, axis=0).max() > 0.1
    assert (plain.estimator.reach[0] == 0) == (rare == 1)


def test_a_start_without_curvature_still_has_a_length() -> None:
    """At 0 a quartic has no derivatives of its gradient; then a thousandth of 1 is taken."""
    found = walk(replace(BOWL, h=jnp.zeros(6)), 0 * START)
    assert found.estimator.reach[0] == 1e-3
    assert norm(found.x[-1]) > 0.1


def schedule_of(
    n: float, V: float, *, bend: float = 1.0, spread: float = 0.0, share: float = 1.0, square: float = 0.0
) -> np.ndarray:
    """Lengths of 12 steps whose filter always says the same, with curvature 1/2 along m."""
    m, zero, flat = jnp.array([n, 0.0]), jnp.zeros(()), jnp.zeros(2)
    known: Any = dict.fromkeys(Filter._fields, zero) | {
        "m": m,
        "secant": flat,
        "sum": flat,
        "V": zero + V,
        "reach": 1e6,
    }
    known |= {"bend": zero + bend, "spread": zero + spread, "along": zero + 0.5, "S": zero + 4 * V}
    known |= {"square": zero + square}
    grads = GradientSample(m, filter=Filter(**known))
    schedule, lengths = FilteredSteps(share=share), []
    state = schedule.init(m)
    for t in range(12):
        eta, state = schedule.step(t, m, grads, state)
        lengths.append(float(eta) * n)
    return np.array(lengths)


@pytest.mark.parametrize(("w", "share", "every"), [(0.25, 1.0, 4), (0.25, 0.5, 2), (1.0, 1.0, 1), (4.0, 1.0, 1)])
def test_a_step_is_taken_once_in_as_many_measurements_as_balance_its_price(w: float, share: float, every: int) -> None:
    moved = schedule_of(1.0, 1 / w, share=share) > 0
    np.testing.assert_array_equal(moved, np.arange(1, 13) % every == 0)


def test_curvature_is_no_less_than_its_spread() -> None:
    """q = 1/(2 * 1/2) = 1 and w = 1: only L makes the difference, 2 in place of 1."""
    assert schedule_of(1.0, 1.0, spread=4.0)[0] == schedule_of(1.0, 1.0, bend=4.0, spread=4.0)[0] == 0.25


def test_a_step_is_as_long_as_the_plain_means_say_and_those_may_be_late() -> None:
    """n h/M with n = 1, h = 1/2 and L = 2: M is no more than L^2."""
    found = [schedule_of(1.0, 1.0, bend=4.0, spread=0.0, square=M)[0] for M in (3.0, 4.0, 16.0)]
    np.testing.assert_allclose(found, [1 / 6, 1 / 8, 1 / 8])


def test_a_flat_sample_says_nothing_of_how_far() -> None:
    """The log-cosh of a residual of 9 has a slope of 6e-8: the way to m = 0 along it is ten million long."""
    flat = from_loss(lambda x, row: jnp.log(jnp.cosh(x[0] - row)), np.full(4, 9.0), start=np.zeros(1))
    algorithm = CATALOGUE["kalman_storm"]()
    first, _ = algorithm.first(flat, flat.start(), algorithm.draw(flat, step_key(seed_words([0])[0], 1)))
    assert 0 < abs(float(first.x[0])) < 0.1


def test_gradients_whose_squares_are_no_numbers_are_not_followed() -> None:
    """Curvature and noise are squares, too, and would be zero: then no length would be too long."""
    tiny = walk(replace(BOWL, b=1e-150))
    assert (np.asarray(tiny.x) == START).all() and np.isfinite(tiny.m).all()
    assert 0 < norm(tiny.m[-1]) < 1e-148


def test_the_gain_is_known_before_its_sample() -> None:
    plain, t = walk(), 60
    other = walk(other=t)
    same = slice(0, t - 1)
    np.testing.assert_array_equal(plain.m[same], other.m[same])
    assert plain.estimator.gain[t - 1] == other.estimator.gain[t - 1]
    assert (np.asarray(plain.m[t - 1]) != np.asarray(other.m[t - 1])).all()
    assert plain.estimator.gain[t] != other.estimator.gain[t]


def test_no_step_adds_a_bias_and_old_errors_are_forgotten() -> None:
    """Step 61 with 4096 other samples: the mean error is (1 - a) times that before, to 5 standard errors.

    Of six coordinates: false alarms below 1e-5.
    """
    path = walk()
    state = jax.tree.map(lambda leaf: leaf[59], path)
    before = state.m - BOWL.full_grad(state.x_prev) + 1.0  # an error that is not small beside the noise of the mean
    state = state._replace(m=state.m + 1.0, estimator=state.estimator._replace(m=state.m + 1.0))

    def step(t: jax.Array) -> Any:
        samples = WHOLE.draw(BOWL, step_key(jnp.asarray(seed_words([7])[0]), t))
        after, _ = WHOLE.step(BOWL, state, samples, 61)
        return after.m - BOWL.full_grad(after.x_prev), after.estimator.gain

    errors, gains = jax.jit(jax.vmap(step))(jnp.arange(1, 4097))
    assert np.ptp(gains) == 0 and 0 < gains[0] < 1, "the gain is that of the steps before"
    apart = np.mean(errors, 0) - (1 - gains[0]) * before
    assert np.max(np.abs(apart) / np.std(errors, 0)) < 5 / 64 and np.min(np.abs(before)) > 0.5
    kept = np.cumprod(1 - np.asarray(path.estimator.gain)[60:])
    assert (kept <= 62 / np.asarray(path.estimator.seen)[60:] * (1 + 1e-12)).all() and path.estimator.seen[59] == 62


def test_any_pytree_and_single_precision_go_the_same_way() -> None:
    """Of 40 steps, after which rounding has grown to a few units of 1e-4."""
    x = np.float32(START)
    tree = {"a": x[:2].reshape(1, 2), "b": [x[2:], np.zeros(0, np.float32)]}
    double, single = walk(), walk(x=tree)
    assert single.x["a"].dtype == single.estimator.V.dtype == jnp.float32
    np.testing.assert_allclose(single.x["b"][0][39], double.x[39, 2:], rtol=0, atol=2e-3)
    np.testing.assert_allclose(single.x["a"][39, 0], double.x[39, :2], rtol=0, atol=2e-3)
    np.testing.assert_allclose(single.estimator.V[39], double.estimator.V[39], rtol=0.01)


def test_the_error_bar_is_calibrated() -> None:
    """32 seeds, steps 100 and 200: the median of true squared error over V lies within a factor of 2.

    Each is a mean of about 6 squares, so the median of 32 has a standard error near .11: false alarms below 1e-5.
    """
    paths = [walk(seed=seed) for seed in range(32)]
    for t in (99, 199):
        errors = [float(norm(p.m[t] - BOWL.full_grad(p.x_prev[t])) ** 2) for p in paths]
        V = [float(p.estimator.V[t]) for p in paths]
        assert 0.5 < np.median(np.array(errors) / V) < 2
        assert np.median(V) < 0.05 * 6 * 100 / (t + 1), "or m has learnt nothing"
    assert np.mean([p.estimator.alarms[-1] for p in paths]) < 1


def test_an_error_bar_that_lies_is_caught() -> None:
    """m is pushed and V is not: at the next look an alarm raises V, and the estimate recovers sooner.

    Steps are a millionth as long as usual, for on a way to where m was pushed V rises by itself.
    """
    algorithm, words = CATALOGUE["kalman_storm"](scale=1e-6), jnp.asarray(seed_words([0])[0])
    plain, pushed = (states(BOWL, algorithm, START, words, 200, push=push) for push in (0.0, 1.5))
    assert plain.estimator.alarms[-1] == 0 and pushed.estimator.alarms[-1] >= 1
    at = int(np.argmax(np.asarray(pushed.estimator.alarms) > 0))
    assert pushed.estimator.V[at] > 2 * pushed.estimator.V[at - 1] and pushed.estimator.excess[at] > 3
    assert norm(pushed.m[-1] - BOWL.full_grad(pushed.x_prev[-1])) < 0.5 * 1.5 * 6**0.5


def test_a_table_of_a_separable_sum_stays_finite_and_goes_on() -> None:
    """Gradients fall by orders of magnitude, and what rounding took from the long ones must not be followed.

    Nor must one row's curvature be taken for that of all, though with the table one row knows the gradient.
    """
    problem = get("separable-exponential", n=20)
    for seed in (2, 3):
        words = jnp.asarray(seed_words([seed])[0])
        found = states(problem, CATALOGUE["kalman_storm"](table=True), problem.start(), words, 4000)
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(found))
        slopes = np.linalg.norm(jax.vmap(problem.full_grad)(found.x), axis=1)
        assert slopes[-1] < 1e-5 and slopes.max() < 1.5 * slopes[0]


def test_nothing_to_see() -> None:
    still = walk(Bowl(jnp.zeros(6), noise=0.0))
    assert (np.asarray(still.x) == START).all() and (np.asarray(still.estimator.reach) == 0).all()


def test_refusals() -> None:
    for given, words in (({"scale": 0.0}, "scale must be"), ({"K": 0}, "K must be"), ({"K": 2, "k": 3}, "k must be")):
        with pytest.raises(ValueError, match=f"^kalman_storm: {words}"):
            CATALOGUE["kalman_storm"](**given)
    assert isinstance(WHOLE.estimator, Filtered)


def test_steps_where_samples_agree_on_no_curvature_follow_the_transcription() -> None:
    """Two rows of twelve have all the curvature, so that steps are shortened by what the means of h and squares say."""
    slopes = 24.0 * (np.arange(N) < 2)[:, None] * np.ones(D)
    rows = Rows(jnp.asarray(slopes), jnp.asarray(SHIFTS))
    drawn = tables()["rows"]
    asked = tr.Oracle(lambda x, i: slopes[i] * x + 0.3 * x**3 + SHIFTS[i], n=N, samples=drawn(1), large=drawn(3, 1))
    theirs = tr.kalman_storm(asked, X1, STEPS)
    ours = jax.jit(walked, static_argnums=4)(rows, WHOLE, jnp.asarray(X1), jnp.asarray(seed_words([SEED])[0]), STEPS)
    np.testing.assert_allclose(ours.x, theirs.x, rtol=0, atol=1e-10)
    np.testing.assert_array_equal(np.cumsum(ours.cost), theirs.cost)
