"""The yardstick: Normalized STORM for many seeds as anybody would write it in JAX, with the engine's keys.

It keeps the running mean and the minimum of ||grad F(x_t)||, the iterate with the smallest ||m_t||, and whether a
number was not finite. `bare_loop` keeps the mean alone.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from normstorm.algorithms.core import Algorithm, State
from normstorm.algorithms.geometries import norm
from normstorm.random import step_key


def one_seed(problem: Any, algorithm: Algorithm, x0: Any, steps: Any, bare: bool, seed: jax.Array) -> Any:
    def seen(state: State, stats: Any) -> Any:
        total, least, best, best_x, dead = stats
        if bare:
            return total + norm(problem.full_grad(state.x_prev)), least, best, best_x, dead
        g, size = norm(problem.full_grad(state.x_prev)), norm(state.m)
        better = size < best
        best_x = jax.tree.map(lambda new, old: jnp.where(better, new, old), state.x_prev, best_x)
        dead = dead | ~(jnp.isfinite(g) & jnp.isfinite(size))
        return total + g, jnp.minimum(least, g), jnp.where(better, size, best), best_x, dead

    def step(t: Any, carry: Any) -> Any:
        state, stats = carry
        state, _ = algorithm.step(problem, state, algorithm.draw(problem, step_key(seed, t)), t)
        return state, seen(state, stats)

    state, _ = algorithm.first(problem, x0, algorithm.draw(problem, step_key(seed, 1)))
    zero = jnp.zeros((), jax.tree.leaves(x0)[0].dtype)
    stats = seen(state, (zero, zero + jnp.inf, zero + jnp.inf, x0, False))
    return jax.lax.fori_loop(2, steps + 1, step, (state, stats))


@jax.jit
def plain_loop(problem: Any, algorithm: Algorithm, x0: Any, steps: Any, seeds: jax.Array) -> Any:
    return jax.vmap(partial(one_seed, problem, algorithm, x0, steps, False))(seeds)


@jax.jit
def bare_loop(problem: Any, algorithm: Algorithm, x0: Any, steps: Any, seeds: jax.Array) -> Any:
    return jax.vmap(partial(one_seed, problem, algorithm, x0, steps, True))(seeds)
