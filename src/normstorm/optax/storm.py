"""Normalized STORM as transformations of gradients.

    m_1 = g_K(x_1)
    m_t = beta m_{t-1} + (1 - beta) g_K(x_t) + beta (g_k(x_t) - g_k(x_{t-1}))        for t >= 2, the same samples
    x_{t+1} = x_t - eta m_t / ||m_t||

`update` is handed g_K(x_t), and by name g_k(x_{t-1}) and, if k < K, g_k(x_t): a transformation cannot ask for
gradients itself. x_{t-1} is kept in its state, where `previous_params` finds it. Memory: m and x_{t-1}.

Source: Liu, Jagabathula, Zhou, "Near-Optimal Non-Convex Stochastic Optimization under Generalized Smoothness",
Algorithm 1.
Departures: m_t = 0, which the paper leaves undefined, means "stay". With k < K the loop asks g_k(x_t) apart, 2 k
gradients in place of k: optax is given means, not samples.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from normstorm._shared import validate
from normstorm.algorithms.geometries import Normalized

Tree = Any


class StormState(NamedTuple):
    """Steps taken, the estimate m, and the point at which it was the last time."""

    steps: jax.Array
    m: Tree
    previous: Tree


def scale_by_storm(beta: float = 0.9) -> optax.GradientTransformationExtraArgs:
    """Gradients become m_t, with beta in [0, 1): one link of `optax.chain`.

    update(grads, state, params, old_grads=..., shared_grads=...)
        grads         g_K(x_t), at `params`
        old_grads     g_k(x_{t-1}) on the same samples, at `previous_params(state)`; at the first step it is not used
        shared_grads  g_k(x_t), if `old_grads` is of k < K samples; otherwise it is `grads`
    """
    who = "scale_by_storm"
    beta = validate.fraction(who, "beta", beta, below_one=True)

    def init(params: Tree) -> StormState:
        return StormState(jnp.zeros((), jnp.int32), jax.tree.map(jnp.zeros_like, params), params)

    def update(
        grads: Tree,
        state: StormState,
        params: Tree = None,
        *,
        old_grads: Tree = None,
        shared_grads: Tree = None,
        **others: Any,
    ) -> tuple[Tree, StormState]:
        given = {"params": params, "old_grads": old_grads}
        given |= {} if shared_grads is None else {"shared_grads": shared_grads}
        structure: Any = jax.tree.structure(grads)
        for name, tree in given.items():
            if structure != jax.tree.structure(tree):
                validate.refuse(who, name, "a tree like that of the gradients", tree)
        first = state.steps == 0

        def estimate(m: jax.Array, g: jax.Array, new: jax.Array, old: jax.Array) -> jax.Array:
            return jnp.where(first, g, beta * m + (1 - beta) * g + beta * (new - old)).astype(g.dtype)

        m = jax.tree.map(estimate, state.m, grads, grads if shared_grads is None else shared_grads, old_grads)
        return m, StormState(state.steps + 1, m, params)

    return optax.GradientTransformationExtraArgs(init, update)


def normalized_storm(learning_rate: optax.ScalarOrSchedule, beta: float = 0.9) -> optax.GradientTransformationExtraArgs:
    """Algorithm 1 of the paper: steps of length `learning_rate`, a number or a schedule, along -m_t; beta in [0, 1).

    With `plan.eta` and `plan.beta` of a plan it is the run that the plan's bound is about, as long as every step draws
    `plan.batch` samples and asks `plan.sub_batch` of them at both points.
    """
    who = "normalized_storm"
    if not callable(learning_rate):
        learning_rate = validate.parameter(who, "learning_rate", learning_rate, validate.NONNEGATIVE)
    beta = validate.fraction(who, "beta", beta, below_one=True)
    return optax.chain(scale_by_storm(beta), _unit_length(), optax.scale_by_learning_rate(learning_rate))


def previous_params(state: Any) -> Tree:
    """x_{t-1}, where the next step's `old_grads` are taken; before the first step, x_1.

    The state may be that of a chain, of `optax.inject_hyperparams` or of any other wrapper that keeps it whole.
    """
    leaves = jax.tree.leaves(state, is_leaf=lambda part: isinstance(part, StormState))
    found = [part for part in leaves if isinstance(part, StormState)]
    if len(found) != 1:
        validate.refuse("previous_params", "state", "one that holds the state of one scale_by_storm", len(found))
    return found[0].previous


def _unit_length() -> optax.GradientTransformation:
    """m / ||m|| over all leaves, and 0 where m = 0."""
    return optax.stateless(lambda updates, _: Normalized().step(0, None, updates, None, ())[0])
