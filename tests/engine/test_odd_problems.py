"""Problems that are odd but right run, and those that are wrong are refused in a sentence."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from normstorm._shared.pytrees import Fixed
from normstorm.algorithms import normalized_storm
from normstorm.algorithms.sgd import sgd
from normstorm.engine import run
from normstorm.random import index, numbers, seed_words, step_key

STORM = normalized_storm(alpha=0.3, eta=0.01, K=2)
TABLE = np.random.default_rng(0).standard_normal((8, 3))
SHIFT = jnp.asarray([1.0, 2.0, 3.0])


class Plain:
    """A class that JAX does not know, with a gradient to be chosen."""

    name = "plain"

    def __init__(self, grad: Any, sample: Any = lambda key, n: jax.random.normal(key, (n, 3))) -> None:
        self.grad, self.sample = grad, sample


def drawn(sample: Any) -> np.ndarray:
    """The two samples of seed 5's first step, by an ordinary program."""
    return np.asarray(jax.jit(lambda words: sample(step_key(words, 1), 2))(jnp.asarray(seed_words([5])[0])))


@pytest.mark.parametrize("gradient", [np.array([3.0, 0.0, 4.0]), np.zeros(3)])
def test_a_gradient_that_never_changes(gradient: np.ndarray) -> None:
    found = run(Plain(lambda x, batch: jnp.asarray(gradient)), STORM, jnp.zeros(3), 9, 2)
    length = np.linalg.norm(gradient)
    np.testing.assert_allclose(found.last, np.tile(-0.09 * gradient / (length or 1), (2, 1)), atol=1e-15)


@pytest.mark.parametrize(
    "sample",
    [
        lambda key, n: jnp.zeros((n, 3)),
        lambda key, n: jnp.ones((n, 3), jnp.int32),
        lambda key, n: jnp.concatenate([numbers(key, n, 0)[0][:, None], jnp.ones((n, 2))], axis=1),
        lambda key, n: SHIFT + numbers(key, 3 * n, 0)[0].reshape(n, 3),
        lambda key, n: jnp.asarray(TABLE)[index(key, (n,), 8)],
        lambda key, n: jnp.sort(numbers(key, 3 * n, 0)[0].reshape(n, 3), axis=1),
    ],
)
def test_samples_that_are_constant_or_made_of_constants(sample: Any) -> None:
    """The same as by an ordinary program."""
    problem = Plain(lambda x, batch: x + jnp.mean(batch, axis=0), sample)
    found = run(problem, STORM, jnp.ones(3), 1, [5])
    batch = drawn(sample)
    np.testing.assert_allclose(found.estimate[0], 1 + batch.mean(axis=0), rtol=1e-14)


@pytest.mark.parametrize(
    "gradient",
    [
        lambda x, batch: jnp.where(np.zeros(3, bool), x, 1.0),
        lambda x, batch: jax.grad(lambda x: jnp.sum(jax.nn.leaky_relu(x, 1.0)))(x),
        lambda x, batch: jnp.sum(jnp.zeros((3, 3)) * x, axis=1) + 1.0,
        lambda x, batch: jnp.ones(3) + jnp.sum(x[:0]),
        lambda x, batch: jnp.ones(3) + (x.astype(jnp.int32) * 0),
    ],
)
def test_a_gradient_that_the_compiler_finds_to_be_a_constant(gradient: Any) -> None:
    """It looks as if it depended on x."""
    found = run(Plain(gradient), STORM, jnp.ones(3), 9, 2)
    np.testing.assert_allclose(found.last, np.full((2, 3), 1 - 0.09 / np.sqrt(3)), atol=1e-15)


@pytest.mark.parametrize(
    "sample",
    [
        lambda key, n: numbers(key, 3 * n, 0)[0].reshape(n, 3).astype(jnp.int32) * 0,
        lambda key, n: jnp.where(jnp.zeros((n, 3), bool), numbers(key, 3 * n, 0)[0].reshape(n, 3), 0.0),
    ],
)
def test_samples_that_the_compiler_finds_to_be_constants(sample: Any) -> None:
    found = run(Plain(lambda x, batch: x + jnp.mean(batch, axis=0), sample), STORM, jnp.ones(3), 9, 2)
    np.testing.assert_allclose(found.last, np.full((2, 3), 1 - 0.09 / np.sqrt(3)), atol=1e-15)


def test_a_start_without_numbers() -> None:
    with pytest.raises(ValueError, match=r"^run: x0 must hold at least one number; got none$"):
        run(Plain(lambda x, batch: x), STORM, jnp.ones(0), 9, 2)


@pytest.mark.parametrize("shape", [lambda n: (n, 0), lambda n: (0,)])
def test_samples_without_numbers(shape: Any) -> None:
    found = run(
        Plain(lambda x, batch: 2 * x + jnp.sum(batch), lambda key, n: jnp.zeros(shape(n))), STORM, jnp.ones(3), 9, 2
    )
    np.testing.assert_allclose(found.last, np.full((2, 3), 1 - 0.09 / np.sqrt(3)), atol=1e-15)


