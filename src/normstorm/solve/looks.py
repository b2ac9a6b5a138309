"""What samples do at given points: how far their gradients are from grad F, and how fast they change close by."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from normstorm.problems.protocol import Problem

from .fresh import Gradients, whole_size
from .precision_modes import ask, in_precision

Tree = Any
Array = NDArray[np.float64]
MOST_ROWS = 4096  # of a finite sum that is looked at whole
CLOSE = 1e-3  # the length of a secant, as a part of the distance between two of the points
WAYS = 3


class Look(NamedTuple):
    """At one point, of samples s, n of them.

    norm         ||grad F(x)||, or the length of the samples' mean gradient
    deviations   (n,)  ||grad f(x, s) - grad F(x)||, or the distance from that mean
    secants      (3, n)  ||grad f(x, s) - grad f(y, s)||/||x - y|| for three y: down the gradient, to the next point and
                 in a random direction;   lengths  (3,)  ||x - y||
    size         the largest ||grad f(x, s)||
    how          where grad F is from: all "rows", which are then the samples, a "formula" or the "samples" themselves
    """

    norm: float
    deviations: Array
    secants: Array
    lengths: Array
    size: float
    how: str


def looks(problem: Problem, points: Sequence[Tree], samples: int, seed: int = 0) -> Iterator[Look]:
    """One at every point, with fresh samples; of a finite sum that is not large, with all its rows."""
    rng = np.random.default_rng(seed)
    for j, point in enumerate(points):
        rows, full, how = _gradients(problem, point, samples, seed, j)
        other = points[j + 1] if j + 1 < len(points) else points[j - 1]
        along = flat(other) - flat(point)
        # Not so short that the rounding of x would be a part of it.
        size = max(float(np.linalg.norm(along)), 1e-4 * float(np.linalg.norm(flat(point)))) or 1.0
        ways = [w / n for w in (-full, along, rng.standard_normal(len(full))) if (n := np.linalg.norm(w)) > 0]
        ways += [ways[-1]] * (WAYS - len(ways))  # where grad F is nothing, or the next point the same
        secants, lengths = [], []
        for way in (CLOSE * size * w for w in ways):
            moved = _there(problem, shifted(point, way), samples, seed, j, how)
            lengths.append(float(np.linalg.norm(way)))
            secants.append(np.linalg.norm(moved - rows, axis=1) / lengths[-1])
        apart, largest = np.linalg.norm(rows - full, axis=1), float(np.max(np.linalg.norm(rows, axis=1)))
        yield Look(float(np.linalg.norm(full)), apart, np.array(secants), np.array(lengths), largest, how)


def look_again(problem: Problem, x: Tree, y: Tree, samples: Tree, fresh: int, seed: int = 0) -> Look:
    """At x, of given samples and of their change to y; grad F is exact, or the mean of so many fresh ones.

    Where it is a mean, fresh deviations stand beside the others, so that there are as many as it is made of.
    """
    source = Gradients(problem, x, seed)
    rows, way = source.of(samples), float(np.linalg.norm(flat(y) - flat(x)))
    change = np.linalg.norm(Gradients(problem, y, seed).of(samples) - rows, axis=1)
    largest = float(np.max(np.linalg.norm(rows, axis=1)))
    secants = (change / way)[None] if way > 0 else np.zeros((0, len(rows)))
    ways = np.full(len(secants), way)
    if getattr(problem, "is_exact", False):
        full = flat(exact(problem, "full_grad", x))
        deviations, how = np.linalg.norm(rows - full, axis=1), "formula"
    else:
        drawn = np.concatenate(list(source.draw(fresh)))
        full = drawn.mean(axis=0)
        deviations = np.linalg.norm(np.concatenate([rows, drawn[len(rows) :]]) - full, axis=1)
        how = "samples"
    return Look(float(np.linalg.norm(full)), deviations, secants, ways, largest, how)


def exact(problem: Problem, name: str, x: Tree) -> Tree:
    """The problem's own value or full gradient in double precision."""
    # A problem that JAX does not know as a pytree cannot be an argument of a compiled function.
    known = not jax.tree_util.all_leaves([problem])
    with in_precision(problem):
        point = jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf), jnp.float64), x)
        compiled = partial(_compiled, problem, name=name) if known else None
        return ask(partial(_called, problem, name=name), compiled, point)


def flat(tree: Tree) -> Array:
    """All numbers in a vector."""
    return np.concatenate([np.asarray(leaf, np.float64).ravel() for leaf in jax.tree.leaves(tree)])


def shifted(point: Tree, way: Array) -> Tree:
    """The point moved by a vector."""
    leaves, structure = jax.tree.flatten(point)
    parts = np.split(way, np.cumsum([np.size(leaf) for leaf in leaves])[:-1])
    moved = [np.asarray(a, np.float64) + part.reshape(np.shape(a)) for a, part in zip(leaves, parts, strict=True)]
    return jax.tree.unflatten(structure, moved)


def _gradients(problem: Problem, x: Tree, samples: int, seed: int, part: int) -> tuple[Array, Array, str]:
    """Gradients of all rows or of samples, grad F, and where that is from."""
    size = whole_size(problem)
    if size is not None and size <= MOST_ROWS:
        rows = _there(problem, x, samples, seed, part, "rows")
        return rows, rows.mean(axis=0), "rows"
    rows = _there(problem, x, samples, seed, part, "samples")
    if not getattr(problem, "is_exact", False):
        return rows, rows.mean(axis=0), "samples"
    return rows, flat(exact(problem, "full_grad", x)), "formula"


def _there(problem: Problem, x: Tree, samples: int, seed: int, part: int, how: str) -> Array:
    """Of the same samples for the same part, wherever x is."""
    source = Gradients(problem, x, seed, part=part + 1)
    return np.concatenate(list(source.rows() if how == "rows" else source.draw(samples)))


def _called(problem: Problem, x: Tree, name: str) -> Tree:
    return getattr(problem, name)(x)


_compiled = jax.jit(_called, static_argnames="name")
