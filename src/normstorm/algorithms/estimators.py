"""How we look: from samples to an estimate m of the gradient, and what it cost.

An estimator is a frozen, JAX-registered dataclass with

    draw(problem, key)                                 the samples of one step, a value that can be used twice
    first(problem, x, samples)                         -> (look, own state, sample gradients asked)        step 1
    look(problem, t, x, x_prev, state, samples)        -> (look, own state, sample gradients asked)        step t >= 2
    start(look, weight)                                -> m_1
    combine(m, look, weight)                           -> m_t from m_{t-1}
    cost(steps, size)                                  sample gradients of so many steps, `size` components or None

    ordinary (if True)                                 its branches and late draws do not fit into one kernel of a CPU
    needs (if any)                                     what a problem must have, see `needs`

and one recursion stands behind the classes here (g_j(x) is the mean over the first j of the same K samples):

    m <- a g_K(x) + (1 - a) (m + c [g_k(x) - g_k(x_prev)])        c = 0: Averaged,   c = 1: Corrected

Ordinary samples come from the step's own key; other streams are folded in, LARGE for a big batch, SECOND for a set
that is independent of the ordinary one, COIN for one uniform number. See `restarts` for estimates that start anew.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import jax

from normstorm._shared.pytrees import pytree
from normstorm.random import THREEFRY

Tree = Any
LARGE, SECOND, COIN = 1, 2, 3


class Look(NamedTuple):
    """What one step asked: the fresh gradient at x, the one at the old point, and what else `combine` needs."""

    fresh: Tree
    old: Tree = None
    rest: Tree = None


def static(default: Any = ...) -> Any:
    """A field that is part of the program, not of its data."""
    extra = {} if default is ... else {"default": default}
    return field(metadata={"static": True}, **extra)


def number() -> Any:
    """A field that is data."""
    return field()


def late(key: jax.Array) -> jax.Array:
    """Two words from which a big batch can be drawn when it is needed: small, whatever its size."""
    return jax.random.key_data(jax.random.fold_in(key, LARGE))


def drawn_late(problem: Any, words: jax.Array, n: int) -> Tree:
    """The big batch itself."""
    return problem.sample(jax.random.wrap_key_data(words, impl=THREEFRY), n)


@dataclass(frozen=True)
class _Sampled:
    """K fresh samples a step; m_1 is the mean of their gradients, and nothing but m is remembered."""

    K: int = static()

    def draw(self, problem: Any, key: jax.Array) -> Tree:
        return problem.sample(key, self.K)

    def first(self, problem: Any, x: Tree, samples: Tree) -> tuple[Look, Tree, int]:
        return Look(problem.grad(x, samples)), (), self.K

    def start(self, look: Look, weight: Any) -> Tree:
        return look.fresh

    def look(self, problem: Any, t: Any, x: Tree, x_prev: Tree, state: Tree, samples: Tree) -> tuple[Look, Tree, int]:
        return Look(problem.grad(x, samples)), state, self.K

    def combine(self, m: Tree, look: Look, weight: Any) -> Tree:
        return jax.tree.map(lambda g, m: weight * g + (1 - weight) * m, look.fresh, m)

    def cost(self, steps: int, size: int | None) -> int:
        return self.K * steps


@pytree
@dataclass(frozen=True)
class Averaged(_Sampled):
    """m <- a g_K(x) + (1 - a) m: momentum. K sample gradients a step; `zero` is m_0 = 0 instead of m_1 = g_K(x_1)."""

    zero: bool = static(False)

    def start(self, look: Look, weight: Any) -> Tree:
        return jax.tree.map(lambda g: weight * g, look.fresh) if self.zero else look.fresh


@pytree
@dataclass(frozen=True)
class Transported(_Sampled):
    """Averaged, but from step 2 on the gradient is asked ahead of x, at x + reach (x - x_prev)."""

    reach: float = number()

    def look(self, problem: Any, t: Any, x: Tree, x_prev: Tree, state: Tree, samples: Tree) -> tuple[Look, Tree, int]:
        ahead = jax.tree.map(lambda x, old: x + self.reach * (x - old), x, x_prev)
        return Look(problem.grad(ahead, samples)), state, self.K


@pytree
@dataclass(frozen=True)
class Corrected(_Sampled):
    """m <- a g_K(x) + (1 - a) (m + g_k(x) - g_k(x_prev)): the same k samples at both points.

    The K samples are split once into a head of k and a tail of K - k: the head is asked at x and at x_prev, the tail
    at x. That is K + k sample gradients and nothing is asked twice; the first step asks K and m_1 is their mean.
    """

    k: int = static()

    def look(self, problem: Any, t: Any, x: Tree, x_prev: Tree, state: Tree, samples: Tree) -> tuple[Look, Tree, int]:
        K, k = self.K, self.k
        head = jax.tree.map(lambda s: s[:k], samples)
        g_k, g_old = problem.grad(x, head), problem.grad(x_prev, head)
        g_K = g_k
        if k < K:
            tail = problem.grad(x, jax.tree.map(lambda s: s[k:], samples))
            g_K = jax.tree.map(lambda h, t: (k / K) * h + ((K - k) / K) * t, g_k, tail)
        return Look(g_K, g_old, g_k), state, K + k

    def combine(self, m: Tree, look: Look, weight: Any) -> Tree:
        g_K, g_old, g_k = look
        if g_K is g_k:  # k = K: two operations fewer
            return jax.tree.map(lambda g, old, m: g + (1 - weight) * (m - old), g_K, g_old, m)
        return jax.tree.map(lambda a, b, c, m: weight * a + (1 - weight) * (m + b - c), g_K, g_k, g_old, m)

    def cost(self, steps: int, size: int | None) -> int:
        return self.K * steps + self.k * (steps - 1)


@pytree
@dataclass(frozen=True)
class Opened(Corrected):
    """Corrected with k = K, and a first step of its own size: m_1 is the mean over `opening` samples."""

    opening: int = static()
    ordinary: ClassVar[bool] = True

    def draw(self, problem: Any, key: jax.Array) -> Tree:
        return problem.sample(key, self.K), late(key)

    def first(self, problem: Any, x: Tree, samples: Tree) -> tuple[Look, Tree, int]:
        return Look(problem.grad(x, drawn_late(problem, samples[-1], self.opening))), (), self.opening

    def look(self, problem: Any, t: Any, x: Tree, x_prev: Tree, state: Tree, samples: Tree) -> tuple[Look, Tree, int]:
        return super().look(problem, t, x, x_prev, state, samples[0])

    def cost(self, steps: int, size: int | None) -> int:
        return self.opening + (self.K + self.k) * (steps - 1)


@pytree
@dataclass(frozen=True)
class Blended(Opened):
    """Opened, but what is fresh comes from a second set of K samples: 3 K sample gradients a step."""

    def draw(self, problem: Any, key: jax.Array) -> Tree:
        second = problem.sample(jax.random.fold_in(key, SECOND), self.K)
        return problem.sample(key, self.K), second, late(key)

    def look(self, problem: Any, t: Any, x: Tree, x_prev: Tree, state: Tree, samples: Tree) -> tuple[Look, Tree, int]:
        first, second, _ = samples
        here, there = problem.grad(x, first), problem.grad(x_prev, first)
        return Look(problem.grad(x, second), there, here), state, 3 * self.K

    def cost(self, steps: int, size: int | None) -> int:
        return self.opening + 3 * self.K * (steps - 1)
