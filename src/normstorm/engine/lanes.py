"""A fixed number of lanes, one seed in each, and one step of all of them together; `loop` goes from step to step.

Every seed always goes through the same compiled program of the same shape, whatever the number of seeds, so that its
numbers cannot depend on its company.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from normstorm._shared.jax_internals import after, lengthened
from normstorm.algorithms.core import State
from normstorm.algorithms.geometries import norm

from .lanes_last import over_lanes
from .program import Shape, Words

Tree = Any
NEVER = np.iinfo(np.int32).max  # a step that does not come


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
    """Rows written at recorded steps, and one more; the last axis is that of the lanes."""

    grad_norm: jax.Array
    mean: jax.Array
    value: jax.Array
    error: jax.Array
    cost: jax.Array
    carry: jax.Array


class Kept(NamedTuple):
    """Iterates kept on the way, (R, ...) in the lanes' layout, and the steps (R, lanes) at which they are taken.

    All steps of a row come before those of the next one.
    """

    x: Tree
    step: jax.Array


class Group(NamedTuple):
    """All that one group of lanes carries along: t steps are done and `row` is the next row of the records."""

    lanes: Lane
    kept: Kept
    records: Records
    t: jax.Array
    row: jax.Array


def select(keep: jax.Array, new: Tree, old: Tree) -> Tree:
    return jax.tree.map(lambda n, o: jnp.where(keep, n, o), new, old)


def _norms(words: Words, shape: Shape, state: State) -> tuple[jax.Array, jax.Array]:
    """||m_t||, and ||grad F(x_t)|| where it is asked at every step (else the former again); x_t is state.x_prev."""
    size = norm(state.m)
    return size, norm(words.problem.full_grad(state.x_prev)) if shape.average else size


def _sum_up(shape: Shape, seen: Seen, g: jax.Array) -> Seen:
    """Mean and minimum of ||grad F||."""
    if not shape.average:
        return seen
    total, lost = seen.total + g, seen.lost
    if g.dtype == jnp.float32:
        # Kahan's sum: a plain one stops growing after some 10^7 steps.
        term = g - lost
        total = seen.total + term
        lost = (total - seen.total) - term
    return seen._replace(total=total, lost=lost, least=jnp.where(g < seen.least, g, seen.least))


def _settle(t: Any, lane: Lane, size: jax.Array, g: jax.Array, cost: Any) -> Lane:
    """Account for step t, which asked `cost` sample gradients.

    A lane that has diverged stays at x_t; that is also what the next step finds as x_{t-1}.
    """
    state, seen = lane.state, lane.seen
    alive, finite = seen.diverged == 0, jnp.isfinite(size) & jnp.isfinite(g)
    count = seen.cost + jnp.where(alive, jnp.asarray(cost, jnp.uint32), 0)
    diverged = jnp.where(alive & ~finite, jnp.asarray(t, jnp.int32), seen.diverged)
    x = select(diverged == 0, state.x, state.x_prev)
    return lane._replace(state=state._replace(x=x), seen=seen._replace(cost=count, diverged=diverged))


def _moved(words: Words, shape: Shape, lane: Lane, state: State) -> tuple[Lane, jax.Array, jax.Array]:
    """The lane with its new state and its sums; also ||m_t|| and ||grad F(x_t)||."""
    size, g = _norms(words, shape, state)
    return lane._replace(state=state, seen=_sum_up(shape, lane.seen, g)), size, g


def advance_lane(words: Words, shape: Shape, t: Any, lane: Lane, samples: Tree) -> tuple[Lane, jax.Array]:
    """One step of one lane; also ||m_t||."""
    state, cost = words.algorithm.step(words.problem, lane.state, samples, t)
    moved, size, g = _moved(words, shape, lane, state)
    return _settle(t, moved, size, g, cost), size


def _keep_best(shape: Shape, lanes: Lane, size: jax.Array, t: Any) -> Lane:
    """Keep x_t in the lanes where ||m_t|| = `size` is the smallest so far; one that has diverged keeps what it has."""
    seen, better = lanes.seen, (size < lanes.seen.best) & (lanes.seen.diverged == 0)
    best_x = _over_lanes(shape, select, better, lanes.state.x_prev, seen.best_x)
    step = jnp.where(better, jnp.asarray(t, jnp.int32), seen.best_step)
    seen = seen._replace(best=jnp.where(better, size, seen.best), best_step=step, best_x=best_x)
    return lanes._replace(seen=seen)


def move(
    words: Words, shape: Shape, t: Any, lanes: Lane, samples: Tree
) -> tuple[Lane, jax.Array, jax.Array, jax.Array, jax.Array]:
    """One step of all lanes; also ||m_t||, ||grad F(x_t)||, what the step cost, and whether there is more to note.

    In most steps there is not.
    """

    def one(state: State, samples: Tree) -> tuple[State, Any, Any, Any]:
        moved, cost = words.algorithm.step(words.problem, state, samples, t)
        # The exact gradient last: what the step works on is then still near the core.
        late = jax.tree.map(lambda x: after(norm(moved.m), x, zero), moved.x_prev)
        return moved, *_norms(words, shape, moved._replace(x_prev=late)), jnp.asarray(cost, jnp.uint32)

    zero = t >> 31
    state, size, g, cost = _over_lanes(shape, one, lanes.state, samples, zero=zero)
    due = _notable(lengthened(size, zero), g, lanes.seen.best)
    return lanes._replace(state=state, seen=_sum_up(shape, lanes.seen, g)), size, g, cost, due


def note(shape: Shape, t: Any, lanes: Lane, size: jax.Array, g: jax.Array, cost: Any) -> Lane:
    """Account for step t of all lanes."""
    settled = _over_lanes(shape, partial(_settle, t), lanes, size, g, cost)
    return _keep_best(shape, settled, size, t)


def _notable(size: jax.Array, g: jax.Array, best: jax.Array) -> jax.Array:
    """Whether some lane has size < best, or a number that is not finite.

    Numbers that are not negative are ordered as their bits are, infinity and NaN come last, and NaN may have a sign. So
    sign bits tell, and integers, unlike truth values, are put together by few instructions.
    """
    below = np.asarray(np.inf, size.dtype).view(f"int{8 * size.dtype.itemsize}") - 1
    s, g, b = (jax.lax.bitcast_convert_type(v, below.dtype) for v in (size, g.astype(size.dtype), best))
    told: jax.Array = jax.lax.reduce_or((s - b) | (below - s) | (below - g) | g, (0,)) < 0
    return told


def rows_done(steps: jax.Array, t: Any) -> jax.Array:
    """How many rows of such steps have some, and none after t; lanes without a seed have none."""
    done = jnp.any(steps <= t, axis=-1) & ~jnp.any((steps > t) & (steps < NEVER), axis=-1)
    return jnp.sum(done, dtype=jnp.int32)


def take(shape: Shape, lanes: Lane, kept: Kept, row: Any, t: Any) -> Kept:
    """Keep x_t in the lanes of a row where it was to be taken."""
    due = row_of(kept.step, row) == t

    def put(table: jax.Array, x: jax.Array) -> Any:
        new = _over_lanes(shape, select, due, x, row_of(table, row))
        return jax.lax.dynamic_update_index_in_dim(table, new, row, 0)

    return kept._replace(x=jax.tree.map(put, kept.x, lanes.state.x_prev))


def row_of(table: jax.Array, row: Any) -> Any:
    return jax.lax.dynamic_index_in_dim(table, row, 0, keepdims=False)


def _over_lanes(shape: Shape, function: Callable[..., Any], *lanes: Any, zero: Any = None) -> Any:
    """vmap over the lanes' axis; for `zero` see `over_lanes`."""
    if shape.axis < 0:
        return over_lanes(function, *lanes, zero=zero)
    return jax.vmap(function, in_axes=shape.axis, out_axes=shape.axis)(*lanes)


