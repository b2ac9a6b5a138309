"""From step to step: the loops of a run on a CPU, or of one whose state is too large for a GPU's registers.

Which instructions take a step is up to the step's number alone: another copy of the same operations may be rounded
otherwise. All trip counts are data: one compilation serves every horizon.

On a CPU the loops, if possible with the drawing of their noise and with the records, are handed to the compiler as one
kernel; without that, XLA dispatches every small operation of every step. Loops with operations that such a kernel
cannot hold are compiled in the ordinary way, and their noise is drawn for a block of steps at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from normstorm._shared.jax_internals import one_kernel

from .lanes import Group, Kept, Lane, count_over, first, first_step, mark, move, note, row_of, rows_done, select, take
from .noise import draw_block, nothing_drawn, of_step, reach, refill, source
from .program import Shape, Words

Tree = Any


class Supply(NamedTuple):
    """Where samples come from, by way of what is held: ready(held, t) has those of step t + 1, of_step(held, t) too.

    So it has those of all following steps up to reach(held).
    """

    ready: Callable[[Tree, Any], Tree]
    reach: Callable[[Tree], Any]
    of_step: Callable[[Tree, Any], Tree]


def _drawn_by_and_by(words: Words, shape: Shape, seeds: jax.Array, live: Any) -> Supply:
    given = source(shape, seeds, live)
    return Supply(partial(refill, words, shape, given), partial(reach, shape, given), partial(of_step, shape))


def _of_block(noise: Tree, t0: Any, end: Any) -> Supply:
    """Nothing is held: noise[i] belongs to step t0 + 1 + i, for all steps up to `end`."""

    def of_step(_: Tree, t: Any) -> Tree:
        return jax.tree.map(lambda b: jax.lax.dynamic_index_in_dim(b, t - t0, 0, keepdims=False), noise)

    return Supply(lambda held, _: held, lambda _: end, of_step)


def _some_dead(lanes: Lane) -> jax.Array:
    return jnp.any(lanes.seen.diverged != 0)


def _one_by_one(
    words: Words, shape: Shape, supply: Supply, until: Any, t: Any, lanes: Lane, held: Tree
) -> tuple[Lane, Tree]:
    """Steps t + 1 .. until."""

    def count(lanes: Lane, size: jax.Array, g: jax.Array, cost: jax.Array) -> Lane:
        return lanes._replace(seen=lanes.seen._replace(cost=lanes.seen.cost + cost))

    def one(held: Tree, t: Any, lanes: Lane) -> Lane:
        *moved, due = move(words, shape, t + 1, lanes, supply.of_step(held, t))
        noted: Lane = jax.lax.cond(due | _some_dead(lanes), partial(note, shape, t + 1), count, *moved)
        return noted

    def piece(carry: tuple[Any, Lane, Tree]) -> tuple[Any, Lane, Tree]:
        t, lanes, held = carry
        held = supply.ready(held, t)
        then = jnp.minimum(until, supply.reach(held))
        return then, jax.lax.fori_loop(t, then, partial(one, held), lanes), held

    if not shape.whole:
        return jax.lax.fori_loop(t, until, partial(one, held), lanes), held
    _, lanes, held = jax.lax.while_loop(lambda carry: carry[0] < until, piece, (t, lanes, held))
    return lanes, held


class Going(NamedTuple):
    """Lanes after t steps, their x and x_prev apart, with ||m_t||, ||grad F(x_t)|| and whether this is to be noted.

    points   two places: x is in the first one if t is even, else in the second one
    """

    t: Any
    due: jax.Array
    points: tuple[Tree, Tree]
    lanes: Lane
    size: jax.Array
    g: jax.Array


def _in_turns(
    words: Words, shape: Shape, supply: Supply, until: Any, t: Any, lanes: Lane, held: Tree
) -> tuple[Lane, Tree]:
    """The same where a step's cost is known and its x becomes the next one's x_prev: it writes over the older x.

    Passed on from place to place, x would be copied three times a step. Two copies of the step have their turns, and
    what is to be noted, which is rare, is noted outside of their loop.
    """

    def step(held: Tree, place: int, now: Going) -> Going:
        x, x_prev = now.points[place], now.points[1 - place]
        samples = supply.of_step(held, now.t)
        lanes, size, g, _, due = move(words, shape, now.t + 1, _with_points(now.lanes, x, x_prev), samples)
        new = lanes.state.x
        points = (new, x) if place else (x, new)
        return Going(now.t + 1, due, points, _with_points(lanes, None, None), size, g)

    def quiet(end: Any, now: Going) -> Any:
        return (now.t < end) & ~now.due

    def pair(held: Tree, then: Any, now: Going) -> Going:
        # Steps of an even t and of an odd one in two branches one after the other: XLA copies nothing.
        now = jax.lax.cond(now.t & 1 == 0, partial(step, held, 0), lambda now: now, now)
        after: Going = jax.lax.cond(quiet(then, now), partial(step, held, 1), lambda now: now, now)
        return after

    def piece(end: Any, carry: tuple[Going, Tree]) -> tuple[Going, Tree]:
        now, held = carry
        held = supply.ready(held, now.t)
        then = jnp.minimum(end, supply.reach(held))
        return jax.lax.while_loop(partial(quiet, then), partial(pair, held, then), now), held

    def stretch(carry: tuple[Any, Lane, Tree]) -> tuple[Any, Lane, Tree]:
        """As far as there is nothing to note, and one step more. Of a lane that has diverged every step is noted."""
        t, lanes, held = carry
        dead, nothing = _some_dead(lanes), jnp.zeros_like(lanes.seen.best)
        points = _by_parity(t, lanes.state.x, lanes.state.x_prev)
        start = Going(t, jnp.asarray(False), points, _with_points(lanes, None, None), nothing, nothing)
        end = jnp.where(dead, t + 1, until)
        now, held = jax.lax.while_loop(lambda carry: quiet(end, carry[0]), partial(piece, end), (start, held))
        noting = now.due | dead
        asked = lanes.seen.cost + jnp.uint32(shape.cost) * (now.t - t - noting).astype(jnp.uint32)
        lanes = _with_points(now.lanes, *_by_parity(now.t, *now.points))
        lanes = lanes._replace(seen=lanes.seen._replace(cost=asked))
        noted = partial(note, shape, now.t, cost=jnp.full_like(asked, shape.cost))
        return now.t, jax.lax.cond(noting, noted, lambda lanes, size, g: lanes, lanes, now.size, now.g), held

    _, lanes, held = jax.lax.while_loop(lambda carry: carry[0] < until, stretch, (t, lanes, held))
    return lanes, held


def _with_points(lanes: Lane, x: Tree, x_prev: Tree) -> Lane:
    return lanes._replace(state=lanes.state._replace(x=x, x_prev=x_prev))


def _by_parity(t: Any, first: Tree, second: Tree) -> tuple[Tree, Tree]:
    """The two as they are if t is even, else changed over."""
    even = t & 1 == 0
    return select(even, first, second), select(even, second, first)


def _by_stretches(
    words: Words, shape: Shape, supply: Supply, end: Any, lanes: Lane, kept: Kept, t: Any, held: Tree
) -> tuple[Lane, Kept, Tree]:
    """Steps up to `end`, from one at which some lane's iterate is taken to the next."""
    take_steps = partial(_in_turns if shape.turns else _one_by_one, words, shape, supply)

    def begin(held: Tree, t: Any, lanes: Lane) -> Lane:
        return first_step(words, shape, lanes, supply.of_step(held, t))

    def stretch(carry: tuple[Lane, Kept, Any, Any, Tree]) -> tuple[Lane, Kept, Any, Any, Tree]:
        lanes, kept, row, t, held = carry
        coming = row_of(kept.step, row)
        until = jnp.minimum(end, jnp.min(jnp.where(coming > t, coming, end)))
        if shape.whole:
            held = supply.ready(held, t)
            lanes = jax.lax.fori_loop(t, jnp.maximum(t, 1), partial(begin, held), lanes)
            t = jnp.maximum(t, 1)
        lanes, held = take_steps(until, t, lanes, held)
        taken = partial(take, shape, lanes, row=row, t=until)
        kept = jax.lax.cond(jnp.any(coming == until), taken, lambda kept: kept, kept)
        return lanes, kept, row + rows_done(coming, until), until, held

    start = lanes, kept, rows_done(kept.step, t), t, held
    after, kept, _, _, held = jax.lax.while_loop(lambda carry: carry[3] < end, stretch, start)
    return count_over(lanes, after), kept, held


