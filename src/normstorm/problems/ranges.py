"""Ranges of a finite sum by a pass over its rows, and whether samples contradict a range that a user claims.

What a range is: `protocol.Ranged`. How those of the registry are proven: the docstrings of its problems.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .base import FiniteSum, raised

Tree = Any
ROUNDING = 1e-3  # by which gradients, computed in the precision of x, may exceed a range that is true


def exact_range(problem: Any, x: Tree, x_prev: Tree) -> tuple[jax.Array, jax.Array]:
    """(spread, change) of a finite sum, the best there are: the largest of all rows, rounded up.

    spread   max ||grad f_i(x) - grad F(x)||
    change   max ||grad f_i(x) - grad f_i(x_prev)||
    It takes a gradient of every row at both points, and another pass for grad F; traceable, like a problem's `range`.
    What the gradients themselves lose to rounding is not counted.
    """
    if not isinstance(problem, FiniteSum):
        raise ValueError(
            "exact_range: problem must be a finite sum, such as from_loss makes of arrays of data; "
            f"got an object of type {type(problem).__name__}"
        )
    full = problem.full_grad(x)

    def row(i: jax.Array) -> jax.Array:
        here, before = problem.grad(x, i[None]), problem.grad(x_prev, i[None])
        return jnp.stack([_length(here, full), _length(here, before), _length(here), _length(before)])

    off, moved, here, before = jnp.max(jax.lax.map(row, jnp.arange(problem.size), batch_size=512), axis=0)
    return raised(x, off, 2 * here), raised(x, moved, here + before)


def contradiction(here: np.ndarray, there: np.ndarray, spread: float, change: float) -> str | None:
    """What sample gradients at x, and those of the same samples within the radius, say against a range; or nothing.

    Two gradients that are further apart than 2 spread fit into no ball of that radius. Both arrays are (samples, d).
    """
    lost = ROUNDING * float(np.max(np.abs(here)))
    apart = max(float(np.max(np.linalg.norm(here - one, axis=1))) for one in here)
    moved = float(np.max(np.linalg.norm(here - there, axis=1)))
    if not spread >= 0 or apart > 2 * spread * (1 + ROUNDING) + lost:
        return f"a spread of at least half the distance of two samples' gradients, {apart / 2:.3g}; got {spread:.3g}"
    if not change >= 0 or moved > change * (1 + ROUNDING) + lost:
        return f"a change of at least that of a sample's gradient within the radius, {moved:.3g}; got {change:.3g}"
    return None


def _length(a: Tree, b: Tree | None = None) -> jax.Array:
    difference = a if b is None else jax.tree.map(jnp.subtract, a, b)
    return jnp.sqrt(sum((jnp.sum(leaf**2) for leaf in jax.tree.leaves(difference)), jnp.zeros(())))
