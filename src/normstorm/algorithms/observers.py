"""What watches a run without changing it: nothing, or the certificate that follows its trajectory.

An observer is a frozen, JAX-registered dataclass with

    first(problem, x, m, grads)                        -> state    after m_1 at x_1
    note(m_prev, m, grads, weight, foreseen, state)    -> state    after m_t, t >= 2, with what is to be known of step t

and, if it is not NoObserver,

    follow(problem, before, x, m, size, noted, grad_norm, count, state)  -> state    after a chunk, from what was noted
    told(state, schedule, its state)  -> the state of a schedule that listens to what is certified
    stopped(state)                    -> whether no further step is to be made

`weight` is that of the fresh gradient in m_t, `foreseen` the one that was known before the samples of step t: the same,
unless the schedule looks at them first. A step notes little, and what can be measured of a chunk at once is not its
business: watching has to be cheap beside a step of a few dozen operations.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from normstorm._shared.pytrees import STATIC, dimension, pytree
from normstorm._shared.validate import OPEN_UNIT, POSITIVE, number, refuse, whole
from normstorm.theory import trajectory
from normstorm.theory.constants import Constants
from normstorm.theory.trajectory import WHOLE, Closure, Followed, Instances, Layout, Observed, Ranges

from .averaging import NoAveraging
from .estimators import Corrected, GradientSample, LargeFirstBatch, TwoBatch
from .filtering import Filtered
from .geometries import Clipped, Euclidean, Normalized, norm
from .schedules import Constant, Halving

Tree = Any
# Parts of all batches together that are looked at one by one; of more, few bounds become better. Ranges from constants,
# which depend on what was certified before, need more of them, and so do the first steps, if the run ends soon. To look
# at parts takes time where batches are small; so in a long run with stated ranges a step is one piece.
PIECES, PIECES_OF_CONSTANTS, PIECES_TO_STOP, LONG_RUN = 5_000, 100_000, 40_000, 2_000


class Noted(NamedTuple):
    """Of step t: the weight, unless it is always the same, sums of squares of the pieces of head and tail, unless the
    step is one piece, and the length of what was not foreseen in m_t, unless all is."""

    alpha: Any = None
    head: Any = None
    tail: Any = None
    rest: Any = None


class Truth(NamedTuple):
    """What is bounded, as far as it is known: the sum of theta_s ||grad F(x_s)|| over s < t, and ||grad F(x_t)||."""

    total: Any
    last: Any


class Watched(NamedTuple):
    """What was followed so far, what the last step noted, and the truth of a run that may end at a target."""

    followed: Followed
    noted: Noted
    truth: Truth | None = None


@pytree
@dataclass(frozen=True)
class NoObserver:
    """Nothing is watched."""

    def first(self, problem: Any, x: Tree, m: Tree, grads: GradientSample) -> Tree:
        return ()

    def note(self, *given: Any) -> Tree:
        return ()


@pytree
@dataclass(frozen=True)
class Trajectory:
    """The certificate of theory.trajectory.

    fixed      what is fixed before the run
    closure    constants from which ranges follow, or None
    first_w    w_1
    alpha      the weight of every step, and length   its length, if they are the same
    settled    the w that is kept once it is reached, if that is known before the run, or None
    target     the run ends when the bound of the average is at most this; None: it does not
    cut        pieces of a step
    local      whether the problem states ranges (`problem.range`);   exact   a function that computes them, or None
    surprised  whether a weight may differ from the one that was foreseen
    block      steps that are followed together
    """

    fixed: Instances
    closure: Closure | None
    first_w: Any
    alpha: Any
    length: Any
    settled: Any
    target: Any
    cut: Layout = field(metadata=STATIC)
    local: bool = field(metadata=STATIC)
    surprised: bool = field(metadata=STATIC)
    block: int = field(metadata=STATIC)
    exact: Any = field(default=None, metadata=STATIC)

    def first(self, problem: Any, x: Tree, m: Tree, grads: GradientSample) -> Watched:
        size = norm(m)
        c, zero = self.closure, jnp.zeros_like(size)
        known = [] if c is None else [Ranges(*(c.sigma0 + c.sigma1 * c.first_gradient,) * 2, zero)]
        known.extend([trajectory.from_problem(*problem.range(x, zero))] if self.local else [])
        known.extend([self._computed(problem, x, x)] if self.exact is not None else [])
        squares: Any = zero
        if self.cut.firsts > 1:
            squares = sum(map(_distances_from_earlier, jax.tree.leaves(grads.pieces))) / self.cut.firsts**2
        fixed = self._in_precision(size)
        begun = trajectory.follow_first_step(
            jnp, fixed, self.cut, self.first_w, trajectory.smallest(jnp, known), size, squares
        )
        parts = self.alpha is None, self._notes_squares, self.cut.tails > 0, self.surprised
        truth = None if self.target is None else Truth(zero, zero)
        return Watched(_cast(begun, size.dtype), Noted(*(zero if part else None for part in parts)), truth)

    def _stated(self, problem: Any, x: Tree, moved: Any) -> Ranges:
        """Those that the problem states at the steps of a chunk.

        If all are equally long, at every second one, which also says what holds at the next. What is not known before a
        step must not be part of its ranges: so not if lengths depend on the samples.
        """
        n = jax.tree.leaves(x)[0].shape[0]
        if moved.ndim or n == 1:
            return trajectory.from_problem(*jax.vmap(problem.range)(x, jnp.broadcast_to(moved, (n,))))
        places = jax.tree.map(lambda x: x[::2], x)
        return trajectory.of_two_steps(jnp, *jax.vmap(problem.range, (0, None))(places, moved))

    def _computed(self, problem: Any, x: Tree, before: Tree) -> Ranges:
        """Those of a function, which also knows grad F(x)."""
        spread, change = self.exact(problem, x, before)
        return Ranges(spread, spread, change)

    @property
    def _notes_squares(self) -> bool:
        return not self.cut.is_whole or self.surprised

    def note(self, m_prev: Tree, m: Tree, grads: GradientSample, weight: Any, foreseen: Any, state: Watched) -> Watched:
        head = tail = rest = None
        if self.surprised:
            change = weight - foreseen
            unforeseen = jax.tree.map(
                lambda g, m, sub, prev: change * (g - m - sub + prev), grads.g, m_prev, grads.g_sub, grads.g_prev
            )
            rest = norm(unforeseen)
            m = jax.tree.map(jnp.subtract, m, unforeseen)
        if self._notes_squares:
            head, tail = self._squares(m_prev, m, grads, foreseen)
        noted = foreseen if self.alpha is None else None, head, tail, rest
        dtype = state.followed.size.dtype
        return state._replace(noted=Noted(*(None if part is None else jnp.asarray(part, dtype) for part in noted)))

    def follow(
        self,
        problem: Any,
        before: tuple[Tree, Tree],
        x: Tree,
        m: Tree,
        size: Any,
        noted: Noted,
        grad_norm: Any,
        count: Any,
        state: Any,
    ) -> Watched:
        """Of one seed: x_t, m_t, ||m_t||, the notes and ||grad F(x_t)|| (or None) of a chunk, (steps, ...), and x, m of
        the step before it. There are fewer steps than in a block, or whole blocks of them; `count` have been made."""
        fixed, n = self._in_precision(size), min(self.block, size.shape[0])
        moved = self._lengths(before[0], x, size)
        known = [self._stated(problem, x, moved)] if self.local else []
        if self.exact is not None:
            earlier = jax.tree.map(lambda first, x: jnp.concatenate([first[None], x[:-1]]), before[0], x)
            known.append(jax.vmap(lambda *at: self._computed(problem, *at))(x, earlier))
        stated = trajectory.smallest(jnp, known) if known else None
        alpha = jnp.asarray(self.alpha, size.dtype) if noted.alpha is None else noted.alpha
        head = _squared_distances(before[1], m) if noted.head is None else noted.head
        seen = Observed(
            alpha, moved, size, head, jnp.zeros((), size.dtype) if noted.tail is None else noted.tail, noted.rest
        )

        # Not in the loop, where XLA would compute it again wherever it is used.
        grown = None if self.settled is None or alpha.ndim else trajectory.growth_of_weights(jnp, alpha, size[:n])

        def block(j: Any, followed: Followed) -> Followed:
            def part(values: Any) -> Any:
                return jax.tree.map(lambda v: jax.lax.dynamic_slice_in_dim(v, j * n, n, 0) if v.ndim else v, values)

            known, mine, steps = part(stated), part(seen), jnp.minimum(count - j * n, n)

            def later(done: Any, values: Any) -> Any:
                return jax.tree.map(lambda v: jnp.roll(v, -done) if v.ndim else v, values)

            def go(followed: Followed, known: Any, mine: Any, steps: Any) -> Followed:
                given = fixed, self.cut, self.closure, known, followed, mine, steps, self.settled, grown
                return _cast(trajectory.follow_block(jnp, *given, least=trajectory.SHORTEST), size.dtype)

            # A loop of one turn, of which XLA does not know that: its arrays are small, so it is executed in plain
            # order on a CPU (see engine.loop).
            start = followed.t
            after = jax.lax.fori_loop(0, jnp.minimum(steps, 1), lambda _, old: go(old, known, mine, steps), followed)

            def rest(followed: Followed) -> Followed:
                """The block has ended where ranges grow, and the next one begins there."""
                done = followed.t - start
                return go(followed, later(done, known), later(done, mine), steps - done)

            ended: Followed = jax.lax.while_loop(lambda followed: followed.t < start + steps, rest, after)
            return ended

        followed = jax.lax.fori_loop(0, -(-count // n), block, state.followed)
        return Watched(followed, state.noted, self._truth(state, followed, grad_norm, count))

    def _truth(self, state: Watched, followed: Followed, grad_norm: Any, count: Any) -> Truth | None:
        """Of a run that may end at a target, whose chunks are one step, the last one's weight is known only now."""
        if state.truth is None:
            return None
        total, last = state.truth
        now = jnp.nan if grad_norm is None else grad_norm[jnp.maximum(count - 1, 0)]
        gained = total + (followed.weight - state.followed.weight) * last
        return Truth(*(jnp.asarray(part, last.dtype) for part in (gained, now)))

    def average(self, state: Watched) -> float:
        """Of ||grad F(x_s)|| with the weights of the bound, on the host; not a number if it is not known."""
        if state.truth is None:
            return math.nan
        last = float(trajectory.last_weight(np, state.followed))
        return (float(state.truth.total) + last * float(state.truth.last)) / (float(state.followed.weight) + last)

    def _lengths(self, before: Tree, x: Tree, size: jax.Array) -> jax.Array:
        """Of the steps of a chunk; if all are meant to be equally long, one number, not measured but rounded up."""
        if self.length is None:
            return jnp.sqrt(_squared_distances(before, x))
        eps = np.finfo(size.dtype).eps
        far = norm(before) + size.shape[0] * self.length
        return jnp.asarray(self.length * (1 + self.fixed.units * eps) + eps * far, size.dtype)

    def told(self, state: Watched, schedule: Any, kept: Tree) -> Tree:
        """The state of a schedule that listens to what is certified."""
        followed = state.followed
        errors = trajectory.errors(jnp, self._in_precision(followed.size), followed)
        return jax.tree.map(lambda new, old: new.astype(old.dtype), schedule.told(errors, followed.curve, kept), kept)

    def stopped(self, state: Watched) -> Any:
        followed = state.followed
        return trajectory.average_bound(jnp, self._in_precision(followed.size), followed) <= self.target

    def _in_precision(self, size: jax.Array) -> Instances:
        return Instances(*(jnp.asarray(part, size.dtype) for part in self.fixed))

    def _squares(self, m_prev: Tree, m: Tree, grads: GradientSample, a: Any) -> tuple[Any, Any]:
        """Sums of squared distances of the pieces of head and tail from their centre."""
        if self.cut.is_whole:
            return norm(jax.tree.map(jnp.subtract, m, m_prev)) ** 2, None
        cut, (here, there, others) = self.cut, grads.pieces
        fresh, pair = a / cut.K, (1 - a) / cut.k
        head = jax.tree.map(lambda g, old, m: cut.head * (pair * (g - old) + fresh * (g - m)), here, there, m_prev)
        tail = jax.tree.map(lambda g, m: cut.tail * fresh * (g - m), others, m_prev) if cut.tails else None
        return norm(head) ** 2, norm(tail) ** 2 if cut.tails else None


