"""Algorithm = estimator x geometry x schedule: how we look, how we measure, how far and how much we trust.

    m_t       estimator:  from samples at x_t (and at x_{t-1}), m_{t-1} and the weight a_t
    u_t       geometry:   direction from m_t
    eta_t     schedule:   how far
    x_{t+1} = x_t - eta_t u_t

Each word keeps its own state. Floats are data, so a sweep over them is a vmap; integers are part of the program.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax

from ..pytrees import pytree
from .estimators import static

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
        m, looked, cost = self.estimator.init(problem, x, samples)
        return self._move(1, x, m, looked, self.geometry.init(x), self.schedule.init(x)), cost

    def step(self, problem: Any, state: State, samples: Tree, t: Any) -> tuple[State, Any]:
        """Step t >= 2: the new state and the sample gradients asked."""
        weight = self.schedule.weight(t, state.schedule)
        m, looked, cost = self.estimator.step(problem, state.x, state.x_prev, state.m, state.estimator, samples, weight)
        return self._move(t, state.x, m, looked, state.geometry, state.schedule), cost

    def _move(self, t: Any, x: Tree, m: Tree, looked: Tree, geometry: Tree, schedule: Tree) -> State:
        direction, geometry = self.geometry.step(m, geometry)
        eta, schedule = self.schedule.step(t, m, schedule)
        moved = jax.tree.map(lambda x, u: x - eta * u, x, direction)
        return State(moved, x, m, looked, geometry, schedule)
