"""The loop over steps on a GPU: one Pallas kernel takes every seed through a whole chunk of steps.

A seed is a thread, and its state stays in the thread's registers from the first step of a chunk to the last. The step
is the one that runs everywhere else (`Algorithm.step`), written out by `unroll`. An ordinary loop starts a few small
programs for every step, and with 10^3 seeds the GPU then waits most of the time.

Samples are drawn for the whole chunk beforehand by an ordinary program, so that a problem may sample in any way it
likes; the kernel reads them one step ahead. It stops at recorded steps, whose rows are written by an ordinary program,
too. Everything that the kernel reads or writes has the seeds on the last axis.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from normstorm._shared.jax_internals import abstract, pallas
from normstorm._shared.summation import kahan
from normstorm.algorithms.core import Algorithm, State
from normstorm.algorithms.geometries import norm

from .. import loop
from ..loop import Batch, ExecutionConfig
from ..recording import NEVER, Recorder, Records, RecordSchedule, RunningStats, SavedIterates, put_row, recorded
from .unroll import Parts, Stored, UnrollError, apply, filled

Tree = Any
WARP = 32  # seeds of one program
REGISTERS = 400  # 32-bit words of state up to which a thread keeps it at hand; beyond 255 some go to nearby memory
OVERHEAD, ROOM, LONGEST_CHUNK = 4096, 3 * 2**30, 512  # of a call in seeds, bytes of a chunk's samples, and its steps
LEAST_WIDTH = 1024  # seeds that a GPU takes on chip in hardly more time than one
PRELOADED = 64  # numbers of a shared array that are read once, before the loop; larger ones are read where needed


class Lanes(NamedTuple):
    """What the kernel carries from step to step, seeds on the last axis; see `RunningStats` for all but the state."""

    state: State
    sums: Any
    lost: Any
    least: Any
    cost: Any
    diverged: Any
    best: Any
    best_step: Any
    best_x: Tree


class Taken(NamedTuple):
    """One step of one seed: the new state, what it asked, the point handed out, ||m_t|| and ||grad F|| at the point."""

    state: State
    cost: Any
    point: Tree
    size: Any
    grad_norm: Any


def configured(
    problem: Any,
    algorithm: Algorithm,
    config: ExecutionConfig,
    x: Tree,
    form: State,
    samples: Tree,
    seeds: int,
    width: int | None,
    widths: tuple[int, ...],
) -> ExecutionConfig:
    """The same on chip, if it fits there; `width` is one that was asked for."""
    if width is None:
        width = min((w for w in widths if w >= LEAST_WIDTH), key=lambda w: -(-seeds // w) * (OVERHEAD + w))
    if width % WARP or not fits(problem, algorithm, config, x, form, samples):
        return config
    drawn = sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(samples))
    cheap = 2**31 // max(config.costs) if config.costs else LONGEST_CHUNK  # costs are added in 32-bit words
    steps = max(1, min(LONGEST_CHUNK, ROOM // (width * max(1, drawn)), cheap))
    return config._replace(width=width, chunk=1 << int(math.log2(steps)), ahead=True, cut=False, on_chip=True)


def fits(problem: Any, algorithm: Algorithm, config: ExecutionConfig, x: Tree, form: State, samples: Tree) -> bool:
    """Whether the state is small enough and the step can be written out; forms of state and samples are enough."""
    held = jax.tree.leaves((form, x, samples))
    if sum(math.prod(leaf.shape) * max(leaf.dtype.itemsize, 4) for leaf in held) > 4 * REGISTERS:
        return False
    given, step = _written(problem, algorithm, config)

    def trial(vector: jax.Array) -> None:
        def parts(leaf: Any) -> Parts:
            return filled(leaf.shape, lambda _: vector.astype(leaf.dtype))

        common = jax.tree.map(lambda leaf: Stored(leaf, lambda _: vector.astype(jnp.result_type(leaf))), given)
        apply(step, (common, jnp.asarray(2, jnp.int32)), (jax.tree.map(parts, form), jax.tree.map(parts, samples)))

    try:
        jax.eval_shape(trial, abstract((WARP,), jnp.float32))
    except (UnrollError, IndexError, TypeError, ValueError, NotImplementedError):
        return False
    return True


def _written(problem: Any, algorithm: Algorithm, config: ExecutionConfig) -> tuple[Tree, Callable[..., Taken]]:
    """Numbers that become inputs of the kernel, and a step as a function of them; of some problems JAX knows none."""
    unknown = jax.tree_util.all_leaves([problem])

    def step(given: Tree, t: Any, state: State, samples: Tree) -> Taken:
        task, words = (problem if unknown else given[0]), given[1]
        after, cost = words.step(task, state, samples, t)
        point, size = words.point(after), norm(after.m)
        grad_norm = norm(task.full_grad(point)) if config.average else size
        return Taken(after, jnp.asarray(cost, jnp.uint32), point, size, grad_norm)

    return (() if unknown else problem, algorithm), step


def advance(
    problem: Any, algorithm: Algorithm, config: ExecutionConfig, stop: Any, schedule: RecordSchedule, batch: Batch
) -> Batch:
    """Go on until `stop` steps are done, as `loop.advance` does, which takes the first one."""
    opening = config._replace(chunk=1, on_chip=False)
    batch = loop.advance(problem, algorithm, opening, jnp.minimum(stop, 1), schedule, batch)
    stats, saved = batch.recorder.stats, batch.recorder.saved
    given, step = _written(problem, algorithm, config)
    go = jax.jit(partial(_steps, given, step, config))
    dates = schedule.record_steps

    def until(row: Any, end: Any) -> Any:
        return jnp.minimum(dates[row], end)

    def chunk(carry: tuple[Lanes, jax.Array, Tree, Records, Any, Any]) -> Any:
        t = carry[-1]
        t0 = t - t % config.chunk
        end = jnp.minimum(t0 + config.chunk, stop)
        drawn = loop.draw_chunk(problem, algorithm, config, batch.seed, t0)
        # As rows of numbers, (..., steps, seeds), which is how they are drawn.
        samples = jax.tree.map(lambda a: jnp.moveaxis(a, (0, 1), (-2, -1)), drawn)

        def segment(carry: tuple[Lanes, jax.Array, Tree, Records, Any, Any]) -> Any:
            lanes, carries, kept, records, row, t = carry
            now = _stats(lanes, carries, stats.halt)
            state = jax.tree.map(_seeds_first, lanes.state)
            path = jax.vmap(partial(loop.path_row, problem, config._replace(in_step=False), algorithm))(
                state, lanes.cost
            )
            written = recorded(problem, config, t, now, now.diverged == 0, path)
            records = put_row(records, written, row)
            after = until(row + 1, end)
            moved, carries, kept = go(samples, saved.step, lanes, carries, kept, t0, t, after)
            return moved, carries, kept, records, row + 1, after

        lanes, carries, kept, records, row, _ = carry
        after = until(row, end)
        lanes, carries, kept = go(samples, saved.step, lanes, carries, kept, t0, t, after)
        # One question for a chunk without records: the GPU waits for the host wherever it has to choose.
        return jax.lax.while_loop(
            lambda carry: dates[carry[-2]] <= carry[-1], segment, (lanes, carries, kept, records, row, after)
        )

    # The last row of what is kept is where a seed diverged.
    kept = jax.tree.map(lambda x, halt: _seeds_last(jnp.concatenate([x, halt[None]]), 1), saved.x, stats.halt)
    lanes = Lanes(
        *jax.tree.map(_seeds_last, (batch.state, *stats[:4])),
        *jax.tree.map(_seeds_last, (stats.diverged, stats.best, stats.best_step, stats.best_x)),
    )
    start = lanes, stats.carry, kept, batch.recorder.records, batch.recorder.row, batch.t
    lanes, carries, kept, records, row, t = jax.lax.while_loop(lambda carry: carry[-1] < stop, chunk, start)
    rows = jax.tree.map(lambda leaf: jnp.moveaxis(leaf, -1, 1), kept)
    now = _stats(lanes, carries, jax.tree.map(lambda leaf: leaf[-1], rows))
    halted = (now.diverged > 0) & (now.diverged <= saved.step) & (saved.step <= t)

    def iterates(leaf: jax.Array) -> jax.Array:
        return jnp.where(halted.reshape(*halted.shape, *(1,) * (leaf.ndim - 2)), leaf[-1], leaf[:-1])

    recorder = Recorder(now, records, SavedIterates(jax.tree.map(iterates, rows), saved.step), row)
    return Batch(batch.seed, jax.tree.map(_seeds_first, lanes.state), recorder, t)


def _seeds_last(leaf: jax.Array, axis: int = 0) -> jax.Array:
    return jnp.moveaxis(leaf, axis, -1)


def _seeds_first(leaf: jax.Array) -> jax.Array:
    return jnp.moveaxis(leaf, -1, 0)


def _stats(lanes: Lanes, carries: jax.Array, halt: Tree) -> RunningStats:
    """The statistics in their usual form."""
    sums, lost, best_x = jax.tree.map(_seeds_first, (lanes.sums, lanes.lost, lanes.best_x))
    counts = lanes.least, lanes.cost, carries, lanes.diverged
    return RunningStats(sums, lost, *counts, halt, lanes.best, lanes.best_step, best_x)


def _steps(
    given: Tree,
    step: Callable[..., Taken],
    config: ExecutionConfig,
    samples: Tree,
    picks: jax.Array,
    lanes: Lanes,
    carries: jax.Array,
    kept: Tree,
    t0: Any,
    t: Any,
    end: Any,
) -> tuple[Lanes, jax.Array, Tree]:
    """Steps t + 1 .. end of all seeds; samples[..., i, :] belong to step t0 + 1 + i."""
    pl, triton = pallas()
    times = jnp.stack([t - t0, end - t0, t0]).astype(jnp.int32)
    shared, sample_leaves, lane_leaves, kept_leaves = map(jax.tree.leaves, (given, samples, lanes, kept))
    arrays = [jnp.atleast_1d(v) for v in shared]
    inputs = [times, picks, *arrays, *sample_leaves, *lane_leaves, *kept_leaves]
    first_kept = len(inputs) - len(kept_leaves)
    on_cpu = jax.default_backend() == "cpu"
    lane_tree, sample_tree = jax.tree.structure(lanes), jax.tree.structure(samples)
    results = pl.pallas_call(
        partial(_kernel, given, step, lane_tree, sample_tree, len(inputs), len(arrays)),
        [abstract(v.shape, v.dtype) for v in (*lane_leaves, *kept_leaves)],
        grid=(config.width // WARP,),
        input_output_aliases={first_kept + i: len(lane_leaves) + i for i in range(len(kept_leaves))},
        interpret=on_cpu,
        compiler_params=None if on_cpu else triton.CompilerParams(num_warps=1, num_stages=1),
        name="steps",
    )(*inputs)
    moved: Lanes = jax.tree.unflatten(lane_tree, results[: len(lane_leaves)])
    taken = jax.tree.unflatten(jax.tree.structure(kept), results[len(lane_leaves) :])
    return moved, carries + (moved.cost < lanes.cost).astype(jnp.uint32), taken


def _kernel(
    given: Tree, step: Callable[..., Taken], lane_tree: Any, sample_tree: Any, inputs: int, shared: int, *refs: Any
) -> None:
    """One warp of seeds."""
    pl, triton = pallas()
    times, picks = refs[:2]
    given_refs, rest = refs[2 : 2 + shared], refs[2 + shared : inputs]
    sample_refs, rest = rest[: sample_tree.num_leaves], rest[sample_tree.num_leaves :]
    lane_refs = rest[: lane_tree.num_leaves]
    lane_out, kept_out = refs[inputs : inputs + lane_tree.num_leaves], refs[inputs + lane_tree.num_leaves :]
    start, rows = pl.program_id(0) * WARP, picks.shape[0]
    here, lane = pl.ds(start, WARP), start + jnp.arange(WARP, dtype=jnp.int32)
    first, t0 = times[0], times[2]
    last = jnp.where(jnp.min(picks[0, here]) < NEVER, times[1], first)  # a warp without seeds has nothing to do
    common, sizes = _stored(given, given_refs), [ref.shape[:-1] for ref in lane_refs]

    def ahead_of(i: Any) -> list[Any]:
        def of(ref: Any) -> list[Any]:
            return [ref[(*j, jnp.minimum(i, ref.shape[-2] - 1), here)] for j in np.ndindex(ref.shape[:-2])]

        return [number for ref in sample_refs for number in of(ref)]

    def pick_of(row: Any, wanted: Any) -> Any:
        return triton.load(picks.at[jnp.minimum(row, rows - 1), lane], mask=wanted & (row < rows), other=NEVER)

    def one(i: Any, carry: Any) -> Any:
        numbers, ahead, pick, row = carry
        now = t0 + 1 + i
        drawn = _gather(sample_tree, [ref.shape[:-2] for ref in sample_refs], ahead)
        ahead = ahead_of(i + 1)
        before: Lanes = _gather(lane_tree, sizes, numbers)
        taken = apply(step, (common, now), (before.state, drawn))
        moved, fell = _accounted(before, taken, now)
        due = pick == now
        place = jnp.where(fell, rows, row)
        for ref, x in zip(kept_out, jax.tree.leaves(taken.point), strict=True):
            for j in np.ndindex(x.shape):
                entry = jnp.broadcast_to(x[j], (WARP,)).astype(ref.dtype)
                triton.store(ref.at[(place, *j, lane)], entry, mask=due | fell)
        row = jnp.where(due, row + 1, row)
        pick = jnp.where(due, pick_of(row, due), pick)
        return _numbers(moved, lane_refs), ahead, pick, row

    row = jax.lax.fori_loop(
        0, rows, lambda r, n: n + (picks[r, here] <= t0 + first).astype(jnp.int32), jnp.zeros(WARP, jnp.int32)
    )
    entry = [ref[(*i, here)] for ref, size in zip(lane_refs, sizes, strict=True) for i in np.ndindex(size)]
    numbers, *_ = jax.lax.fori_loop(first, last, one, (entry, ahead_of(first), pick_of(row, row < rows), row))
    following = iter(numbers)
    for ref, size in zip(lane_out, sizes, strict=True):
        for i in np.ndindex(size):
            ref[(*i, here)] = next(following)


def _accounted(before: Lanes, taken: Taken, now: Any) -> tuple[Lanes, Any]:
    """The step's statistics, as `recording.updated` has them, and where it is the first with a number not finite."""
    least, cost, diverged, best, best_step = (p[()] for p in before[3:8])
    size, g = (part[()].astype(best.dtype) for part in (taken.size, taken.grad_norm))
    was, finite = diverged == 0, jnp.isfinite(size) & jnp.isfinite(g)
    alive = was & finite
    terms = [jnp.where(alive, term, 0) for term in (g, size, taken.cost[()].astype(g.dtype) * g)]
    sums, lost = zip(*map(kahan, before.sums, before.lost, terms), strict=True)
    better = alive & (size < best)
    moved = Lanes(
        taken.state,
        sums=filled((3,), lambda i: sums[i[0]]),
        lost=filled((3,), lambda i: lost[i[0]]),
        least=_one(jnp.where(alive & (g < least), g, least)),
        cost=_one(cost + jnp.where(was, taken.cost[()], jnp.uint32(0))),
        diverged=_one(jnp.where(was & ~finite, now, diverged)),
        best=_one(jnp.where(better, size, best)),
        best_step=_one(jnp.where(better, now, best_step)),
        best_x=jax.tree.map(partial(_choose, better), taken.point, before.best_x),
    )
    return moved, was & ~finite


