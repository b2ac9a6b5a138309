"""Gradients against differences of values, means against exact means, batches of every size, tracing, precision."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from climb import SMALL, each

from normstorm.problems import PROBLEMS, Problem, get
from normstorm.problems.noise import coordinate, fourier, gaussian, noisy, sphere
from normstorm.problems.synthetic import Cosh, DoubleWell, ExpQuad


def points(problem, count: int = 3) -> list[jax.Array]:
    rng = np.random.default_rng(7)
    return [problem.start() + jnp.asarray(0.3 * rng.standard_normal(problem.start().shape)) for _ in range(count)]


@jax.jit
def measure(problem, xs, batches):
    """Everything at once, compiled with the problem as an argument and mapped over points and batches of five."""
    h = 1e-5

    def at(x, five):
        steps = h * jnp.eye(x.size).reshape(-1, *x.shape)
        slopes = jax.vmap(lambda e: (problem.value(x + e) - problem.value(x - e)) / (2 * h))(steps)
        one = jax.tree.map(lambda a: a[:1], five)
        return (
            slopes.reshape(x.shape),
            problem.full_grad(x),
            problem.grad(x, one),
            problem.grad(x, five),
            each(problem, x, five),
        )

    return jax.vmap(at)(xs, batches)


@pytest.mark.parametrize("name", PROBLEMS)
def test_gradients_and_batches(name: str) -> None:
    """The full gradient is the slope of the value; a batch is the mean of its samples, for n = 1 and n = 5."""
    problem = get(name, **SMALL[name])
    assert isinstance(problem, Problem) and problem.name == name and problem.is_exact
    keys = jax.random.split(jax.random.key(1), 3)
    for n in (1, 5):
        batch = jax.eval_shape(jax.vmap(lambda key, n=n: problem.sample(key, n)), keys)
        assert all(leaf.shape[:2] == (3, n) for leaf in jax.tree.leaves(batch))
    batches = jax.jit(jax.vmap(lambda key: problem.sample(key, 5)))(keys)
    slopes, full, one, five, alone = map(np.asarray, measure(problem, jnp.stack(points(problem)), batches))
    assert np.allclose(full, slopes, rtol=1e-6, atol=1e-7)
    assert np.allclose(one, alone[:, 0], rtol=1e-9, atol=1e-12)
    assert np.allclose(five, alone.mean(axis=1), rtol=1e-9, atol=1e-12)
    assert not np.allclose(five, full, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", PROBLEMS)
def test_single_precision_stays_single(name: str) -> None:
    """With the flag off, and with single-precision points under the flag."""

    def results(problem, x):
        batch = problem.sample(jax.random.key(0), 2)
        return problem.grad(x, batch), problem.full_grad(x), problem.value(x)

    for flag in (True, False):
        with jax.enable_x64(flag):
            problem = get(name)
            x = problem.start().astype(jnp.float32)
            assert {r.dtype for r in jax.eval_shape(results, problem, x)} == {jnp.dtype("float32")}


@pytest.mark.parametrize("name", ["chain", "cosh", "dro-cvar"])
def test_single_precision_agrees_with_double(name: str) -> None:
    double = jax.jit(get(name).full_grad)(get(name).start() + 0.6)
    with jax.enable_x64(False):
        single = jax.jit(get(name).full_grad)(get(name).start() + 0.6)
    assert single.dtype == jnp.float32 and np.allclose(single, double, rtol=1e-4, atol=1e-5)


def test_no_two_classes_share_a_structure() -> None:
    """A compiled function that takes a problem must not mistake one class for another, nor a noise for another."""
    everything = [get(name) for name in PROBLEMS] + [sphere(1, 1), gaussian(1, 1), fourier(1, 1), coordinate()]
    structures = [jax.tree.structure(item) for item in everything]
    assert all(a != b for i, a in enumerate(structures) for b in structures[:i])
    again = jax.tree.unflatten(structures[0], jax.tree.leaves(everything[0]))
    assert type(again) is type(everything[0]) and jax.tree.structure(again) == structures[0]
    assert jax.tree.structure(get("cosh", c=1.0)) == jax.tree.structure(get("cosh", c=3.0))


def test_noises_are_gradients_of_their_functions() -> None:
    """Against f written out and differentiated by JAX."""
    F, x = Cosh(1.5, 3), jnp.array([0.3, -0.8, 0.5])
    e, u, v, phi = 1.0, jnp.array([0.6, 0.0, -0.8]), jnp.array([0.0, 0.6, 0.8]), 1.1

    def f(x):
        return (1 + 0.4 * e) * F.value(x) + 0.7 * (u @ x) + 0.5 / 3.0 * jnp.cos(3.0 * (v @ x) + phi)

    problem = noisy(F, sphere(0.7, 0.4), fourier(0.5, 3.0))
    batch = ((jnp.array([e]), u[None]), (v[None], jnp.array([phi])))
    ours, theirs = jax.jit(lambda x: (problem.grad(x, batch), jax.grad(f)(x)))(x)
    assert np.allclose(ours, theirs)
    third = noisy(F, coordinate()).grad(x, (jnp.array([2]),))
    assert np.allclose(third, [0, 0, 3 * 1.5 * np.sinh(1.5 * 0.5)])


@pytest.mark.parametrize(
    "noise", [sphere(0.5, 0.3), gaussian(0.5, 0.3), fourier(0.8, 2.0), coordinate()], ids=lambda n: type(n).__name__
)
def test_sampled_moments(noise) -> None:
    """Mean and mean square of 40,000 draws within 5 standard errors; false alarm below 1e-5 for these seeds' kind."""
    problem, n = noisy(DoubleWell(4), noise), 40_000
    x = jnp.array([0.2, -1.3, 0.7, 1.9])
    g = problem.full_grad(x)
    noises = np.asarray(jax.jit(lambda key: each(problem, x, problem.sample(key, n)) - g)(jax.random.key(5)))
    assert np.all(np.abs(noises.mean(axis=0)) <= 5 * noises.std(axis=0) / n**0.5)
    squares = np.sum(noises**2, axis=1)
    level, ratio = problem.deviation("mean-square")
    expected = level**2 + ratio**2 * float(g @ g)
    assert abs(squares.mean() - expected) <= 5 * squares.std() / n**0.5
    if type(noise).__name__ != "GaussianNoise":
        level, ratio = problem.deviation("almost-sure")
        assert squares.max() ** 0.5 <= (level + ratio * np.linalg.norm(g)) * (1 + 1e-12)