def advance(words: Words, shape: Shape, stop: Any, dates: jax.Array, group: Group, live: Any) -> Group:
    """Go on until `stop` steps are done. Only the first `live` lanes hold seeds."""
    stop = jnp.where(live > 0, stop, group.t)

    def block(group: Group) -> Group:
        t0, seeds = group.t, group.lanes.seed
        empty: Callable[[], Tree]
        if shape.whole:
            end = jnp.minimum(t0 + shape.span, stop)
            supply, empty = _drawn_by_and_by(words, shape, seeds, live), partial(nothing_drawn, words, shape)
        else:
            end = jnp.minimum(t0 + shape.block, stop)
            noise = draw_block(words, shape, seeds, live, t0)
            supply, empty = _of_block(noise, t0, end), tuple
            start = partial(first, words, shape, samples=jax.tree.map(lambda b: b[0], noise))
            group = jax.lax.cond(t0 == 0, start, lambda group: group, group)

        def segment(carry: tuple[Group, Tree]) -> tuple[Group, Tree]:
            """To the next step that is recorded."""
            group, held = carry
            until = jnp.minimum(end, dates[group.row])
            go: Any = partial(_by_stretches, words, shape, supply, until)
            before = group.lanes, group.kept, group.t
            if shape.kernel and not shape.marks:
                lanes, kept = one_kernel(lambda *before: go(*before, empty())[:2], *before)
            else:
                lanes, kept, held = go(*before, held)
            return mark(words, shape, dates, group._replace(lanes=lanes, kept=kept, t=until)), held

        def segments(group: Group) -> Group:
            held: Tree = empty() if shape.marks else ()
            # Step 1 is always recorded.
            return jax.lax.while_loop(lambda c: (c[0].t < end) | (c[0].row == 0), segment, (group, held))[0]

        done: Group = one_kernel(segments, group) if shape.kernel and shape.marks else segments(group)
        return done

    return jax.lax.while_loop(lambda g: g.t < stop, block, group)
