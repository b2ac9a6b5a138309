"""Where runs end: the points that a user takes home, and how far they lie from the start.

    last    the point where the run stands when the budget is spent; the average, for a method that hands out one
    best    the point with the smallest ||m_t||, which a method knows without a gradient of F

A run that ends above F(x_1) has gone astray: far away gradients can be small where F is large.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from normstorm.algorithms.geometries import norm
from normstorm.engine.results import Trace
from normstorm.problems.protocol import Problem

AT_ONCE = 64  # points that are measured at once
Tree = Any


@dataclass(frozen=True)
class Ends:
    """||grad F|| and F at one point of every seed; infinite if the seed diverged."""

    grad_norm: np.ndarray
    value: np.ndarray


def measuring(problem: Problem) -> Callable[[Tree], tuple[Any, Any]]:
    """||grad F|| and F for many points."""

    def one(x: Tree) -> tuple[Any, Any]:
        return norm(problem.full_grad(x)), problem.value(x)

    return jax.jit(lambda points: jax.lax.map(one, points, batch_size=AT_ONCE))


def ends(measure: Callable[[Tree], tuple[Any, Any]], trace: Trace) -> tuple[Ends, Ends]:
    """The last point and the one with the smallest estimate."""
    both = jax.tree.map(lambda a, b: jnp.concatenate([a, b]), trace.last, trace.smallest.x)
    lost = np.tile(trace.diverged_at > 0, 2)
    sizes, values = (np.asarray(part, np.float64) for part in measure(both))
    known = [np.where(lost | ~np.isfinite(part), np.inf, part) for part in (sizes, values)]
    n = len(trace.diverged_at)
    return Ends(*(part[:n] for part in known)), Ends(*(part[n:] for part in known))


def distances(start: Tree, trace: Trace) -> np.ndarray:
    """From x_1 to where each seed ends; infinite if it diverged."""
    n = len(trace.diverged_at)
    moved = jax.tree.map(lambda a, b: (np.asarray(a) - np.asarray(b)).reshape(n, -1), trace.last, start)
    with np.errstate(over="ignore"):  # farther than numbers go is infinite
        lengths = np.linalg.norm(np.concatenate(jax.tree.leaves(moved), axis=1), axis=1)
    return np.where(trace.diverged_at > 0, np.inf, lengths)