def _squared_distances(first: Tree, points: Tree) -> jax.Array:
    """Of each of the points, (steps, ...), from the one before it, squared.

    Sums of squares are products with ones: for rows of few numbers that is quicker than to add them up.
    """

    def squares(before: jax.Array, points: jax.Array) -> jax.Array:
        flat = jnp.concatenate([before[None], points[:1]]), points
        steps = [(part[1:] - part[:-1]).reshape(part.shape[0] - 1, before.size) for part in flat]
        return jnp.concatenate([(step * step) @ jnp.ones(step.shape[1], step.dtype) for step in steps])

    total: Any = sum(map(squares, jax.tree.leaves(first), jax.tree.leaves(points)))
    return jnp.asarray(total)


def _cast(state: Followed, dtype: Any) -> Followed:
    """In the precision of x, whatever that of the constants is; but steps are counted by whole numbers."""
    cast: Followed = jax.tree.map(lambda part: jnp.asarray(part, dtype), state)
    return cast._replace(t=state.t)


def _distances_from_earlier(pieces: jax.Array) -> jax.Array:
    """Sum over j >= 2 of the squared distance of piece j from the mean of those before it."""
    flat = pieces.reshape(pieces.shape[0], -1)
    count = jnp.arange(1, flat.shape[0], dtype=flat.dtype)[:, None]
    return jnp.sum((flat[1:] - jnp.cumsum(flat, 0)[:-1] / count) ** 2)


