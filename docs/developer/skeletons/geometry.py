"""A geometry, from an estimate to a direction: goes to src/normstorm/algorithms/geometries.py.

    c_t = max(c_{t-1}, ||m_t||),    u_t = m_t / c_t        (0 / 0 = 0: a zero estimate means "stay")

Estimators, schedules and averagings have the same form, with the methods that the docstrings of their files list.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from normstorm._shared.pytrees import pytree
from normstorm.algorithms.geometries import Geometry, norm

Tree = Any


# A float field is data: another value does not compile anew. An integer or a name is part of the program and is
# declared with `static()` of `estimators.py`.
@pytree
@dataclass(frozen=True)
class LargestNorm(Geometry):
    """m over the largest ||m|| so far, and at least `floor`."""

    floor: float

    def init(self, x: Tree) -> Tree:
        # The state keeps its shapes and types for the whole run.
        return jnp.asarray(self.floor, jax.tree.leaves(x)[0].dtype)

    def step(self, t: Any, x: Tree, m: Tree, g: Tree, state: Tree) -> tuple[Tree, Tree]:
        # No `if` on numbers: everything here is traced. `m` may be any pytree.
        largest = jnp.maximum(state, norm(m))
        scale = jnp.where(largest > 0, 1 / jnp.where(largest > 0, largest, 1), 0)
        return jax.tree.map(lambda leaf: leaf * scale, m), largest
