"""Estimates that start anew: recursive ones with restarts, and those of a finite sum of n components.

A restart asks S1 fresh samples, or the full gradient of a finite sum (n sample gradients) if S1 is None. Its batch is
drawn inside the branch that needs it. That the loop's t decides about a restart, and not a counter in the state, keeps
the branch a branch when many seeds are advanced at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from normstorm._shared.jax_internals import ClosedJaxpr, custom_vmap, jaxpr_as_fun
from normstorm._shared.pytrees import pytree
from normstorm._shared.validate import truth

from .estimators import (
    COIN,
    SECOND,
    GradientSample,
    Sampled,
    Single,
    asked,
    data,
    draw_large_batch,
    large_batch_key,
    static,
)
from .requirements import A_FINITE_SUM, NOTHING, no_finite_sum

Tree = Any


def component_count(problem: Any) -> int:
    """How many components the finite sum has; other problems are refused."""
    if (reason := no_finite_sum(problem)) is not None:
        raise ValueError(reason)
    return int(problem.size)


def _restarts_among(steps: int, period: int) -> int:
    """How many of the steps 1, 1 + period, 1 + 2 period, ... are among so many."""
    return -(-steps // period)


def where_wanted(function: Callable[[Tree], Tree], wanted: jax.Array, given: Tree, otherwise: Tree) -> Tree:
    """function(given) if it is wanted, else `otherwise`; of many seeds at once those that want it have it in turn.

    A branch would serve all of them at every step. On a GPU it does: one after the other would take longer.
    """
    if jax.default_backend() != "cpu" or truth(wanted) is not None:
        return jax.lax.cond(wanted, function, lambda _: otherwise, given)
    # What the function knows beside its argument becomes an argument: seeds may be made many after it was traced.
    program, form = jax.make_jaxpr(function, return_shape=True)(given)

    def call(known: Tree) -> Tree:
        consts, given = known
        found = jaxpr_as_fun(ClosedJaxpr(program.jaxpr, consts))(*jax.tree.leaves(given))
        return jax.tree.unflatten(jax.tree.structure(form), found)

    @custom_vmap
    def one(wanted: jax.Array, known: Tree, otherwise: Tree) -> Tree:
        return jax.lax.cond(wanted, call, lambda _: otherwise, known)

    @one.def_vmap
    def many(seeds: int, batched: Any, wanted: jax.Array, known: Tree, otherwise: Tree) -> tuple[Tree, Tree]:
        def every(leaf: jax.Array, own: bool) -> jax.Array:
            return leaf if own else jnp.broadcast_to(leaf, (seeds, *jnp.shape(leaf)))

        def serve(carry: Tree) -> Tree:
            wanted, found = carry
            seed = jnp.argmax(wanted)
            new = call(jax.tree.map(lambda leaf, own: leaf[seed] if own else leaf, known, batched[1]))
            return wanted.at[seed].set(False), jax.tree.map(lambda leaf, new: leaf.at[seed].set(new), found, new)

        begun = every(wanted, batched[0]), jax.tree.map(every, otherwise, batched[2])
        found = jax.lax.while_loop(lambda carry: jnp.any(carry[0]), serve, begun)[1]
        return found, jax.tree.map(lambda _: True, found)

    return one(wanted, (program.consts, given), otherwise)


@dataclass(frozen=True)
class _Recursive:
    """m <- m + g(x) - g(x_prev) over S2 samples: 2 S2 sample gradients, and S1 at a restart."""

    S1: int | None = static()
    S2: int = static()

    def draw(self, problem: Any, key: jax.Array) -> Tree:
        return problem.sample(key, self.S2), large_batch_key(key)

    @property
    def requirements(self) -> frozenset[str]:
        return A_FINITE_SUM if self.S1 is None else NOTHING

    def restart_cost(self, problem: Any) -> int:
        return component_count(problem) if self.S1 is None else self.S1

    def _restart_cost(self, size: int | None) -> int:
        return (size or 0) if self.S1 is None else self.S1

    def restart_gradient(self, problem: Any, x: Tree, words: jax.Array) -> Tree:
        return problem.full_grad(x) if self.S1 is None else problem.grad(x, draw_large_batch(problem, words, self.S1))

    def change(self, problem: Any, x: Tree, x_prev: Tree, samples: Tree) -> Tree:
        return jax.tree.map(jnp.subtract, problem.grad(x, samples), problem.grad(x_prev, samples))

    def first_gradients(self, problem: Any, x: Tree, samples: Tree) -> Sampled:
        cost = self.restart_cost(problem)
        return GradientSample(self.restart_gradient(problem, x, samples[1])), (), cost

    def first_estimate(self, grads: GradientSample, weight: Any) -> Tree:
        return grads.g

    def update_estimate(self, m: Tree, grads: GradientSample, weight: Any) -> Tree:
        """What was found is the estimate itself at a restart, and else its change."""
        return jax.tree.map(lambda found, m: jnp.where(grads.restarted, found, m + found), grads.g, m)


@pytree
@dataclass(frozen=True)
class PeriodicRestarts(_Recursive):
    """Restarts at steps 1, 1 + period, 1 + 2 period, ...; `single` hands gradients out one by one, for an observer."""

    period: int = static()
    single: bool = field(default=False, kw_only=True, metadata={"static": True})

    def cost(self, steps: int, size: int | None) -> int:
        restarts = _restarts_among(steps, self.period)
        return self._restart_cost(size) * restarts + 2 * self.S2 * (steps - restarts)

    def sample_gradients(self, problem: Any, t: Any, x: Tree, x_prev: Tree, state: Tree, samples: Tree) -> Sampled:
        restart, cost = jnp.asarray((t - 1) % self.period == 0), self.restart_cost(problem)

        def anew() -> GradientSample:
            return GradientSample(self.restart_gradient(problem, x, samples[1]))

        def changed() -> GradientSample:
            return GradientSample(self.change(problem, x, x_prev, samples[0]))

        def told() -> GradientSample:
            here, there = (asked(problem, point, samples[0], True) for point in (x, x_prev))
            found = jax.tree.map(jnp.subtract, here.mean, there.mean)
            return GradientSample(found, there.mean, here.mean, single=Single(here.each, there.each))

        def untold() -> GradientSample:
            unknown = jax.tree.map(lambda a: jnp.full(a.shape, jnp.nan, a.dtype), jax.eval_shape(told))
            g = anew().g
            return GradientSample(g, unknown.g_prev, g, single=unknown.single)

        grads = jax.lax.cond(restart, *((untold, told) if self.single else (anew, changed)))
        return grads._replace(restarted=restart), state, jnp.where(restart, cost, 2 * self.S2)


@pytree
@dataclass(frozen=True)
class RandomRestarts(_Recursive):
    """A restart at step 1, and later wherever a coin of each seed's own falls on it, with probability `chance`."""

    chance: float = data()

    def cost(self, steps: int, size: int | None) -> float:
        """The expectation: every later step restarts with probability `chance`."""
        restart, chance = self._restart_cost(size), float(self.chance)
        return restart + (steps - 1) * (chance * restart + (1 - chance) * 2 * self.S2)

    def draw(self, problem: Any, key: jax.Array) -> Tree:
        return *super().draw(problem, key), jax.random.uniform(jax.random.fold_in(key, COIN))

    def sample_gradients(self, problem: Any, t: Any, x: Tree, x_prev: Tree, state: Tree, samples: Tree) -> Sampled:
        small, words, coin = samples
        restart, cost = coin < self.chance, self.restart_cost(problem)
        zero = jax.tree.map(jnp.zeros_like, x)
        found = jax.lax.cond(restart, lambda: zero, lambda: self.change(problem, x, x_prev, small))

        found = where_wanted(lambda here: self.restart_gradient(problem, *here), restart, (x, words), found)
        return GradientSample(found, restarted=restart), state, jnp.where(restart, cost, 2 * self.S2)


