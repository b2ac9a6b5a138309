"""The compiled part of a run: a fixed number of lanes, one seed in each, advanced together.

Every seed always goes through the same compiled program of the same shape, whatever the number of seeds, so its
numbers cannot depend on its company. Noise is a pure function of (seed, step); it is drawn for a block of steps at
a time, one live lane after the other (an empty lane costs no noise), and consumed by slices. All trip counts are
data: one compilation serves every horizon.

On a CPU the loop over steps is handed to the compiler as one call that must not be inlined and that is compiled
into a single kernel; without it XLA dispatches every small operation of every step. Loops with operations that
such a kernel cannot hold are compiled in the ordinary way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental.layout import Layout, with_layout_constraint
from jax.experimental.xla_metadata import set_xla_metadata

from .core import Algorithm, State
from .geometries import norm
from .random import step_key

Tree = Any
_marks: Any = set_xla_metadata


class Words(NamedTuple):
    """What is run on what."""

    problem: Any
    algorithm: Algorithm


class Shape(NamedTuple):
    """The program's fixed sizes.

    lanes    seeds advanced together: a group
    groups   groups served one after the other by one call, to spread its overhead
    block    steps whose noise is drawn at once
    axis     where the lanes lie in every array: last for small problems (-1), first for large ones (0)
    average  whether grad F is asked at every step (mean and minimum) or only at recorded ones
    exact    whether the problem knows grad F;   valued   whether it knows F
    kernel   whether the loop over steps is one kernel
    """

    lanes: int
    groups: int
    block: int
    axis: int
    average: bool
    exact: bool
    valued: bool
    kernel: bool


class Seen(NamedTuple):
    """What was seen along the way, one entry per lane; `diverged` is the step of the first non-finite number, or 0."""

    total: jax.Array
    lost: jax.Array
    least: jax.Array
    cost: jax.Array
    carry: jax.Array
    diverged: jax.Array
    best: jax.Array
    best_step: jax.Array
    best_x: Tree


class Lane(NamedTuple):
    """One seed: its two key words, the algorithm's state, what was seen."""

    seed: jax.Array
    state: State
    seen: Seen


class Records(NamedTuple):
    """Rows written at recorded steps (last axis: lanes; the last row is a waste bin), and one iterate per stratum."""

    grad_norm: jax.Array
    value: jax.Array
    error: jax.Array
    cost: jax.Array
    carry: jax.Array
    candidates: Tree


class Events(NamedTuple):
    """Steps at which something is written, in order, ended by one that never comes.

    step     the step;   row      its row among the records, or the waste bin
    stratum  the stratum it lies in;   pick   (strata, lanes) the step at which a lane's candidate is taken
    """

    step: jax.Array
    row: jax.Array
    stratum: jax.Array
    pick: jax.Array


def _select(keep: jax.Array, new: Tree, old: Tree) -> Tree:
    return jax.tree.map(lambda n, o: jnp.where(keep, n, o), new, old)


def _see(words: Words, shape: Shape, seen: Seen, state: State, cost: Any, t: Any) -> Seen:
    """Account for step t, which asked `cost` sample gradients at x_t = state.x_prev and found m_t = state.m."""
    size = norm(state.m)
    total, lost, least = seen.total, seen.lost, seen.least
    finite = jnp.isfinite(size)
    if shape.average:
        g = norm(words.problem.full_grad(state.x_prev))
        finite &= jnp.isfinite(g)
        # Kahan's sum: in single precision a plain one stops growing after some 10^7 steps.
        term = g - lost
        total = seen.total + term
        lost = (total - seen.total) - term
        least = jnp.where(g < least, g, least)
    alive = seen.diverged == 0
    count = seen.cost + jnp.where(alive, jnp.asarray(cost, jnp.uint32), 0)
    carry = seen.carry + (count < seen.cost).astype(jnp.uint32)
    now = jnp.asarray(t, jnp.int32)
    better = size < seen.best
    return Seen(
        total,
        lost,
        least,
        count,
        carry,
        jnp.where(alive & ~finite, now, seen.diverged),
        jnp.where(better, size, seen.best),
        jnp.where(better, now, seen.best_step),
        _select(better, state.x_prev, seen.best_x),
    )


