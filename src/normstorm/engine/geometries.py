"""How we measure: from an estimate m to a direction.

A geometry is a frozen, JAX-registered dataclass with `init(x) -> state` and `step(m, state) -> (direction, state)`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from ..pytrees import pytree

Tree = Any


ROWS = 32


def norm(tree: Tree) -> jax.Array:
    """The Euclidean norm of a whole pytree."""
    return jnp.sqrt(sum(_squares(jnp.asarray(leaf)) for leaf in jax.tree.leaves(tree)))


def _squares(leaf: jax.Array) -> jax.Array:
    """Sum of squares. A long one is first folded, row on row: added one by one, each term waits for the one before."""
    width = leaf.size // ROWS
    if width < 8:
        return jnp.sum(leaf * leaf)
    flat = leaf.ravel()
    rows = [flat[r * width : (r + 1) * width] for r in range(ROWS)]
    folded = [row * row for row in rows]
    while len(folded) > 1:
        folded = [a + b for a, b in zip(folded[::2], folded[1::2], strict=True)]
    rest = flat[ROWS * width :]
    return jnp.sum(folded[0]) + jnp.sum(rest * rest)


@pytree
@dataclass(frozen=True)
class Normalized:
    """m / ||m|| over the whole pytree; 0 / 0 = 0, so a zero estimate means "stay"."""

    def init(self, x: Tree) -> Tree:
        return ()

    def step(self, m: Tree, state: Tree) -> tuple[Tree, Tree]:
        size = norm(m)
        moves = size > 0
        scale = jnp.where(moves, 1 / jnp.where(moves, size, 1), 0)
        return jax.tree.map(lambda leaf: leaf * scale, m), state