def count_over(before: Lane, after: Lane) -> Lane:
    """Carry to the upper word of the cost; a block of steps adds less than 2^32 (see `layout`)."""
    carry = after.seen.carry + (after.seen.cost < before.seen.cost).astype(jnp.uint32)
    return after._replace(seen=after.seen._replace(carry=carry))


def _look(words: Words, shape: Shape, lanes: Lane, t: Any) -> tuple[jax.Array, ...]:
    """What is known of x_t and m_t, in the order of the records."""

    def look(lane: Lane) -> tuple[jax.Array, ...]:
        x, alive = lane.state.x_prev, lane.seen.diverged == 0
        value = grad_norm = error = mean = jnp.full_like(lane.seen.best, jnp.nan)
        if shape.valued:
            value = words.problem.value(x)
        if shape.exact:
            gradient = words.problem.full_grad(x)
            grad_norm, error = norm(gradient), norm(jax.tree.map(jnp.subtract, lane.state.m, gradient))
        if shape.average:
            mean = (lane.seen.total - lane.seen.lost) / t
        seen = (jnp.where(alive, v, jnp.nan) for v in (grad_norm, mean, value, error))
        return *(v.astype(lane.seen.best.dtype) for v in seen), lane.seen.cost, lane.seen.carry

    # Scalars have no other axis, so that the lanes' axis is the last one in either layout.
    found: tuple[jax.Array, ...] = _over_lanes(shape, look, lanes)
    return found


def mark(words: Words, shape: Shape, dates: jax.Array, group: Group) -> Group:
    """If the step just done is to be recorded, write its row; else what is written there is written over later."""
    due = dates[group.row] == group.t
    nothing = tuple(jnp.zeros_like(table[0]) for table in group.records)
    entries = jax.lax.cond(due, lambda: _look(words, shape, group.lanes, group.t), lambda: nothing)
    put = partial(jax.lax.dynamic_update_index_in_dim, axis=0, index=group.row)
    records = (put(table, entry) for table, entry in zip(group.records, entries, strict=True))
    return group._replace(records=Records(*records), row=group.row + due)


def first_step(words: Words, shape: Shape, lanes: Lane, samples: Tree) -> Lane:
    """Step 1, from x_1 in state.x."""

    def step(lane: Lane, samples: Tree) -> tuple[Lane, jax.Array]:
        state, cost = words.algorithm.first(words.problem, lane.state.x, samples)
        moved, size, g = _moved(words, shape, lane, state)
        return _settle(1, moved, size, g, cost), size

    stepped, size = _over_lanes(shape, step, lanes, samples)
    return _keep_best(shape, stepped, size, 1)


def first(words: Words, shape: Shape, group: Group, samples: Tree) -> Group:
    """The group after step 1."""
    lanes = first_step(words, shape, group.lanes, samples)
    return group._replace(lanes=lanes, kept=take(shape, lanes, group.kept, 0, 1), t=jnp.ones_like(group.t))
