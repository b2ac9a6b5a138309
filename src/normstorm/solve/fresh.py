"""Sample gradients at one point in double precision, block by block: fresh ones, and those of all rows of a finite sum.

Keys are fold_in(seed, stream): steps of a run are below 2^30, so that no run uses them, and the streams are apart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from normstorm.problems.base import FiniteSum
from normstorm.problems.protocol import Problem
from normstorm.theory.fresh_samples import Summary
from normstorm.theory.scatter import Scatter

from .precision_modes import ask, in_precision

Tree = Any
Array = NDArray[np.float64]
CHUNK = 2048
NUMBERS = 2**22  # of gradients that are held at once
FRESH = 2**31  # `certify` draws with these
CHOOSING = FRESH + 1  # `minimize` with these, so that a second opinion is none of its own
RACING = FRESH + 2  # a race with these, one part for each of its tests
LOOKED = 2**30  # the group that is only looked at, to choose a number of samples by
CHECKED = 16


class Gradients:
    """A source of sample gradients of a problem at a point, each a row.

    `held` sees every block of fresh ones that is not only looked at.
    """

    def __init__(self, problem: Problem, x: Tree, seed: int, stream: int = FRESH, part: int = 0) -> None:
        self.problem, self.seed, self.stream, self.part = problem, seed, stream, part
        self.held: Callable[[Array], None] = lambda rows: None
        with in_precision(self.problem):
            self.x = jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf), jnp.float64), x)
        self.dimension = sum(int(np.size(leaf)) for leaf in jax.tree.leaves(self.x))
        self.chunk = max(min(CHUNK, NUMBERS // max(self.dimension, 1)), CHECKED)

    def draw(self, n: int, group: int = 0, start: int = 0) -> Iterator[Array]:
        """n fresh samples in chunks; `start` is how many were drawn before in this group."""
        count = 0
        while count < n:
            size = min(self.chunk, n - count)
            with in_precision(self.problem):
                key = jax.random.fold_in(jax.random.key(self.seed), self.stream)
                for number in (*((self.part,) if self.part else ()), group, start + count):
                    key = jax.random.fold_in(key, number)
                rows = self._asked(_drawn, _compiled_drawn, self.x, key, n=size)
            if group != LOOKED:
                self.held(rows)
            yield rows
            count += size

    def of(self, samples: Tree) -> Array:
        """The gradients of these samples."""
        with in_precision(self.problem):
            return self._asked(_each, _compiled_each, self.x, samples)

    def rows(self) -> Iterator[Array]:
        """The gradient of every row of a finite sum once."""
        assert isinstance(self.problem, FiniteSum)
        for start in range(0, self.problem.size, self.chunk):
            with in_precision(self.problem):
                numbers = jnp.arange(start, min(start + self.chunk, self.problem.size))
                yield self._asked(_each, _compiled_each, self.x, numbers)

    def change(self) -> float:
        """How much a sample gradient differs, at most, between x and two other roundings of it, over a few samples.

        Where x has lost its digits to its size, no arithmetic can say what the gradient at x is; nor where x is not
        finite, though a problem may answer with finite gradients there.
        """
        if not is_finite(self.x):
            return np.inf
        signs = np.random.default_rng(0)
        with in_precision(self.problem):
            key = jax.random.fold_in(jax.random.key(self.seed), self.stream)
            nudge = jax.tree.map(lambda leaf: signs.choice([-1.0, 1.0], np.shape(leaf)) * np.finfo(float).eps, self.x)
            points = jax.tree.map(lambda z, by: jnp.stack([z, z * (1 + by), z * (1 - by)]), self.x, nudge)
            here, *others = self._asked(_at_each, _compiled_at_each, points, key, n=CHECKED)
        if not np.isfinite(here).all():
            return 0.0  # that a gradient is not finite is said elsewhere
        largest = max(float(np.max(np.linalg.norm(other - here, axis=1))) for other in others)
        return largest if np.isfinite(largest) else np.inf

    def spread(self) -> float:
        """The radius of a ball that holds every sample gradient at x, by the problem's `range`, as one program."""
        with in_precision(self.problem):  # x has the precision in which it is certified, whatever that of the caller is
            return float(self._asked(_spread, _compiled_spread, self.x))

    def _asked(self, plain: Any, compiled: Any, *arguments: Any, **options: Any) -> Array:
        # A problem that JAX does not know as a pytree cannot be an argument of a compiled function.
        known = not jax.tree_util.all_leaves([self.problem])
        both = [partial(f, self.problem, **options) for f in (plain, compiled)]
        return np.asarray(ask(both[0], both[1] if known else None, *arguments))


def is_finite(x: Tree) -> bool:
    """Whether every number of x is."""
    return all(bool(np.isfinite(np.asarray(leaf)).all()) for leaf in jax.tree.leaves(x))


def signed_seed(seed: int) -> int:
    """A seed of a run, in [0, 2^64), as the signed number with the same bits."""
    return int(np.uint64(seed).astype(np.int64))


def whole_size(problem: Any) -> int | None:
    """Rows of a finite sum that are drawn uniformly, so that their mean is F; None for anything else."""
    uniform = isinstance(problem, FiniteSum) and type(problem).sample is FiniteSum.sample
    return problem.size if uniform else None


def summarise(source: Gradients, samples: int, groups: int = 1, first: int = 0) -> Summary:
    """Norms and spread of fresh sample gradients, in as many equal groups (a remainder is not drawn).

    `first` is the number of the first group: other numbers are other samples.
    """
    each = samples // groups
    means, scatter = [], Scatter(source.dimension)
    for number in range(first, first + groups):
        total, count = np.zeros(source.dimension), 0
        for rows in source.draw(each, number):
            part, size = rows.sum(axis=0), len(rows)
            scatter.add(rows - part / size, 1.0)
            if count:  # Chan's update of a sum of squares
                scatter.add((part / size - total / count)[None], size * count / (size + count))
            total, count = total + part, count + size
        means.append(total / each)
    stacked = np.array(means)
    mean = stacked.mean(axis=0)
    scatter.add(stacked - mean, each)
    n = each * groups
    norms = tuple(float(np.linalg.norm(m)) for m in means) if groups > 1 else ()
    divisor = max(n - 1, 1)
    top = scatter.top() if groups == 1 else np.inf
    return Summary(n, float(np.linalg.norm(mean)), scatter.trace / divisor, norms, top / divisor)


def _drawn(problem: Problem, x: Tree, key: jax.Array, n: int) -> jax.Array:
    """(n, d): one row for the gradient at each of n samples."""
    return _each(problem, x, problem.sample(key, n))


def _at_each(problem: Problem, points: Tree, key: jax.Array, n: int) -> jax.Array:
    """The same at each of several points, with the same samples."""
    return jax.vmap(lambda x: _drawn(problem, x, key, n))(points)


def _each(problem: Problem, x: Tree, batch: Tree) -> jax.Array:
    def one(sample: Tree) -> jax.Array:
        gradient = problem.grad(x, jax.tree.map(lambda leaf: leaf[None], sample))
        return jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(gradient)])

    return jax.vmap(one)(batch)


def _spread(problem: Any, x: Tree) -> jax.Array:
    return jnp.asarray(problem.range(x, 0.0)[0])


_compiled_spread = jax.jit(_spread)
_compiled_drawn = jax.jit(_drawn, static_argnames="n")
_compiled_at_each = jax.jit(_at_each, static_argnames="n")
_compiled_each = jax.jit(_each)
