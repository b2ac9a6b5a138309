"""Before the run: the program's sizes, when something is written, and which iterates are kept.

Nothing here depends on the number of seeds.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .core import Algorithm
from .lanes import Shape
from .random import THREEFRY, seed_words, threefry

Tree = Any
NEVER = np.iinfo(np.int32).max
SMALL = 128  # numbers in x and in one step's samples up to which lanes lie on the last axis
LARGE = 4096  # beyond this many numbers one step is long enough for ordinary dispatch, which may use several cores
BLOCK_BYTES = 2**18  # noise of one block, so that it stays near the core


# Operations that XLA hands to libraries; a loop that holds one cannot be a single kernel.
LIBRARY = (
    *("dot_general", "conv_general", "sort", "top_k", "scatter", "fft", "ffi", "custom_call", "pure_callback"),
    *("cholesky", "lu", "qr", "eig", "svd", "schur", "householder", "triangular_solve", "tridiagonal"),
)


def primitives(jaxpr: Any) -> Iterator[str]:
    """Names of all operations of a traced function, also of those inside others."""
    for equation in jaxpr.eqns:
        yield equation.primitive.name
        for value in equation.params.values():
            for part in value if isinstance(value, (tuple, list)) else (value,):
                inner = getattr(part, "jaxpr", part)
                if hasattr(inner, "eqns"):
                    yield from primitives(inner)


def fits_one_kernel(problem: Any, algorithm: Algorithm, x: Tree, samples: Tree, average: bool) -> bool:
    """Whether a step holds nothing but plain arithmetic."""

    def step(x: Tree, samples: Tree) -> Tree:
        state, _ = algorithm.first(problem, x, samples)
        return algorithm.step(problem, state, samples, 2)[0], problem.full_grad(x) if average else ()

    names = set(primitives(jax.make_jaxpr(step)(x, samples).jaxpr))
    return not any(name.startswith(library) for name in names for library in LIBRARY)


def program_shape(problem: Any, algorithm: Algorithm, x: Tree, average: bool) -> Shape:
    """Lanes and block length from the size of x and of one step's samples."""
    key = jax.random.wrap_key_data(jnp.zeros(2, jnp.uint32), impl=THREEFRY)
    drawing = jax.eval_shape(lambda k: algorithm.draw(problem, k), key)
    samples = jax.tree.leaves(drawing)
    point = sum(leaf.size for leaf in jax.tree.leaves(x))
    drawn = sum(leaf.size for leaf in samples)
    bytes_drawn = sum(leaf.size * leaf.dtype.itemsize for leaf in samples)
    size = max(point, drawn)
    small = size <= SMALL
    lanes, groups = (8, 8) if small else (1, 1)
    block = 2 ** int(math.log2(min(256, max(1, BLOCK_BYTES // max(1, lanes * bytes_drawn)))))
    known = getattr(problem, "is_exact", True)
    exact, valued = (known and getattr(problem, name, None) is not None for name in ("full_grad", "value"))
    average = average and exact
    kernel = jax.default_backend() == "cpu" and size <= LARGE
    kernel = kernel and fits_one_kernel(problem, algorithm, x, drawing, average)
    return Shape(lanes, groups, block, -1 if small else 0, average, exact, valued, kernel)


class Calendar(NamedTuple):
    """Recorded steps, and the bounds of the strata of 1..T: stratum r is bounds[r] < t <= bounds[r + 1]."""

    record_steps: np.ndarray
    bounds: np.ndarray


def calendar(steps: int, records: int, candidates: int) -> Calendar:
    """Log-spaced records and strata as even as integers allow; fewer of either if there are fewer steps."""
    used = min(candidates, steps)
    bounds = np.arange(used + 1, dtype=np.int64) * steps // used
    return Calendar(np.unique(np.rint(np.geomspace(1, steps, records)).astype(np.int64)), bounds)


def group_events(
    dates: Calendar, picks: np.ndarray, lanes: int, records: int, candidates: int
) -> tuple[np.ndarray, ...]:
    """The Events of one group, in arrays whose shapes are the same for every T and for every number of seeds."""
    step = np.full(records + candidates * lanes + 1, NEVER, np.int32)
    row = np.full(step.size, records, np.int32)
    stratum = np.zeros(step.size, np.int32)
    times = np.union1d(dates.record_steps, picks)
    step[: times.size] = times
    row[np.searchsorted(times, dates.record_steps)] = np.arange(dates.record_steps.size)
    stratum[: times.size] = np.searchsorted(dates.bounds[1:], times)
    pick = np.zeros((candidates, lanes), np.int32)
    pick[: picks.shape[1], : picks.shape[0]] = picks.T
    return step, row, stratum, pick


def choose(seeds: list[int], bounds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For every seed one uniform step in each stratum, (n, R), and one stratum drawn in proportion to its length.

    The chosen stratum's step is then uniform on 1..T. The words come from step 0 of the seed, which no run uses.
    """
    rows = seed_words(seeds).T
    zero = np.zeros(len(seeds), np.uint32)
    key = threefry((rows[0], rows[1]), (zero, zero))
    strata = bounds.size - 1
    lengths = np.append(np.diff(bounds), bounds[-1])
    draws = []
    for i, length in enumerate(lengths.tolist()):
        high, low = (np.asarray(w).astype(np.uint64) for w in threefry(key, (zero, zero + np.uint32(i))))
        # The upper part of a 96-bit product: floor(length * word / 2^64).
        below = (low * np.uint64(length)) >> np.uint64(32)
        draws.append(((high * np.uint64(length) + below) >> np.uint64(32)).astype(np.int64))
    picks = np.stack([bounds[r] + 1 + draws[r] for r in range(strata)], axis=1)
    return picks, np.searchsorted(bounds[1:], draws[-1], side="right")
