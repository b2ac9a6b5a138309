"""The transformations of optax against the engine's step, and what a training loop does with them."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from normstorm import algorithms
from normstorm.optax import normalized_storm, previous_params, scale_by_storm
from normstorm.problems import registry

STEPS, ETA, BETA = 30, 0.05, 0.8


def trained(optimizer: optax.GradientTransformationExtraArgs, problem, x, draws, k: int | None) -> list[np.ndarray]:
    """x_2, x_3, ... by a loop as the guide teaches it."""
    state, path = optimizer.init(x), []

    @jax.jit
    def step(x, state, batch):
        few = batch if k is None else jax.tree.map(lambda leaf: leaf[:k], batch)
        shared = None if k is None else problem.grad(x, few)
        old = problem.grad(previous_params(state), few)
        grads = problem.grad(x, batch)
        updates, state = optimizer.update(grads, state, x, old_grads=old, shared_grads=shared)
        return optax.apply_updates(x, updates), state

    for batch in draws:
        x, state = step(x, state, batch)
        path.append(x)
    return path


@pytest.mark.parametrize("k", [None, 2])
def test_the_path_is_the_engines(k: int | None) -> None:
    with jax.enable_x64(True):
        problem = registry.get("quadratic", dim=3)
        algorithm = algorithms.normalized_storm(alpha=1 - BETA, eta=ETA, K=4, k=k)
        draws = [algorithm.draw(problem, jax.random.key(t)) for t in range(STEPS)]
        x = problem.start()
        state, _ = algorithm.first(problem, x, draws[0])
        expected = [state.x]
        for t, batch in enumerate(draws[1:], 2):
            state, _ = algorithm.step(problem, state, batch, t)
            expected.append(state.x)
        found = trained(normalized_storm(ETA, BETA), problem, x, draws, k)
        np.testing.assert_allclose(np.stack(found), np.stack(expected), rtol=1e-12, atol=1e-14)


def test_a_step_has_the_length_that_the_schedule_says_whatever_the_tree() -> None:
    x = {"w": jnp.ones((2, 3)), "b": (jnp.zeros(3),)}
    optimizer = normalized_storm(lambda count: 0.5 / (1 + count))
    state = optimizer.init(x)
    for t in range(3):
        grads = jax.tree.map(lambda leaf: leaf + 1.0, x)
        old = jax.tree.map(lambda leaf: leaf + 1.0, previous_params(state))
        updates, state = optimizer.update(grads, state, x, old_grads=old)
        assert optax.tree.norm(updates) == pytest.approx(0.5 / (1 + t), rel=1e-6)
        assert previous_params(state) is x
        x = optax.apply_updates(x, updates)


def test_an_estimate_of_zero_means_stay() -> None:
    x = jnp.ones(3)
    optimizer = normalized_storm(1.0)
    updates, _ = optimizer.update(jnp.zeros(3), optimizer.init(x), x, old_grads=jnp.zeros(3))
    np.testing.assert_array_equal(updates, 0)


def test_it_is_a_link_of_a_chain_and_keeps_the_type_of_the_gradients() -> None:
    x = jnp.ones(3, jnp.bfloat16)
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), scale_by_storm(0.5), optax.sgd(0.1, momentum=0.9))
    state = optimizer.init(x)
    updates, state = jax.jit(optimizer.update)(x, state, x, old_grads=x)
    assert updates.dtype == jnp.bfloat16
    np.testing.assert_array_equal(previous_params(state), x)


def test_refusals() -> None:
    x = jnp.ones(3)
    storm = scale_by_storm()
    state = storm.init(x)
    tree = "a tree like that of the gradients"
    with pytest.raises(ValueError, match=f"scale_by_storm: old_grads must be {tree}; got old_grads=None"):
        storm.update(x, state, x)
    with pytest.raises(ValueError, match=f"scale_by_storm: params must be {tree}; got params=None"):
        storm.update(x, state, old_grads=x)
    with pytest.raises(ValueError, match=f"scale_by_storm: shared_grads must be {tree}"):
        storm.update(x, state, x, old_grads=x, shared_grads={"a": x})
    with pytest.raises(ValueError, match=r"scale_by_storm: beta must be a number in \[0, 1\); got beta=1.5"):
        scale_by_storm(1.5)
    with pytest.raises(ValueError, match="normalized_storm: learning_rate must be a finite number >= 0; got"):
        normalized_storm(-1.0)
    with pytest.raises(ValueError, match="previous_params: state must be one that holds the state of one"):
        previous_params(optax.adam(1.0).init(x))
