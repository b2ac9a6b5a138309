"""Estimates that start anew: recursive ones with restarts, and those of a finite sum of n components.

A restart asks S1 fresh samples, or the full gradient of a finite sum (n sample gradients) if S1 is None. Its batch is
drawn inside the branch that needs it. That the loop's t decides about a restart, and not a counter in the state, keeps
the branch a branch when many seeds are advanced at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from normstorm._shared.pytrees import pytree

from .estimators import COIN, SECOND, Look, drawn_late, late, number, static
from .requirements import A_FINITE_SUM, NOTHING, no_finite_sum

Tree = Any


def components(problem: Any) -> int:
    """How many components the finite sum has; other problems are refused."""
    if (reason := no_finite_sum(problem)) is not None:
        raise ValueError(reason)
    return int(problem.size)


def _begun(steps: int, period: int) -> int:
    """How many of the steps 1, 1 + period, 1 + 2 period, ... are among so many."""
    return -(-steps // period)


@dataclass(frozen=True)
class _Recursive:
    """m <- m + g(x) - g(x_prev) over S2 samples: 2 S2 sample gradients, and S1 at a restart."""

    S1: int | None = static()
    S2: int = static()
    ordinary: ClassVar[bool] = True

    def draw(self, problem: Any, key: jax.Array) -> Tree:
        return problem.sample(key, self.S2), late(key)

    @property
    def needs(self) -> frozenset[str]:
        return A_FINITE_SUM if self.S1 is None else NOTHING

    def price(self, problem: Any) -> int:
        return components(problem) if self.S1 is None else self.S1

    def _price(self, size: int | None) -> int:
        return (size or 0) if self.S1 is None else self.S1

    def anew(self, problem: Any, x: Tree, words: jax.Array) -> Tree:
        return problem.full_grad(x) if self.S1 is None else problem.grad(x, drawn_late(problem, words, self.S1))

    def change(self, problem: Any, x: Tree, x_prev: Tree, samples: Tree) -> Tree:
        return jax.tree.map(jnp.subtract, problem.grad(x, samples), problem.grad(x_prev, samples))

    def first(self, problem: Any, x: Tree, samples: Tree) -> tuple[Look, Tree, int]:
        price = self.price(problem)
        return Look(self.anew(problem, x, samples[1])), (), price

    def start(self, look: Look, weight: Any) -> Tree:
        return look.fresh

    def combine(self, m: Tree, look: Look, weight: Any) -> Tree:
        """What was found is the estimate itself at a restart, and else its change."""
        return jax.tree.map(lambda found, m: jnp.where(look.rest, found, m + found), look.fresh, m)


@pytree
@dataclass(frozen=True)
class Restarted(_Recursive):
    """Restarts at steps 1, 1 + period, 1 + 2 period, ..."""

    period: int = static()

    def cost(self, steps: int, size: int | None) -> int:
        restarts = _begun(steps, self.period)
        return self._price(size) * restarts + 2 * self.S2 * (steps - restarts)

    def look(self, problem: Any, t: Any, x: Tree, x_prev: Tree, state: Tree, samples: Tree) -> tuple[Look, Tree, Any]:
        restart, price = jnp.asarray((t - 1) % self.period == 0), self.price(problem)
        found = jax.lax.cond(
            restart,
            lambda: self.anew(problem, x, samples[1]),
            lambda: self.change(problem, x, x_prev, samples[0]),
        )
        return Look(found, None, restart), state, jnp.where(restart, price, 2 * self.S2)


@pytree
@dataclass(frozen=True)
class Tossed(_Recursive):
    """A restart at step 1, and later wherever a coin of each seed's own falls on it, with probability `chance`."""

    chance: float = number()

    def cost(self, steps: int, size: int | None) -> float:
        """The expectation: every later step restarts with probability `chance`."""
        price, chance = self._price(size), float(self.chance)
        return price + (steps - 1) * (chance * price + (1 - chance) * 2 * self.S2)

    def draw(self, problem: Any, key: jax.Array) -> Tree:
        return *super().draw(problem, key), jax.random.uniform(jax.random.fold_in(key, COIN))

    def look(self, problem: Any, t: Any, x: Tree, x_prev: Tree, state: Tree, samples: Tree) -> tuple[Look, Tree, Any]:
        small, words, coin = samples
        restart, price = coin < self.chance, self.price(problem)
        zero = jax.tree.map(jnp.zeros_like, x)
        found = jax.lax.cond(restart, lambda: zero, lambda: self.change(problem, x, x_prev, small))

        # Of many seeds at once a loop runs its body only if one of them wants it, which a branch does not. The words
        # must come from what the loop carries, or the compiler draws the batch before it, at every step.
        def body(carry: Tree) -> Tree:
            wanted, _, words = carry
            return jnp.zeros_like(wanted), self.anew(problem, x, words), words + jnp.uint32(1)

        _, found, _ = jax.lax.while_loop(lambda carry: carry[0], body, (restart, found, words))
        return Look(found, None, restart), state, jnp.where(restart, price, 2 * self.S2)


