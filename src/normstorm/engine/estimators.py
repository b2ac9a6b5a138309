"""How we look: from samples to an estimate m of the gradient, and what it cost.

An estimator is a frozen, JAX-registered dataclass with

    draw(problem, key)                                        the samples of one step, a value that can be used twice
    init(problem, x, samples)                                 -> (m, own state, sample gradients asked)
    step(problem, x, x_prev, m, state, samples, weight)       -> (m, own state, sample gradients asked)

and one recursion stands behind both classes here (g_j(x) is the mean over the first j of the same K samples):

    m <- a g_K(x) + (1 - a) (m + c [g_k(x) - g_k(x_prev)])        c = 0: Averaged,   c = 1: Corrected
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import jax

from ..pytrees import pytree

Tree = Any


def static(default: Any = ...) -> Any:
    """A field that is part of the program, not of its data."""
    extra = {} if default is ... else {"default": default}
    return field(metadata={"static": True}, **extra)


@dataclass(frozen=True)
class _Sampled:
    """K fresh samples a step; m_1 is the mean of their gradients, and nothing but m is remembered."""

    K: int = static()

    def draw(self, problem: Any, key: jax.Array) -> Tree:
        return problem.sample(key, self.K)

    def init(self, problem: Any, x: Tree, samples: Tree) -> tuple[Tree, Tree, int]:
        return problem.grad(x, samples), (), self.K


@pytree
@dataclass(frozen=True)
class Averaged(_Sampled):
    """m <- a g_K(x) + (1 - a) m: momentum. K sample gradients a step."""

    def step(
        self, problem: Any, x: Tree, x_prev: Tree, m: Tree, state: Tree, samples: Tree, weight: Any
    ) -> tuple[Tree, Tree, int]:
        fresh = problem.grad(x, samples)
        return jax.tree.map(lambda g, m: weight * g + (1 - weight) * m, fresh, m), state, self.K


@pytree
@dataclass(frozen=True)
class Corrected(_Sampled):
    """m <- a g_K(x) + (1 - a) (m + g_k(x) - g_k(x_prev)): the same k samples at both points.

    The K samples are split once into a head of k and a tail of K - k: the head is asked at x and at x_prev, the tail
    at x. That is K + k sample gradients and nothing is asked twice; the first step asks K and m_1 is their mean.
    """

    k: int = static()

    def step(
        self, problem: Any, x: Tree, x_prev: Tree, m: Tree, state: Tree, samples: Tree, weight: Any
    ) -> tuple[Tree, Tree, int]:
        K, k = self.K, self.k
        head = jax.tree.map(lambda s: s[:k], samples)
        g_k, g_old = problem.grad(x, head), problem.grad(x_prev, head)
        g_K = g_k
        if k < K:
            tail = problem.grad(x, jax.tree.map(lambda s: s[k:], samples))
            g_K = jax.tree.map(lambda h, t: (k / K) * h + ((K - k) / K) * t, g_k, tail)
        m = jax.tree.map(lambda a, b, c, m: weight * a + (1 - weight) * (m + b - c), g_K, g_k, g_old, m)
        return m, state, K + k