def _advance_lane(words: Words, shape: Shape, t: Any, lane: Lane, samples: Tree) -> Lane:
    state, cost = words.algorithm.step(words.problem, lane.state, samples, t)
    return _settle(lane.seed, state, _see(words, shape, lane.seen, state, cost, t))


def _settle(seed: jax.Array, state: State, seen: Seen) -> Lane:
    """A lane that has diverged stays at x_t; that is also what the next step finds as x_{t-1}."""
    return Lane(seed, state._replace(x=_select(seen.diverged == 0, state.x, state.x_prev)), seen)


def _put(table: jax.Array, row: jax.Array, i: Any) -> Any:
    return jax.lax.dynamic_update_index_in_dim(table, row, i, 0)


def _over_lanes(shape: Shape, function: Callable[..., Any], *lanes: Any) -> Any:
    """vmap over the lanes' axis."""
    return jax.vmap(function, in_axes=shape.axis, out_axes=shape.axis)(*lanes)


def _one_kernel(function: Callable[[], Any]) -> Any:
    """Compile `function` as one CPU kernel. The inner marks undo the outer ones for the operations inside."""

    def body() -> Any:
        with _marks(xla_cpu_small_call="false", inlineable="true"):
            return function()

    with _marks(xla_cpu_small_call="true", inlineable="false"):
        return jax.jit(body)()


def _laid(leaf: jax.Array, order: Sequence[int]) -> Any:
    """Fix the order in memory, slowest axis first; left alone, the compiler mixes orders and vectorises less."""
    return with_layout_constraint(leaf, Layout(tuple(order)))  # type: ignore[no-untyped-call]


def _barrier(tree: Tree) -> Tree:
    """Keep what comes before apart from what comes after: fused, neither would run along memory."""
    return jax.lax.optimization_barrier(tree)  # type: ignore[no-untyped-call]


def _draw_block(words: Words, shape: Shape, seeds: jax.Array, live: Any, t: Any) -> Tree:
    """Samples of steps t + 1 .. t + block for every live lane, the step on the first axis."""
    lane_axis = shape.axis

    def draw(seed: jax.Array) -> Tree:
        steps = t + 1 + jnp.arange(shape.block, dtype=jnp.int32)
        drawn = jax.vmap(lambda step: words.algorithm.draw(words.problem, step_key(seed, step)))(steps)
        if lane_axis == 0:
            return drawn
        # The innermost loop must run over many steps, not over a few coordinates.
        return jax.tree.map(lambda s: jnp.moveaxis(_laid(s, (*range(1, s.ndim), 0)), 0, -1), drawn)

    by_lane = seeds if lane_axis == 0 else seeds.T
    empty = jax.tree.map(lambda s: jnp.zeros((shape.lanes, *s.shape), s.dtype), jax.eval_shape(draw, by_lane[0]))

    def fill(lane: Any, buffer: Tree) -> Tree:
        return jax.tree.map(lambda b, s: _put(b, s, lane), buffer, draw(by_lane[lane]))

    full = _barrier(jax.lax.fori_loop(0, live, fill, empty))
    if lane_axis == 0:
        return jax.tree.map(lambda b: jnp.swapaxes(b, 0, 1), full)
    return _barrier(jax.tree.map(lambda b: jnp.swapaxes(b, 0, -1), full))


def _steps(words: Words, shape: Shape, lanes: Lane, noise: Tree, t0: Any, t: Any, end: Any) -> Lane:
    """Steps t + 1 .. end; noise[i] belongs to step t0 + 1 + i."""

    def one(i: Any, lanes: Lane) -> Any:
        samples = jax.tree.map(lambda b: jax.lax.dynamic_index_in_dim(b, i, 0, keepdims=False), noise)
        moved = _over_lanes(shape, partial(_advance_lane, words, shape, t0 + 1 + i), lanes, samples)
        return moved._replace(state=jax.tree.map(lambda v: _laid(v, range(v.ndim)), moved.state))

    def loop() -> Any:
        return jax.lax.fori_loop(t - t0, end - t0, one, lanes)

    done: Lane = _one_kernel(loop) if shape.kernel else loop()
    return done