def uncovered(algorithm: Any) -> str | None:
    """Why the certificate does not hold for the estimates of an algorithm; None if it does."""
    kind = type(algorithm.estimator)
    if kind is Filtered and algorithm.estimator.table:
        return REASONS["GradientTable"]
    if kind in COVERED:  # not what inherits from them: it may change the recursion
        return None
    return REASONS.get(kind.__name__, f"its estimate ({kind.__name__}) is not a STORM recursion")


COVERED = (Corrected, LargeFirstBatch, TwoBatch, Filtered)
REASONS = {
    "Momentum": "its estimate has no correction, so that its error contains differences of grad F, unobserved",
    "Transported": "its gradients are asked ahead of x_t",
    "ScaledCorrection": "its correction is scaled, or made of other samples",
    "MarsCorrection": "its correction is scaled, and its gradients may be clipped",
    "LowRank": "only a part of its estimate goes on",
    "PeriodicRestarts": "its estimate starts anew from a batch of its own, which is not followed",
    "RandomRestarts": "its estimate starts anew from a batch of its own, which is not followed",
    "FullGradient": "its estimate is the gradient itself, and needs no certificate",
    "Snapshot": "its estimate is corrected at a snapshot, not at x_{t-1}",
    "GradientTable": "its estimate is corrected by a table of gradients at many points",
}