@dataclass(frozen=True)
class _Direct:
    """The look is the estimate: no weight, no memory in m."""

    def start(self, look: Look, weight: Any) -> Tree:
        return look.fresh

    def combine(self, m: Tree, look: Look, weight: Any) -> Tree:
        return look.fresh


@pytree
@dataclass(frozen=True)
class Whole(_Direct):
    """The full gradient of a finite sum: n sample gradients a step."""

    needs: ClassVar[frozenset[str]] = A_FINITE_SUM

    def cost(self, steps: int, size: int | None) -> int:
        return (size or 0) * steps

    def draw(self, problem: Any, key: jax.Array) -> Tree:
        return ()

    def first(self, problem: Any, x: Tree, samples: Tree) -> tuple[Look, Tree, int]:
        n = components(problem)
        return Look(problem.full_grad(x)), (), n

    def look(self, problem: Any, t: Any, x: Tree, x_prev: Tree, state: Tree, samples: Tree) -> tuple[Look, Tree, int]:
        return self.first(problem, x, samples)


@pytree
@dataclass(frozen=True)
class Snapshot(_Direct):
    """m = g(x) - g(s) + grad F(s), s = x at steps 1, 1 + period, ...: 2 K sample gradients, and n for a new s."""

    K: int = static()
    period: int = static()
    ordinary: ClassVar[bool] = True
    needs: ClassVar[frozenset[str]] = A_FINITE_SUM

    def cost(self, steps: int, size: int | None) -> int:
        return 2 * self.K * steps + (size or 0) * _begun(steps, self.period)

    def draw(self, problem: Any, key: jax.Array) -> Tree:
        return problem.sample(key, self.K)

    def first(self, problem: Any, x: Tree, samples: Tree) -> tuple[Look, Tree, int]:
        n = components(problem)
        state = x, problem.full_grad(x)
        return self._look(problem, x, state, samples), state, n + 2 * self.K

    def look(self, problem: Any, t: Any, x: Tree, x_prev: Tree, state: Tree, samples: Tree) -> tuple[Look, Tree, Any]:
        due = jnp.asarray((t - 1) % self.period == 0)
        state = jax.lax.cond(due, lambda: (x, problem.full_grad(x)), lambda: state)
        cost = 2 * self.K + jnp.where(due, components(problem), 0)
        return self._look(problem, x, state, samples), state, cost

    def _look(self, problem: Any, x: Tree, state: Tree, samples: Tree) -> Look:
        snapshot, mean = state
        here, there = problem.grad(x, samples), problem.grad(snapshot, samples)
        return Look(jax.tree.map(lambda g, old, mean: g - old + mean, here, there, mean))


@pytree
@dataclass(frozen=True)
class Table(_Direct):
    """The last gradient of every component is kept, n times x in memory: n sample gradients at first, K at every step.

    m is the mean over K components of (fresh - kept), and the mean of all that are kept. `two`: K components for m,
    K others for the table, 2 K sample gradients a step. The mean of the table is kept up to date row by row: rounding
    adds a part in n of a gradient's at every step, as a random walk.
    """

    K: int = static()
    two: bool = static(False)
    needs: ClassVar[frozenset[str]] = A_FINITE_SUM

    def cost(self, steps: int, size: int | None) -> int:
        return (size or 0) + (2 if self.two else 1) * self.K * steps

    def draw(self, problem: Any, key: jax.Array) -> Tree:
        rows = problem.sample(key, self.K)
        return (rows, problem.sample(jax.random.fold_in(key, SECOND), self.K)) if self.two else (rows,)

    def first(self, problem: Any, x: Tree, samples: Tree) -> tuple[Look, Tree, int]:
        n = components(problem)
        table = _each(problem, x, jnp.arange(n))
        mean = jax.tree.map(lambda a: jnp.mean(a, axis=0), table)
        look, state, cost = self.look(problem, 1, x, x, (table, mean), samples)
        return look, state, n + cost

    def look(self, problem: Any, t: Any, x: Tree, x_prev: Tree, state: Tree, samples: Tree) -> tuple[Look, Tree, int]:
        table, mean = state
        rows, stored = samples[0], samples[-1]
        fresh = _each(problem, x, rows)
        kept = _each(problem, x, stored) if self.two else fresh
        m = jax.tree.map(lambda g, a, mean: jnp.mean(g - a[rows], axis=0) + mean, fresh, table, mean)

        def store(state: Tree, new: Tree) -> tuple[Tree, None]:
            """One after the other, so that a number that was drawn twice changes the mean once."""
            (table, mean), (row, g) = state, new
            mean = jax.tree.map(lambda mean, g, a: mean + (g - a[row]) / a.shape[0], mean, g, table)
            return (jax.tree.map(lambda a, g: a.at[row].set(g), table, g), mean), None

        state, _ = jax.lax.scan(store, (table, mean), (stored, kept))
        return Look(m), state, self.K * len(samples)


def _each(problem: Any, x: Tree, rows: jax.Array) -> Tree:
    """The gradients of single components."""
    return jax.lax.map(lambda row: problem.grad(x, row[None]), rows)