def _stored(given: Tree, refs: Any) -> Any:
    """The problem's and the algorithm's numbers as arrays that are read number by number."""

    def store(leaf: Any, ref: Any) -> Stored:
        scalar = np.ndim(leaf) == 0

        def read(i: tuple[Any, ...]) -> Any:
            return ref[0] if scalar else ref[i]

        if np.size(leaf) <= PRELOADED:
            known = filled(np.shape(leaf), read)
            return Stored(leaf, lambda i: known[i] if all(isinstance(n, int) for n in i) else read(i))
        return Stored(leaf, read)

    leaves, structure = jax.tree.flatten(given)
    return jax.tree.unflatten(structure, [store(leaf, ref) for leaf, ref in zip(leaves, refs, strict=True)])


def _gather(structure: Any, sizes: list[tuple[int, ...]], numbers: list[Any]) -> Any:
    following = iter(numbers)
    return jax.tree.unflatten(structure, [filled(size, lambda _: next(following)) for size in sizes])


def _numbers(tree: Any, refs: Any) -> list[Any]:
    pairs = zip(jax.tree.leaves(tree), refs, strict=True)
    return [jnp.broadcast_to(n, (WARP,)).astype(ref.dtype) for leaf, ref in pairs for n in leaf.flat]


def _one(number: Any) -> Parts:
    return filled((), lambda _: number)


def _choose(take: Any, new: Parts, old: Parts) -> Parts:
    return filled(new.shape, lambda i: jnp.where(take, new[i], old[i]))
