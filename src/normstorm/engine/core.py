"""Algorithm = estimator x geometry x schedule: how we look, how we measure, how far and how much we trust.

    look_t    estimator:  gradients of samples at x_t (and at x_{t-1})
    a_t       schedule:   the weight of what is fresh, perhaps from what was looked at
    m_t       estimator:  from m_{t-1}, the look and the weight
    u_t       geometry:   direction from m_t
    eta_t     schedule:   how far
    x_{t+1} = x_t - eta_t u_t

Each word keeps its own state. Floats are data, so a sweep over them is a vmap; integers are part of the program.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ..pytrees import pytree
from .estimators import Look, static

Tree = Any


class State(NamedTuple):
    """What the next step needs: after step t, x = x_{t+1}, x_prev = x_t and m = m_t."""

    x: Tree
    x_prev: Tree
    m: Tree
    estimator: Tree
    geometry: Tree
    schedule: Tree


@pytree
@dataclass(frozen=True)
class Algorithm:
    """Three words and a name."""

    estimator: Any
    geometry: Any
    schedule: Any
    name: str = static("algorithm")

    def draw(self, problem: Any, key: jax.Array) -> Tree:
        """The samples of one step."""
        return self.estimator.draw(problem, key)

    def first(self, problem: Any, x: Tree, samples: Tree) -> tuple[State, Any]:
        """Step 1 from x_1: the new state and the sample gradients asked."""
        look, looked, cost = self.estimator.first(problem, x, samples)
        weight, schedule = self.schedule.weight(1, look, self.schedule.init(x))
        m = self.estimator.start(look, weight)
        return self._move(1, x, m, look, looked, self.geometry.init(x), schedule), cost

    def step(self, problem: Any, state: State, samples: Tree, t: Any) -> tuple[State, Any]:
        """Step t >= 2: the new state and the sample gradients asked."""
        stopped = self.geometry.stopped(state.geometry)
        if stopped is False:
            return self._step(problem, state, samples, t)

        def go_on() -> tuple[State, Any]:
            moved, cost = self._step(problem, state, samples, t)
            return moved, jnp.asarray(cost, jnp.uint32)

        gone: tuple[State, Any] = jax.lax.cond(stopped, lambda: (state, jnp.uint32(0)), go_on)
        return gone

    def _step(self, problem: Any, state: State, samples: Tree, t: Any) -> tuple[State, Any]:
        look, looked, cost = self.estimator.look(problem, t, state.x, state.x_prev, state.estimator, samples)
        weight, schedule = self.schedule.weight(t, look, state.schedule)
        m = self.estimator.combine(state.m, look, weight)
        return self._move(t, state.x, m, look, looked, state.geometry, schedule), cost

    def _move(self, t: Any, x: Tree, m: Tree, look: Look, looked: Tree, geometry: Tree, schedule: Tree) -> State:
        direction, geometry = self.geometry.step(t, x, m, look.fresh, geometry)
        eta, schedule = self.schedule.step(t, m, look, schedule)
        moved = jax.tree.map(lambda x, u: x - eta * u, x, direction)
        return State(moved, x, m, looked, geometry, schedule)
