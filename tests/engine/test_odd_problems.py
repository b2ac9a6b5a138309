"""Problems that are odd but right run, and those that are wrong are refused in a sentence."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from normstorm.engine import normalized_storm, run

STORM = normalized_storm(alpha=0.3, eta=0.01, K=2)
SHIFT = jnp.asarray([1.0, 2.0, 3.0])


class Plain:
    """A class that JAX does not know, with a gradient to be chosen."""

    name = "plain"

    def __init__(self, grad: Any, sample: Any = lambda key, n: jax.random.normal(key, (n, 3))) -> None:
        self.grad, self.sample = grad, sample


@pytest.mark.parametrize("gradient", [np.array([3.0, 0.0, 4.0]), np.zeros(3)])
def test_a_gradient_that_never_changes(gradient: np.ndarray) -> None:
    """A kernel with constants only would end the process."""
    found = run(Plain(lambda x, batch: jnp.asarray(gradient)), STORM, jnp.zeros(3), 9, 2)
    length = np.linalg.norm(gradient)
    np.testing.assert_allclose(found.last, np.tile(-0.09 * gradient / (length or 1), (2, 1)), atol=1e-15)


def test_constants_of_a_module_and_words_of_another_width() -> None:
    def gradient(x: jax.Array, batch: jax.Array) -> jax.Array:
        halves = jax.lax.bitcast_convert_type(batch, jnp.uint32)
        return x + SHIFT + jnp.mean(halves, axis=(0, 2)) * 2.0**-32

    def alone(x: jax.Array, batch: jax.Array) -> jax.Array:
        high, low = (batch.view(np.uint32).reshape(2, 3, 2)[..., i] for i in (1, 0))
        return x + np.asarray(SHIFT) + ((high.astype(float) + low) / 2).mean(axis=0) * 2.0**-32

    from normstorm.random import seed_words, step_key

    problem = Plain(gradient)
    found = run(problem, STORM, jnp.ones(3), 1, [5])
    batch = np.asarray(problem.sample(step_key(jnp.asarray(seed_words([5])[0]), 1), 2))
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