def _record(words: Words, shape: Shape, lanes: Lane, records: Records, row: Any) -> Records:
    """Write what is known of x_t and m_t into `row`."""

    def look(lane: Lane) -> tuple[jax.Array, ...]:
        x, alive = lane.state.x_prev, lane.seen.diverged == 0
        value = grad_norm = error = jnp.full_like(lane.seen.best, jnp.nan)
        if shape.valued:
            value = words.problem.value(x)
        if shape.exact:
            gradient = words.problem.full_grad(x)
            grad_norm, error = norm(gradient), norm(jax.tree.map(jnp.subtract, lane.state.m, gradient))
        return tuple(jnp.where(alive, v, jnp.nan).astype(lane.seen.best.dtype) for v in (grad_norm, value, error))

    # Scalars have no other axis, so that the lanes' axis is the last one in either layout.
    entries = (*_over_lanes(shape, look, lanes), lanes.seen.cost, lanes.seen.carry)
    written = [_put(table, entry, row) for table, entry in zip(records[:-1], entries, strict=True)]
    return Records._make([*written, records.candidates])


def _take(shape: Shape, lanes: Lane, candidates: Tree, picked: jax.Array, stratum: Any) -> Tree:
    """Keep x_t as the stratum's candidate in the lanes that picked t."""

    def put(table: jax.Array, x: jax.Array) -> Any:
        old = jax.lax.dynamic_index_in_dim(table, stratum, 0, keepdims=False)
        new = _over_lanes(shape, jnp.where, picked, x, old)
        return _put(table, new, stratum)

    return jax.tree.map(put, candidates, lanes.state.x_prev)


class Carry(NamedTuple):
    """The outer loops' state: t steps are done and `event` is the next event."""

    lanes: Lane
    records: Records
    t: jax.Array
    event: jax.Array


def _mark(words: Words, shape: Shape, events: Events, carry: Carry) -> Carry:
    """If the step just done is an event, write it."""
    due = events.step[carry.event] == carry.t
    row, stratum = events.row[carry.event], events.stratum[carry.event]
    picked = events.pick[stratum] == carry.t
    records = jax.lax.cond(
        due & (row < carry.records.grad_norm.shape[0] - 1),
        lambda r: _record(words, shape, carry.lanes, r, row),
        lambda r: r,
        carry.records,
    )
    candidates = jax.lax.cond(
        due & picked.any(),
        lambda c: _take(shape, carry.lanes, c, picked, stratum),
        lambda c: c,
        records.candidates,
    )
    return Carry(carry.lanes, records._replace(candidates=candidates), carry.t, carry.event + due)


def begin(words: Words, shape: Shape, x: Tree, seeds: jax.Array, records: Records, events: Events) -> Carry:
    """Step 1 from the same x_1 in every lane."""

    def draw(seed: jax.Array) -> Tree:
        return words.algorithm.draw(words.problem, step_key(seed, 1))

    def first(seed: jax.Array, samples: Tree) -> Lane:
        state, cost = words.algorithm.first(words.problem, x, samples)
        zero = jnp.zeros_like(norm(state.m))
        count = jnp.zeros_like(seed[0])
        step = count.astype(jnp.int32)
        nothing = Seen(zero, zero, zero + jnp.inf, count, count, step, zero + jnp.inf, step, x)
        return _settle(seed, state, _see(words, shape, nothing, state, cost, 1))

    samples = _barrier(_over_lanes(shape, draw, seeds))
    zero = jnp.zeros((), jnp.int32)
    return _mark(words, shape, events, Carry(_over_lanes(shape, first, seeds, samples), records, zero + 1, zero))


def advance(words: Words, shape: Shape, stop: Any, carry: Carry, live: Any, events: Events) -> Carry:
    """Go on until `stop` steps are done. Only the first `live` lanes hold seeds."""
    stop = jnp.where(live > 0, stop, carry.t)

    def block(carry: Carry) -> Carry:
        t0 = carry.t
        end = jnp.minimum(t0 + shape.block, stop)
        noise = _draw_block(words, shape, carry.lanes.seed, live, t0)

        def segment(carry: Carry) -> Carry:
            until = jnp.minimum(end, events.step[carry.event])
            lanes = _steps(words, shape, carry.lanes, noise, t0, carry.t, until)
            return _mark(words, shape, events, carry._replace(lanes=lanes, t=until))

        return jax.lax.while_loop(lambda c: c.t < end, segment, carry)

    return jax.lax.while_loop(lambda c: c.t < stop, block, carry)
