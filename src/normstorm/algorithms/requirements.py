"""What an algorithm needs of a problem and of x, and the sentence for one that does not have it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import numpy as np

if TYPE_CHECKING:
    from normstorm.problems.protocol import Sampled

FINITE_SUM, MATRIX = "finite sum", "matrix"
NOTHING: frozenset[str] = frozenset()
A_FINITE_SUM, MATRICES = frozenset({FINITE_SUM}), frozenset({MATRIX})


def no_finite_sum(problem: Sampled) -> str | None:
    """Why the problem cannot give a full gradient of n components."""
    if getattr(problem, "size", None) is not None and hasattr(problem, "full_grad"):
        return None
    name = getattr(problem, "name", type(problem).__name__)
    return f"algorithm: problem must be a finite sum with a size and a full gradient; got {name!r}"


def no_matrices(x: Any) -> str | None:
    """Why x has no rows and columns."""
    for leaf in jax.tree.leaves(x):
        if np.ndim(leaf) != 2:
            return f"algorithm: x must be a matrix or a pytree of matrices; got a leaf of shape {np.shape(leaf)}"
    return None


def refusal(needs: frozenset[str], problem: Sampled, x: Any) -> str | None:
    """The first reason why problem and x do not have what is needed."""
    no_sum = no_finite_sum(problem) if FINITE_SUM in needs else None
    return no_sum or (no_matrices(x) if MATRIX in needs else None)