@dataclass(frozen=True)
class _Direct:
    """The gradient found is the estimate: no weight, no memory in m."""

    def first_estimate(self, grads: GradientSample, weight: Any) -> Tree:
        return grads.g

    def update_estimate(self, m: Tree, grads: GradientSample, weight: Any) -> Tree:
        return grads.g


@pytree
@dataclass(frozen=True)
class FullGradient(_Direct):
    """The full gradient of a finite sum: n sample gradients a step."""

    requirements: ClassVar[frozenset[str]] = A_FINITE_SUM

    def cost(self, steps: int, size: int | None) -> int:
        return (size or 0) * steps

    def draw(self, problem: Any, key: jax.Array) -> Tree:
        return ()

    def first_gradients(self, problem: Any, x: Tree, samples: Tree) -> Sampled:
        n = component_count(problem)
        return GradientSample(problem.full_grad(x)), (), n

    def sample_gradients(self, problem: Any, t: Any, x: Tree, x_prev: Tree, state: Tree, samples: Tree) -> Sampled:
        return self.first_gradients(problem, x, samples)


@pytree
@dataclass(frozen=True)
class Snapshot(_Direct):
    """m = g(x) - g(s) + grad F(s), s = x at steps 1, 1 + period, ...: 2 K sample gradients, and n for a new s."""

    K: int = static()
    period: int = static()
    requirements: ClassVar[frozenset[str]] = A_FINITE_SUM

    def cost(self, steps: int, size: int | None) -> int:
        return 2 * self.K * steps + (size or 0) * _restarts_among(steps, self.period)

    def draw(self, problem: Any, key: jax.Array) -> Tree:
        return problem.sample(key, self.K)

    def first_gradients(self, problem: Any, x: Tree, samples: Tree) -> Sampled:
        n = component_count(problem)
        state = x, problem.full_grad(x)
        return self._gradients(problem, x, state, samples), state, n + 2 * self.K

    def sample_gradients(self, problem: Any, t: Any, x: Tree, x_prev: Tree, state: Tree, samples: Tree) -> Sampled:
        due = jnp.asarray((t - 1) % self.period == 0)
        state = jax.lax.cond(due, lambda: (x, problem.full_grad(x)), lambda: state)
        cost = 2 * self.K + jnp.where(due, component_count(problem), 0)
        return self._gradients(problem, x, state, samples), state, cost

    def _gradients(self, problem: Any, x: Tree, state: Tree, samples: Tree) -> GradientSample:
        snapshot, mean = state
        here, there = problem.grad(x, samples), problem.grad(snapshot, samples)
        return GradientSample(jax.tree.map(lambda g, old, mean: g - old + mean, here, there, mean))