def test_rows_are_drawn_uniformly() -> None:
    """Counts of 442 rows in 200,000 draws: chi-square within 6 standard deviations of its mean."""
    problem = get("dro-regression")
    counts = np.bincount(problem.sample(jax.random.key(2), 200_000), minlength=442)
    expected = 200_000 / 442
    statistic = np.sum((counts - expected) ** 2 / expected)
    assert len(counts) == 442 and abs(statistic - 441) <= 6 * (2 * 441) ** 0.5


def test_samples_depend_on_the_key_alone() -> None:
    """The same in a crowd of keys, compiled with the problem as an argument, as for one key."""
    for name in ("double-well", "dro-chi2"):
        problem = get(name, **SMALL[name])
        keys = jax.random.split(jax.random.key(0), 3)
        crowd = jax.jit(lambda p, keys: jax.vmap(lambda key: p.sample(key, 5))(keys))(problem, keys)
        alone = problem.sample(keys[1], 5)
        for many, one in zip(jax.tree.leaves(crowd), jax.tree.leaves(alone), strict=True):
            assert np.allclose(many[1], one, rtol=1e-14)
        assert any(not np.array_equal(many[0], many[1]) for many in jax.tree.leaves(crowd))


def test_noise_parameters_are_checked() -> None:
    for make, sentence in (
        (lambda: sphere(-1, 0), "sphere noise: s0 must be a finite number >= 0; got s0=-1"),
        (lambda: fourier(1, 0), "fourier noise: w must be a finite number > 0; got w=0"),
        (lambda: gaussian(0, float("nan")), "gaussian noise: s1 must be a finite number >= 0; got s1=nan"),
        (lambda: noisy(ExpQuad(1.0, 1.0, 2), coordinate()), "coordinate noise: objective must be separable"),
    ):
        with pytest.raises(ValueError, match=sentence):
            make()
