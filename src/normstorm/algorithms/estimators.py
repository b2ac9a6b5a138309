"""How we look: from samples to an estimate m of the gradient, and what it cost.

An estimator is a frozen, JAX-registered dataclass with

    draw(problem, key)                                        the samples of one step, a value that can be used twice
    first_gradients(problem, x, samples)                      -> Sampled: (gradients, own state, cost)    step 1
    sample_gradients(problem, t, x, x_prev, state, samples)   -> Sampled: (gradients, own state, cost)    step t >= 2
    first_estimate(grads, weight)                             -> m_1
    update_estimate(m, grads, weight)                         -> m_t from m_{t-1}
    cost(steps, size)                                         of so many steps, `size` components or None

    requirements (if any)                                     what a problem must have, see `requirements.py`

where a cost is a number of sample gradients,

and one recursion stands behind the classes here (g_j(x) is the mean over the first j of the same K samples):

    m <- a g_K(x) + (1 - a) (m + c [g_k(x) - g_k(x_prev)])        c = 0: Momentum,   c = 1: Corrected

Ordinary samples come from the step's own key; other streams are folded in, LARGE for a big batch, SECOND for a set
that is independent of the ordinary one, COIN for one uniform number. See `restarts` for estimates that start anew.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from normstorm._shared.pytrees import pytree
from normstorm.random import THREEFRY

Tree = Any
LARGE, SECOND, COIN = 1, 2, 3


class Single(NamedTuple):
    """The gradients of single samples, (samples, ...): those asked at x and at x_prev, and others asked at x alone."""

    here: Tree
    there: Tree = None
    others: Tree = None


class GradientSample(NamedTuple):
    """The gradients that one step asked.

    g            the fresh one, at x; of a recursive estimate that does not restart its change
    g_prev       the one at x_prev
    g_sub        at x, over the samples of g_prev
    restarted    whether g is a new estimate, not a change
    pieces       of an estimate that is followed: g_sub, g_prev and the rest of g (of step 1: g), cut into means of
                 equally many samples
    filter       of an estimate that is filtered: all that it knows
    single       of an estimate whose samples are watched one by one: `Single`
    """

    g: Tree
    g_prev: Tree = None
    g_sub: Tree = None
    restarted: Any = None
    pieces: Tree = None
    filter: Any = None
    single: Single | None = None


Sampled = tuple[GradientSample, Tree, Any]  # what was asked, the estimator's own state, the cost


def static(default: Any = ...) -> Any:
    """A field that is part of the program, not of its data."""
    extra = {} if default is ... else {"default": default}
    return field(metadata={"static": True}, **extra)


def data() -> Any:
    """A field that is data."""
    return field()


def large_batch_key(key: jax.Array) -> jax.Array:
    """The words of the key of a big batch, which is drawn from them only where it is needed."""
    return jax.random.key_data(jax.random.fold_in(key, LARGE))


def draw_large_batch(problem: Any, words: jax.Array, n: int) -> Tree:
    """The big batch itself."""
    return problem.sample(jax.random.wrap_key_data(words, impl=THREEFRY), n)


def by_pieces(problem: Any, x: Tree, samples: Tree, pieces: int) -> Tree:
    """The mean gradients of so many equal parts of the samples, (pieces, ...)."""
    parts = jax.tree.map(lambda s: s.reshape(pieces, -1, *s.shape[1:]), samples)
    return jax.vmap(problem.grad, (None, 0))(x, parts)


def mean_of(pieces: Tree) -> Tree:
    return jax.tree.map(lambda g: jnp.mean(g, 0), pieces)


class Asked(NamedTuple):
    """A mean gradient, and those of pieces and of single samples, where they are wanted."""

    mean: Tree
    pieces: Tree = None
    each: Tree = None


def asked(problem: Any, x: Tree, samples: Tree, single: bool, pieces: int = 0) -> Asked:
    """Of all samples at x; `pieces` of 0 are not wanted. One by one they are the same numbers, but for rounding."""
    if single:
        each = by_pieces(problem, x, samples, len(jax.tree.leaves(samples)[0]))
        cut = jax.tree.map(lambda g: jnp.mean(g.reshape(pieces, -1, *g.shape[1:]), 1), each) if pieces else None
        return Asked(mean_of(each), cut, each)
    if pieces:
        cut = by_pieces(problem, x, samples, pieces)
        return Asked(mean_of(cut), cut)
    return Asked(problem.grad(x, samples))


@dataclass(frozen=True)
class _MiniBatch:
    """K fresh samples a step; m_1 is the mean of their gradients, and nothing but m is remembered.

    `single` hands the gradients of samples out one by one, for an observer.
    """

    K: int = static()
    single: bool = field(default=False, kw_only=True, metadata={"static": True})

    def draw(self, problem: Any, key: jax.Array) -> Tree:
        return problem.sample(key, self.K)

    def first_gradients(self, problem: Any, x: Tree, samples: Tree) -> Sampled:
        found = asked(problem, x, samples, self.single)
        return GradientSample(found.mean, single=Single(found.each) if self.single else None), (), self.K

    def first_estimate(self, grads: GradientSample, weight: Any) -> Tree:
        return grads.g

    def sample_gradients(self, problem: Any, t: Any, x: Tree, x_prev: Tree, state: Tree, samples: Tree) -> Sampled:
        grads, _, cost = _MiniBatch.first_gradients(self, problem, x, samples)
        return grads, state, cost

    def update_estimate(self, m: Tree, grads: GradientSample, weight: Any) -> Tree:
        return jax.tree.map(lambda g, m: weight * g + (1 - weight) * m, grads.g, m)

    def cost(self, steps: int, size: int | None) -> int:
        return self.K * steps


@pytree
@dataclass(frozen=True)
class Momentum(_MiniBatch):
    """m <- a g_K(x) + (1 - a) m: K sample gradients a step; `from_zero` is m_0 = 0 instead of m_1 = g_K(x_1)."""

    from_zero: bool = static(False)

    def first_estimate(self, grads: GradientSample, weight: Any) -> Tree:
        return jax.tree.map(lambda g: weight * g, grads.g) if self.from_zero else grads.g


@pytree
@dataclass(frozen=True)
class Transported(_MiniBatch):
    """Momentum, but from step 2 on the gradient is asked ahead of x, at x + extrapolation (x - x_prev)."""

    extrapolation: float = data()

    def sample_gradients(self, problem: Any, t: Any, x: Tree, x_prev: Tree, state: Tree, samples: Tree) -> Sampled:
        ahead = jax.tree.map(lambda x, old: x + self.extrapolation * (x - old), x, x_prev)
        return GradientSample(problem.grad(ahead, samples)), state, self.K


@pytree
@dataclass(frozen=True)
class Corrected(_MiniBatch):
    """m <- a g_K(x) + (1 - a) (m + g_k(x) - g_k(x_prev)): the same k samples at both points.

    The K samples are split once into a head of k and a tail of K - k: the head is asked at x and at x_prev, the tail
    at x. That is K + k sample gradients and nothing is asked twice; the first step asks K and m_1 is their mean.
    `pieces` cuts head, tail and first batch into so many parts whose gradients are told one by one, for an observer; if
    those of the head are 0, that is done in the first step only.
    """

    k: int = static()
    pieces: tuple[int, int, int] | None = field(default=None, kw_only=True, metadata={"static": True})

    def first_gradients(self, problem: Any, x: Tree, samples: Tree) -> Sampled:
        found = asked(problem, x, samples, self.single, self.pieces[2] if self.pieces else 0)
        single = Single(found.each) if self.single else None
        return GradientSample(found.mean, pieces=found.pieces, single=single), (), self.K

    def sample_gradients(self, problem: Any, t: Any, x: Tree, x_prev: Tree, state: Tree, samples: Tree) -> Sampled:
        K, k = self.K, self.k
        head, rest = jax.tree.map(lambda s: s[:k], samples), jax.tree.map(lambda s: s[k:], samples)
        heads, tails, _ = self.pieces or (0, 0, 0)
        here, there = (asked(problem, point, head, self.single, heads) for point in (x, x_prev))
        tail, g_K = Asked(None), here.mean
        if k < K:
            tail = asked(problem, x, rest, self.single, tails if heads else 0)
            g_K = jax.tree.map(lambda h, t: (k / K) * h + ((K - k) / K) * t, here.mean, tail.mean)
        pieces = (here.pieces, there.pieces, tail.pieces) if heads else None
        single = Single(here.each, there.each, tail.each) if self.single else None
        return GradientSample(g_K, there.mean, here.mean, pieces=pieces, single=single), state, K + k

    def update_estimate(self, m: Tree, grads: GradientSample, weight: Any) -> Tree:
        g_K, g_prev, g_k = grads.g, grads.g_prev, grads.g_sub
        if g_K is g_k:  # k = K: two operations fewer
            return jax.tree.map(lambda g, prev, m: g + (1 - weight) * (m - prev), g_K, g_prev, m)
        return jax.tree.map(lambda a, b, c, m: weight * a + (1 - weight) * (m + b - c), g_K, g_k, g_prev, m)

    def cost(self, steps: int, size: int | None) -> int:
        return self.K * steps + self.k * (steps - 1)


@pytree
@dataclass(frozen=True)
class LargeFirstBatch(Corrected):
    """Corrected with k = K, and a first step of its own size: m_1 is the mean over `first_batch` samples."""

    first_batch: int = static()

    def draw(self, problem: Any, key: jax.Array) -> Tree:
        return problem.sample(key, self.K), large_batch_key(key)

    def first_gradients(self, problem: Any, x: Tree, samples: Tree) -> Sampled:
        large = draw_large_batch(problem, samples[-1], self.first_batch)
        return super().first_gradients(problem, x, large)[0], (), self.first_batch

    def sample_gradients(self, problem: Any, t: Any, x: Tree, x_prev: Tree, state: Tree, samples: Tree) -> Sampled:
        return super().sample_gradients(problem, t, x, x_prev, state, samples[0])

    def cost(self, steps: int, size: int | None) -> int:
        return self.first_batch + (self.K + self.k) * (steps - 1)


@pytree
@dataclass(frozen=True)
class TwoBatch(LargeFirstBatch):
    """LargeFirstBatch, but the fresh gradient is that of a second set of K samples: 3 K sample gradients a step."""

    def draw(self, problem: Any, key: jax.Array) -> Tree:
        second = problem.sample(jax.random.fold_in(key, SECOND), self.K)
        return problem.sample(key, self.K), second, large_batch_key(key)

    def sample_gradients(self, problem: Any, t: Any, x: Tree, x_prev: Tree, state: Tree, samples: Tree) -> Sampled:
        first, second, _ = samples
        here, there = problem.grad(x, first), problem.grad(x_prev, first)
        return GradientSample(problem.grad(x, second), there, here), state, 3 * self.K

    def cost(self, steps: int, size: int | None) -> int:
        return self.first_batch + 3 * self.K * (steps - 1)
