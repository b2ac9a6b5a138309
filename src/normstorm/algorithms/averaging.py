"""Which point is handed out: the iterate, or an average of iterates.

An averaging is a frozen, JAX-registered dataclass with

    init(x)                     -> state
    base(x, state)              -> where the move of a step starts
    step(t, moved, x, state)    -> (x_{t+1}, state)        x_{t+1}: where the next gradients are asked
    point(x_prev, state)        -> the point that is handed out at step t, x_prev = x_t
    last(t, x, state)           -> what `point` would be at step t + 1, x = x_{t+1}; no gradient is asked for it

An average is no statistic of the engine but part of the algorithm: it is measured, returned and certified in the place
of the iterate. It asks no sample gradient.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from normstorm._shared.pytrees import pytree

Tree = Any


class RunningMean(NamedTuple):
    """The mean of points with what rounding has taken from it: a plain one stops moving in float32 when t is large."""

    mean: Tree
    lost: Tree

    @classmethod
    def init(cls, x: Tree) -> RunningMean:
        return cls(x, jax.tree.map(jnp.zeros_like, x))

    def add(self, t: Any, x: Tree) -> RunningMean:
        """The t-th point; the first one replaces whatever was there."""
        term = jax.tree.map(lambda x, mean, lost: (x - mean) / t - lost, x, self.mean, self.lost)
        mean = jax.tree.map(jnp.add, self.mean, term)
        lost = jax.tree.map(lambda new, mean, term: (new - mean) - term, mean, self.mean, term)
        return RunningMean(mean, lost)


class Averaging:
    """What averages of a path have in common: they watch it, and leave it as it is."""

    def base(self, x: Tree, state: Tree) -> Tree:
        return x

    def point(self, x_prev: Tree, state: Tree) -> Tree:
        return state


@pytree
@dataclass(frozen=True)
class NoAveraging(Averaging):
    """The iterate itself."""

    def init(self, x: Tree) -> Tree:
        return ()

    def step(self, t: Any, moved: Tree, x: Tree, state: Tree) -> tuple[Tree, Tree]:
        return moved, state

    def point(self, x_prev: Tree, state: Tree) -> Tree:
        return x_prev

    def last(self, t: Any, x: Tree, state: Tree) -> Tree:
        return x


@pytree
@dataclass(frozen=True)
class PolyakRuppert(Averaging):
    """The mean of x_1 .. x_t."""

    def init(self, x: Tree) -> RunningMean:
        return RunningMean.init(x)

    def step(self, t: Any, moved: Tree, x: Tree, state: RunningMean) -> tuple[Tree, Tree]:
        return moved, state.add(t, x)

    def point(self, x_prev: Tree, state: RunningMean) -> Tree:
        return state.mean

    def last(self, t: Any, x: Tree, state: RunningMean) -> Tree:
        return state.add(t + 1, x).mean


@pytree
@dataclass(frozen=True)
class ExponentialAverage(Averaging):
    """e_1 = x_1, e_t = decay e_{t-1} + (1 - decay) x_t."""

    decay: float

    def init(self, x: Tree) -> Tree:
        return x

    def step(self, t: Any, moved: Tree, x: Tree, state: Tree) -> tuple[Tree, Tree]:
        return moved, self.last(t, x, state)

    def last(self, t: Any, x: Tree, state: Tree) -> Tree:
        return jax.tree.map(lambda e, x: e + (1 - self.decay) * (x - e), state, x)


@pytree
@dataclass(frozen=True)
class ScheduleFree(Averaging):
    """The path z moves, the mean of z_1 .. z_t is handed out, gradients are asked at (1 - beta) z_t + beta mean_t."""

    beta: float

    def init(self, x: Tree) -> Tree:
        return x, RunningMean.init(x)

    def base(self, x: Tree, state: Tree) -> Tree:
        return state[0]

    def step(self, t: Any, moved: Tree, x: Tree, state: Tree) -> tuple[Tree, Tree]:
        z, mean = state
        state = moved, mean.add(t, z)
        ahead = self.last(t, x, state)
        return jax.tree.map(lambda z, mean: z + self.beta * (mean - z), moved, ahead), state

    def point(self, x_prev: Tree, state: Tree) -> Tree:
        return state[1].mean

    def last(self, t: Any, x: Tree, state: Tree) -> Tree:
        z, mean = state
        return mean.add(t + 1, z).mean
