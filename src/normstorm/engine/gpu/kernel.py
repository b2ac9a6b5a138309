"""The loop over steps on a GPU: one Pallas kernel takes every lane through a whole block of steps.

A lane is a thread, and its state stays in the thread's registers from the first step of a block to the last. The step
is the one that runs everywhere else (`lanes.advance_lane`), written out by `unroll`. An ordinary loop starts a few
small programs for every step, and with 10^3 lanes the GPU then waits most of the time.

Noise is drawn for the whole block beforehand by an ordinary program, so that a problem may sample in any way it likes;
the kernel reads it one step ahead. Whatever adds up numbers outside the kernel works on one group of lanes at a time:
its shapes, and so its rounding, do not depend on the number of seeds.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from normstorm._shared.jax_internals import abstract
from normstorm.algorithms.core import State

from ..lanes import NEVER, Group, Kept, Lane, advance_lane, count_over, first, mark
from ..noise import draw_all
from ..program import Shape, Words
from ..replay import primitives
from .unroll import Parts, Stored, UnrollError, apply, filled

Tree = Any
WARP = 32  # lanes of one program
REGISTERS = 400  # 32-bit words of state up to which a thread keeps it at hand; beyond 255 some go to nearby memory
PRELOADED = 64  # numbers of a shared array that are read once, before the loop; larger ones are read where needed
SUMMING = ("reduce_", "cum", "dot_general", "conv_", "sort", "scatter", "while", "scan")  # their order may vary


def fits(words: Words, shape: Shape, x: Tree, state: State, samples: Tree) -> bool:
    """Whether the state is small enough and the step can be written out; forms of state and samples are enough."""
    words, whole = _apart(words)
    held = [*jax.tree.leaves(state), *jax.tree.leaves(x), *jax.tree.leaves(samples)]
    if sum(math.prod(leaf.shape) * max(leaf.dtype.itemsize, 4) for leaf in held) > 4 * REGISTERS:
        return False

    def step(words: Words, state: State, samples: Tree) -> Tree:
        problem, algorithm = whole(words)
        gradient = problem.full_grad(state.x) if shape.average else ()
        return algorithm.step(problem, state, samples, 2), gradient

    def trial(vector: jax.Array) -> None:
        def parts(leaf: Any) -> Parts:
            return filled(leaf.shape, lambda _: vector.astype(leaf.dtype))

        common = jax.tree.map(lambda leaf: Stored(leaf, lambda _: vector.astype(jnp.result_type(leaf))), words)
        apply(step, (common,), (jax.tree.map(parts, state), jax.tree.map(parts, samples)))

    try:
        jax.eval_shape(trial, abstract((WARP,), jnp.float32))
    except (UnrollError, IndexError, TypeError, ValueError):
        return False
    return True


def _apart(words: Words) -> tuple[Words, Callable[[Words], Words]]:
    """Numbers that become inputs of a kernel, and how to put a problem back that JAX does not know."""
    problem = words.problem
    if jax.tree_util.all_leaves([problem]):
        return words._replace(problem=()), lambda words: words._replace(problem=problem)
    return words, lambda words: words


def advance(words: Words, shape: Shape, stop: Any, dates: jax.Array, groups: Group) -> Group:
    """Take all groups on until `stop` steps are done; they are at the same step."""

    def block(groups: Group) -> Group:
        t0 = groups.t[0]
        end = jnp.minimum(t0 + shape.block, stop)
        noise = _draw(words, shape, groups.lanes.seed, t0)

        def segment(groups: Group) -> Group:
            until = jnp.minimum(end, dates[groups.row[0]])
            lanes, kept = steps(words, shape, groups, noise, t0, until)
            moved = groups._replace(lanes=lanes, kept=kept, t=jnp.full_like(groups.t, until))
            due = dates[groups.row[0]] == until
            write = partial(jax.lax.map, partial(mark, words, shape, dates))
            marked: Group = jax.lax.cond(due, write, lambda g: g, moved)
            return marked

        return jax.lax.while_loop(lambda g: g.t[0] < end, segment, groups)

    def start(groups: Group) -> Group:
        noise = _draw(words, shape._replace(block=1), groups.lanes.seed, 0)
        samples = jax.tree.map(lambda b: b[:, 0], noise)
        begun: Group = jax.lax.map(lambda g: mark(words, shape, dates, first(words, shape, *g)), (groups, samples))
        return begun

    # Outside of the loop: a GPU waits for the host wherever it has to choose.
    groups = jax.lax.cond((groups.t[0] == 0) & (stop > 0), start, lambda groups: groups, groups)
    return jax.lax.while_loop(lambda g: g.t[0] < stop, block, groups)


def _draw(words: Words, shape: Shape, seeds: jax.Array, t0: Any) -> Tree:
    """The noise of all groups: at once if its rounding cannot depend on their number, else one after the other."""

    def draw(seeds: jax.Array) -> Tree:
        return draw_all(words, shape, seeds, t0)

    names = set(primitives(jax.make_jaxpr(draw)(seeds[0]).jaxpr))
    if any(name.startswith(summing) for name in names for summing in SUMMING):
        return jax.lax.map(draw, seeds)
    return jax.vmap(draw)(seeds)


def steps(words: Words, shape: Shape, groups: Group, noise: Tree, t0: Any, end: Any) -> tuple[Lane, Kept]:
    """Steps up to `end` in all groups; noise[g][i] belongs to step t0 + 1 + i of group g."""
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import triton

    lanes, kept = groups.lanes, groups.kept
    words, whole = _apart(words)
    times = jnp.stack([groups.t[0] - t0, end - t0, t0]).astype(jnp.int32)
    shared, lane_leaves, noise_leaves, kept_leaves = map(jax.tree.leaves, (words, lanes, noise, kept.x))
    arrays = [jnp.atleast_1d(v) for v in shared]
    inputs = [times, kept.step, *arrays, *noise_leaves, *lane_leaves, *kept_leaves]
    outputs = [*lane_leaves, *kept_leaves]
    first_kept = len(inputs) - len(kept_leaves)
    on_cpu = jax.default_backend() == "cpu"
    results = pl.pallas_call(
        partial(
            _kernel, words, whole, shape, jax.tree.structure(lanes), jax.tree.structure(noise), len(inputs), len(arrays)
        ),
        [abstract(v.shape, v.dtype) for v in outputs],
        grid=(len(groups.t), shape.lanes // WARP),
        input_output_aliases={first_kept + i: len(lane_leaves) + i for i in range(len(kept_leaves))},
        interpret=on_cpu,
        compiler_params=None if on_cpu else triton.CompilerParams(num_warps=1, num_stages=1),
        name="steps",
    )(*inputs)
    moved = jax.tree.unflatten(jax.tree.structure(lanes), results[: len(lane_leaves)])
    taken = jax.tree.unflatten(jax.tree.structure(kept.x), results[len(lane_leaves) :])
    return count_over(lanes, moved), kept._replace(x=taken)


def _kernel(
    words: Words, whole: Any, shape: Shape, lane_tree: Any, noise_tree: Any, inputs: int, shared: int, *refs: Any
) -> None:
    """One warp of lanes of one group."""
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import triton

    times, picks = refs[:2]
    words_refs, rest = refs[2 : 2 + shared], refs[2 + shared : inputs]
    noise_refs, rest = rest[: noise_tree.num_leaves], rest[noise_tree.num_leaves :]
    lane_refs = rest[: lane_tree.num_leaves]
    lane_out, kept_out = refs[inputs : inputs + lane_tree.num_leaves], refs[inputs + lane_tree.num_leaves :]
    group, start = pl.program_id(0), pl.program_id(1) * WARP
    here, lane = pl.ds(start, WARP), start + jnp.arange(WARP, dtype=jnp.int32)
    first, last, t0 = times[0], times[1], times[2]
    common = _stored(words, words_refs)
    sizes = [ref.shape[1:-1] for ref in lane_refs]

    def samples(i: Any) -> list[Any]:
        at = jnp.minimum(i, shape.block - 1)
        return [ref[(group, at, *j, here)] for ref in noise_refs for j in np.ndindex(ref.shape[2:-1])]

    def one(i: Any, carry: Any) -> Any:
        numbers, ahead, pick, row = carry
        now = t0 + 1 + i
        drawn = _gather(noise_tree, [ref.shape[2:-1] for ref in noise_refs], ahead)
        ahead = samples(i + 1)
        before = _gather(lane_tree, sizes, numbers)
        moved, size = apply(
            lambda words, t, lane, samples: advance_lane(whole(words), shape, t, lane, samples),
            (common, now),
            (before, drawn),
        )
        better = (size[()] < before.seen.best[()]) & (moved.seen.diverged[()] == 0)
        seen = moved.seen._replace(
            best=_choose(better, size, before.seen.best),
            best_step=filled((), lambda _: jnp.where(better, now, before.seen.best_step[()])),
            best_x=jax.tree.map(partial(_choose, better), moved.state.x_prev, before.seen.best_x),
        )
        due = pick == now
        for ref, x in zip(kept_out, jax.tree.leaves(moved.state.x_prev), strict=True):
            for j in np.ndindex(x.shape):
                triton.store(ref.at[(group, row, *j, lane)], jnp.broadcast_to(x[j], (WARP,)), mask=due)
        row = jnp.where(due, row + 1, row)
        more = due & (row < picks.shape[1])
        coming = triton.load(picks.at[(group, jnp.minimum(row, picks.shape[1] - 1), lane)], mask=more, other=NEVER)
        pick = jnp.where(due, coming, pick)
        return _numbers(moved._replace(seen=seen)), ahead, pick, row

    row = sum((picks[group, r, here] <= t0 + first).astype(jnp.int32) for r in range(picks.shape[1]))
    coming = triton.load(
        picks.at[(group, jnp.minimum(row, picks.shape[1] - 1), lane)], mask=row < picks.shape[1], other=NEVER
    )
    entry = [ref[(group, *i, here)] for ref, size in zip(lane_refs, sizes, strict=True) for i in np.ndindex(size)]
    numbers, *_ = jax.lax.fori_loop(first, last, one, (entry, samples(first), coming, row))
    following = iter(numbers)
    for ref, size in zip(lane_out, sizes, strict=True):
        for i in np.ndindex(size):
            ref[(group, *i, here)] = next(following)


def _stored(words: Words, refs: Any) -> Any:
    """The problem's and the algorithm's numbers as arrays that are read number by number."""

    def store(leaf: Any, ref: Any) -> Stored:
        scalar = np.ndim(leaf) == 0

        def read(i: tuple[Any, ...]) -> Any:
            return ref[0] if scalar else ref[i]

        if np.size(leaf) <= PRELOADED:
            known = filled(np.shape(leaf), read)
            return Stored(leaf, lambda i: known[i] if all(isinstance(n, int) for n in i) else read(i))
        return Stored(leaf, read)

    leaves, structure = jax.tree.flatten(words)
    return jax.tree.unflatten(structure, [store(leaf, ref) for leaf, ref in zip(leaves, refs, strict=True)])


def _gather(structure: Any, sizes: list[tuple[int, ...]], numbers: list[Any]) -> Any:
    following = iter(numbers)
    return jax.tree.unflatten(structure, [filled(size, lambda _: next(following)) for size in sizes])


def _numbers(tree: Any) -> list[Any]:
    return [jnp.broadcast_to(n, (WARP,)) for leaf in jax.tree.leaves(tree) for n in leaf.flat]


def _choose(take: Any, new: Parts, old: Parts) -> Parts:
    return filled(new.shape, lambda i: jnp.where(take, new[i], old[i]))