@pytree
@dataclass(frozen=True)
class GradientTable(_Direct):
    """The last gradient of every component is kept, n times x in memory: n sample gradients at first, K at every step.

    m is the mean over K components of (fresh - kept), and the mean of all that are kept. `two`: K components for m,
    K others for the table, 2 K sample gradients a step. The mean of the table is kept up to date row by row: rounding
    adds a part in n of a gradient's at every step, as a random walk.
    """

    K: int = static()
    two: bool = static(False)
    requirements: ClassVar[frozenset[str]] = A_FINITE_SUM

    def cost(self, steps: int, size: int | None) -> int:
        return (size or 0) + (2 if self.two else 1) * self.K * steps

    def draw(self, problem: Any, key: jax.Array) -> Tree:
        rows = problem.sample(key, self.K)
        return (rows, problem.sample(jax.random.fold_in(key, SECOND), self.K)) if self.two else (rows,)

    def first_gradients(self, problem: Any, x: Tree, samples: Tree) -> Sampled:
        n = component_count(problem)
        table = each_gradient(problem, x, jnp.arange(n))
        mean = jax.tree.map(lambda a: jnp.mean(a, axis=0), table)
        grads, state, cost = self.sample_gradients(problem, 1, x, x, (table, mean), samples)
        return grads, state, n + cost

    def sample_gradients(self, problem: Any, t: Any, x: Tree, x_prev: Tree, state: Tree, samples: Tree) -> Sampled:
        table, mean = state
        rows, stored = samples[0], samples[-1]
        fresh = each_gradient(problem, x, rows)
        kept = each_gradient(problem, x, stored) if self.two else fresh
        m = jax.tree.map(lambda g, a, mean: jnp.mean(g - a[rows], axis=0) + mean, fresh, table, mean)

        def store(state: Tree, new: Tree) -> tuple[Tree, None]:
            """One after the other, so that a number that was drawn twice changes the mean once."""
            (table, mean), (row, g) = state, new
            mean = jax.tree.map(lambda mean, g, a: mean + (g - a[row]) / a.shape[0], mean, g, table)
            return (jax.tree.map(lambda a, g: a.at[row].set(g), table, g), mean), None

        state, _ = jax.lax.scan(store, (table, mean), (stored, kept))
        return GradientSample(m), state, self.K * len(samples)


def each_gradient(problem: Any, x: Tree, rows: jax.Array) -> Tree:
    """The gradients of single components."""
    return jax.lax.map(lambda row: problem.grad(x, row[None]), rows)