def test_steps_that_ask_too_much() -> None:
    still = Plain(lambda x, batch: 2 * x, lambda key, n: ())
    most = run(still, sgd(eta=0.01, K=2**32 - 1), jnp.ones(3), 4, 2)
    np.testing.assert_array_equal(most.cost, 4 * (2**32 - 1))
    with pytest.raises(ValueError, match=r"^run: a step must ask fewer than 2\*\*32 sample gradients; got 4294967296$"):
        run(still, sgd(eta=0.01, K=2**32), jnp.ones(3), 4, 2)


def test_samples_of_which_a_part_is_constant() -> None:
    def sample(key: jax.Array, n: int) -> tuple[jax.Array, jax.Array]:
        return numbers(key, 3 * n, 0)[0].reshape(n, 3), jnp.full(n, 7.0)

    found = run(
        Plain(lambda x, batch: x + jnp.mean(batch[0] * batch[1][:, None], axis=0), sample), STORM, jnp.ones(3), 9, 2
    )
    assert np.all(np.isfinite(found.last))


def test_constants_of_a_module_and_words_of_another_width() -> None:
    def gradient(x: jax.Array, batch: jax.Array) -> jax.Array:
        halves = jax.lax.bitcast_convert_type(batch, jnp.uint32)
        return x + SHIFT + jnp.mean(halves, axis=(0, 2)) * 2.0**-32

    def alone(x: jax.Array, batch: jax.Array) -> jax.Array:
        high, low = (batch.view(np.uint32).reshape(2, 3, 2)[..., i] for i in (1, 0))
        return x + np.asarray(SHIFT) + ((high.astype(float) + low) / 2).mean(axis=0) * 2.0**-32

    problem = Plain(gradient)
    found = run(problem, STORM, jnp.ones(3), 1, [5])
    batch = drawn(problem.sample)
    np.testing.assert_allclose(found.estimate[0], alone(np.ones(3), batch), rtol=1e-6)


@pytest.mark.parametrize(
    ("gradient", "got"),
    [
        (lambda x, batch: 1.0, r"float64\[\]"),
        (lambda x, batch: jnp.ones(3, int), r"int64\[3\]"),
        (lambda x, batch: jnp.ones(3, jnp.float32), r"float32\[3\]"),
        (lambda x, batch: (x, x), r"\('float64\[3\]', 'float64\[3\]'\)"),
    ],
)
def test_gradients_of_another_form(gradient: Any, got: str) -> None:
    with pytest.raises(ValueError, match=rf"^run: problem.grad must return the form of x, float64\[3\]; got {got}$"):
        run(Plain(gradient), STORM, jnp.ones(3), 9, 1)


def test_keys_as_samples() -> None:
    problem = Plain(lambda x, batch: x, lambda key, n: jax.random.split(key, n))
    with pytest.raises(ValueError, match=r"^run: problem.sample must return arrays of numbers; got random keys"):
        run(problem, STORM, jnp.ones(3), 9, 1)


class Holder:
    """Something inside of a problem."""

    def __init__(self) -> None:
        self.factor = 1.0


class Changeable(Plain):
    def __init__(self) -> None:
        super().__init__(lambda x, batch: x - self.size() + 0 * jnp.mean(batch, axis=0))
        self.parts, self.table, self.holder, self.number = (1.0,), {"a": [1.0]}, Holder(), np.float32(1)

    def size(self) -> Any:
        return self.parts[0] * self.table["a"][0] * self.holder.factor * self.number


def test_a_problem_whose_attributes_change_is_another_problem() -> None:
    """The engine finds its programs by `Fixed`; that a changed one is run as it is, it shows in runs of its own."""
    problem = Changeable()
    known = [Fixed(problem)]
    assert known[0] == Fixed(problem) and known[0] != Fixed(Changeable())

    def changed() -> None:
        found = Fixed(problem)
        assert found == Fixed(problem) and found not in known
        known.append(found)

    def last() -> float:
        return float(run(problem, sgd(eta=0.5), jnp.zeros(3), 2, [0], threads=1).last[0, 0])

    assert last() == 0.75
    for value in (2.0, 3.0):
        problem.parts = None
        problem.parts = (value,)
        changed()
    assert last() == 0.75 * 3
    problem.parts = (1.0,)
    assert Fixed(problem) == known[0]
    for value in (2, 3):
        problem.number = None
        problem.number = np.float32(value)
        changed()
    problem.number = np.float32(1)
    problem.table["a"][0] = 2.0
    changed()
    problem.holder.factor = 2.0
    changed()
    assert last() == 3.0


def test_a_seed_that_has_diverged_looks_for_no_better_iterate() -> None:
    """SGD forgets an infinite estimate; its seed is lost all the same."""
    problem = Plain(lambda x, batch: x + jnp.where(batch[0] > 2, jnp.inf, batch[0]))
    found = run(problem, sgd(eta=0.1), jnp.ones(3), 60, 16)
    lost = found.diverged_at > 0
    assert lost.sum() > 8
    assert (found.smallest.step[lost] < found.diverged_at[lost]).all()
