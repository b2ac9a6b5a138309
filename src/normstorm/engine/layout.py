"""Before the run: the program's sizes, when something is written, and which iterates are kept.

Nothing here depends on the number of seeds.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from itertools import compress
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from normstorm.algorithms.core import Algorithm, State
from normstorm.random import THREEFRY, seed_words, threefry

from .gpu import kernel as chip
from .lanes import NEVER
from .program import Shape, Words
from .replay import primitives

Tree = Any
SMALL = 128  # numbers in x and in one step's samples up to which lanes lie on the last axis
LARGE = 4096  # beyond this many numbers one step is long enough for ordinary dispatch, which may use several cores
BLOCK_BYTES, LARGE_BLOCK_BYTES = 2**18, 2**19  # noise of one block of a small or a larger problem, near the core
SPAN = 2**16  # steps of one call of a kernel that draws its noise itself
MANY = 1024  # lanes of a group on an accelerator
NUMBERS = 2**22  # numbers of a group whose loop is an ordinary one
WIDE_BYTES = 2**25  # noise of one block of a group there
CALL_BYTES = 2**32  # and of all groups of a call

# Operations that XLA hands to libraries; what holds one cannot be a single kernel.
LIBRARY = (
    *("dot_general", "conv_general", "sort", "top_k", "scatter", "fft", "ffi", "custom_call", "pure_callback"),
    *("cholesky", "lu", "qr", "eig", "svd", "schur", "householder", "triangular_solve", "tridiagonal"),
)


class Changing(NamedTuple):
    """Whether gradients, and whether samples, are other numbers for other arguments.

    XLA ends the process on a kernel that gives a constant. It finds constants that do not look like ones, so the
    functions are asked twice.
    """

    gradient: bool
    samples: bool


TRIED = 1024  # samples that are compared


def changing(problem: Any, x: Tree) -> Changing:
    def twice(function: Any, *arguments: Tree) -> bool:
        first, second = (jax.tree.leaves(jax.device_get(function(*a))) for a in arguments)
        return not any(np.array_equal(a, b, equal_nan=True) for a, b in zip(first, second, strict=True))

    keys = [jax.random.wrap_key_data(jnp.asarray([0, i], jnp.uint32), impl=THREEFRY) for i in range(2)]
    elsewhere = jax.tree.map(lambda leaf: 1.25 * leaf + 0.25, x)
    sample, gradient = jax.jit(problem.sample, static_argnums=1), jax.jit(problem.grad)
    samples = twice(sample, *((key, TRIED) for key in keys))
    points = zip((x, elsewhere), (sample(key, 1) for key in keys), strict=True)
    return Changing(twice(gradient, *points), samples)


class Traced(NamedTuple):
    """Two steps and a record, looked at without being carried out.

    state    the form of what a lane carries from one step to the next
    steps    all operations of the steps
    looks    those of a record
    dearest  sample gradients of the dearer step, where that is a fixed number; else 1
    fixed    whether it is for both
    cost     see `Shape`
    """

    state: State
    steps: frozenset[str]
    looks: frozenset[str]
    dearest: int
    fixed: bool
    cost: int


def trace(problem: Any, algorithm: Algorithm, x: Tree, samples: Tree, average: bool, asked: tuple[str, ...]) -> Traced:
    """`asked` is what a record asks of the problem."""
    costs: list[Any] = []
    handed: list[bool] = []

    def steps(x: Tree, samples: Tree) -> Tree:
        state, cost = algorithm.first(problem, x, samples)
        after, later = algorithm.step(problem, state, samples, 2)
        costs.extend((cost, later))
        handed.extend(map(operator.is_, jax.tree.leaves(state.x), jax.tree.leaves(after.x_prev)))
        return state, after, problem.full_grad(x) if average else ()

    def looks(x: Tree) -> Tree:
        return [getattr(problem, name)(x) for name in asked]

    traced, (state, *_) = jax.make_jaxpr(steps, return_shape=True)(x, samples)
    step_names, look_names = (frozenset(primitives(jaxpr.jaxpr)) for jaxpr in (traced, jax.make_jaxpr(looks)(x)))
    known = [cost for cost in costs if isinstance(cost, int)]
    fixed = len(known) == len(costs)
    cost = costs[1] if fixed and all(handed) else 0
    return Traced(state, step_names, look_names, max(known, default=1), fixed, cost)


def check_problem(problem: Any, x: Tree, batch: Tree) -> None:
    """Gradients must look like x, and samples must be numbers."""
    if any(jnp.issubdtype(leaf.dtype, jax.dtypes.extended) for leaf in jax.tree.leaves(batch)):
        raise ValueError(
            "run: problem.sample must return arrays of numbers; got random keys, which only sample may use"
        )
    wanted = _form(jax.eval_shape(lambda x: x, x))
    asked: dict[str, Any] = {"grad": lambda: jax.eval_shape(problem.grad, x, batch)}
    if getattr(problem, "is_exact", True) and getattr(problem, "full_grad", None) is not None:
        asked["full_grad"] = lambda: jax.eval_shape(problem.full_grad, x)
    for name, form in asked.items():
        if (got := _form(form())) != wanted:
            raise ValueError(f"run: problem.{name} must return the form of x, {wanted}; got {got}")


def _form(tree: Tree) -> str:
    leaves, structure = jax.tree.flatten(tree)
    alone: Any = jax.tree.structure(0)
    names = [f"{leaf.dtype}[{','.join(map(str, leaf.shape))}]" for leaf in leaves]
    return names[0] if structure == alone else str(jax.tree.unflatten(structure, names))


def accelerated() -> bool:
    """Whether this is a machine that wants many lanes at once."""
    return jax.default_backend() != "cpu"


def program_shape(
    problem: Any, algorithm: Algorithm, x: Tree, average: bool, changes: Callable[[], Changing]
) -> tuple[Shape, State]:
    """Lanes and block length from the size of x and of one step's samples; also the form of a lane's state."""
    key = jax.random.wrap_key_data(jnp.zeros(2, jnp.uint32), impl=THREEFRY)
    draw, drawn_form = jax.make_jaxpr(lambda k: algorithm.draw(problem, k), return_shape=True)(key)
    samples = jax.tree.leaves(drawn_form)
    batch = jax.eval_shape(lambda k: problem.sample(k, 1), key)
    check_problem(problem, x, batch)
    point = sum(leaf.size for leaf in jax.tree.leaves(x))
    drawn = sum(leaf.size for leaf in samples)
    bytes_drawn = sum(leaf.size * leaf.dtype.itemsize for leaf in samples)
    size = max(point, drawn)
    small, wide = size <= SMALL, accelerated()
    lanes, groups = (16, 4) if small else (1, 1)
    known = getattr(problem, "is_exact", True)
    looks = ("full_grad", "value")
    exact, valued = has = [known and getattr(problem, name, None) is not None for name in looks]
    average = average and exact
    traced = trace(problem, algorithm, x, drawn_form, average, tuple(compress(looks, has)))
    if traced.dearest >= 2**32:
        raise ValueError(f"run: a step must ask fewer than 2**32 sample gradients; got {traced.dearest}")
    longest = 2**32 // (traced.dearest + 1)  # within a call, costs are 32-bit words
    block = _block(min(256, longest), BLOCK_BYTES if small else LARGE_BLOCK_BYTES, lanes * bytes_drawn)
    # XLA cannot make a kernel of a loop that it knows to be of one round, nor of arrays without numbers.
    hollow = bool(samples) and drawn == 0
    ordinary = wide or size > LARGE or block == 1 or hollow or getattr(algorithm.estimator, "ordinary", False)
    kernel, marks = not ordinary and _plain(traced.steps) and changes().gradient, _plain(traced.looks)
    # jax.random makes all its numbers at once; so much work in one operation is given to several threads.
    names = frozenset(primitives(draw.jaxpr))
    drawing = small and not wide and _plain(names) and "random_bits" not in names
    drawing = drawing and drawn > 0 and changes().samples
    axis, span = -1 if small else 0, min(SPAN, longest) if traced.fixed else block
    shape = Shape(
        *(lanes, groups, block, axis, average, exact, valued, kernel, marks, drawing, span, wide),
        chip=False,
        cost=traced.cost,
    )
    if wide and small and chip.fits(Words(problem, algorithm), shape, x, traced.state, drawn_form):
        block = _block(min(512, longest), WIDE_BYTES, MANY * bytes_drawn)
        shape = shape._replace(lanes=MANY, groups=_groups(MANY * block * bytes_drawn), block=block, chip=True)
    elif wide:
        lanes = 2 ** int(math.log2(max(1, min(16 * MANY, NUMBERS // size))))
        shape = shape._replace(lanes=lanes, groups=1, block=_block(min(64, longest), WIDE_BYTES, lanes * bytes_drawn))
    return shape, traced.state


def _plain(names: frozenset[str]) -> bool:
    return not any(name.startswith(library) for name in names for library in LIBRARY)


def _block(longest: int, memory: int, bytes_a_step: int) -> int:
    """Steps whose noise fits, a power of two."""
    return 1 << int(math.log2(max(1, min(longest, memory // max(1, bytes_a_step)))))


def _groups(bytes_a_group: int) -> int:
    """Groups of one call whose noise takes no more than an eighth of the accelerator's memory."""
    memory = (jax.devices()[0].memory_stats() or {}).get("bytes_limit", CALL_BYTES)
    return max(1, int(min(CALL_BYTES, memory // 8)) // max(1, bytes_a_group))


class Calendar(NamedTuple):
    """Recorded steps, and the bounds of the strata of 1..T: stratum r is bounds[r] < t <= bounds[r + 1]."""

    record_steps: np.ndarray
    bounds: np.ndarray

    def dates(self, records: int) -> np.ndarray:
        """The recorded steps in an array whose size is the same for every T, ended by steps that never come."""
        steps = np.full(records + 1, NEVER, np.int32)
        steps[: self.record_steps.size] = self.record_steps
        return steps


def calendar(steps: int, records: int, candidates: int) -> Calendar:
    """Log-spaced records and strata as even as integers allow; fewer of either if there are fewer steps."""
    used = min(candidates, steps)
    bounds = np.arange(used + 1, dtype=np.int64) * steps // used
    return Calendar(np.unique(np.rint(np.geomspace(1, steps, records)).astype(np.int64)), bounds)


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