def follow(
    algorithm: Any,
    problem: Any,
    x: Tree,
    *,
    steps: int,
    delta: float,
    constants: Constants | None = None,
    target: float | None = None,
    pieces: int | None = None,
    ranges: Callable[[Any, Tree, Tree], tuple[Any, Any]] | None = None,
) -> Any:
    """The same algorithm, watched by the trajectory certificate for a run of about so many steps from x.

    Ranges come from the problem's own method `range`, if it has one, and from `constants` of this start, in the
    almost-sure sense, if they are given and all steps go along m_t (or L1 and sigma1 are 0, which needs no such steps).
    With probability at least 1 - delta the bound of the average holds after every step; the run ends when it is at most
    `target`, if that is given. About `pieces` parts of all the run's batches are looked at one by one, if given.
    `ranges(problem, x, x_prev)` returns a bound of ||grad f(x, s) - grad F(x)|| and one of ||grad f(x, s) - grad
    f(x_prev, s)||, beside the other ranges; that of a finite sum is `normstorm.problems.exact_range`, a pass over all
    rows at both points in every step, which no count of sample gradients contains.
    """
    who = "follow"
    steps = whole(who, "steps", steps)
    pieces = None if pieces is None else whole(who, "pieces", pieces)
    delta = number(who, "delta", delta, OPEN_UNIT)
    target = None if target is None else number(who, "target", target, POSITIVE)
    reason = uncovered(algorithm)
    if reason is not None:
        raise ValueError(f"follow: algorithm must have a STORM estimate; {algorithm.name} has none: {reason}")
    closure, stated = _closure(algorithm, constants), getattr(problem, "range", None)
    if stated is None and closure is None and ranges is None:
        raise ValueError(
            f"follow: ranges must come from a method range(x, radius) of the problem or from constants; "
            f"{getattr(problem, 'name', type(problem).__name__)!r} has no such method"
            + ("" if constants is None else f", and constants do not serve {algorithm.name}, whose steps leave m_t")
        )
    if ranges is not None and not callable(ranges):
        refuse(who, "ranges", "a function of (problem, x, x_prev) or None", ranges)
    spread = math.inf if stated is None else float(stated(x, 0.0)[0])
    spread = spread if ranges is None else min(spread, float(ranges(problem, x, x)[0]))
    first, later = trajectory.noise_levels(closure, spread)
    if not later < math.inf:
        refuse(who, "range", "finite at x", spread)
    local, estimator, schedule = stated is not None or ranges is not None, algorithm.estimator, algorithm.schedule
    alpha = float(getattr(schedule, "alpha", steps ** (-2 / 3)))
    settled = 1 / alpha if isinstance(schedule, (Constant, Halving)) else None
    first_w = 1.0 if settled is None else settled
    if isinstance(schedule, Constant):
        first_w = trajectory.opening_weight(alpha, steps)
    foresee = getattr(schedule, "foreseen", None)
    cut, samples = WHOLE, getattr(estimator, "first_batch", estimator.K)
    if isinstance(estimator, TwoBatch):
        cut = WHOLE._replace(pairs=estimator.K, fresh=estimator.K)
    if not isinstance(estimator, (TwoBatch, Filtered)) and max(estimator.K, samples) > 1:
        few = PIECES if steps < LONG_RUN else steps
        usual = PIECES_OF_CONSTANTS if not local else few if target is None else PIECES_TO_STOP
        cut = trajectory.layout(estimator.K, estimator.k, samples, steps, usual if pieces is None else pieces)
        estimator = replace(estimator, pieces=(0 if cut.is_whole else cut.heads, cut.tails, cut.firsts))
    always = schedule if isinstance(schedule, Constant) else None
    equal = type(algorithm.geometry) is Normalized and isinstance(algorithm.averaging, NoAveraging)
    change = None
    if local and always is not None and equal:  # from constants alone ranges are larger later
        change = _change(closure, stated, x, float(always.eta))
    fixed = trajectory.instances(first, later, alpha, steps, delta, cut, estimator.K, dimension(x), change)
    watch = Trajectory(
        fixed,
        closure,
        first_w,
        alpha=None if always is None else always.alpha,
        length=always.eta if always is not None and equal else None,
        settled=settled,
        target=target,
        cut=cut,
        local=stated is not None,
        surprised=foresee is not None and foresee(schedule.init(x)) is not None,
        block=trajectory.block_length(steps, local) if target is None else 1,
        exact=ranges,
    )
    return replace(algorithm, estimator=estimator, observer=watch)


def _change(closure: Closure | None, stated: Any, x: Tree, length: float) -> float | None:
    """How far a sample's gradient goes in the first step of this length, at most; None if that is not known."""
    c = closure
    known = math.inf if stated is None else float(stated(x, length)[1])
    known = known if c is None else min(known, length * (c.L0 + c.L1 * c.first_gradient))
    return known if known < math.inf else None


def _closure(algorithm: Any, constants: Constants | None) -> Closure | None:
    """Constants, if ranges follow from them along the steps of this algorithm."""
    if constants is None:
        return None
    if constants.noise == "mean-square":
        refuse("follow", "constants", "in the almost-sure sense", constants)
    along = isinstance(algorithm.geometry, (Normalized, Euclidean, Clipped))
    along = along and isinstance(algorithm.averaging, NoAveraging)
    return Closure.of(constants) if along or constants.is_plain else None
