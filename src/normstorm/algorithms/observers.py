"""What watches a run without changing it: nothing, or the certificate that follows its trajectory.

An observer is a frozen, JAX-registered dataclass with

    first(problem, x, m, grads)                                         -> state        after m_1 at x_1
    step(problem, x, x_prev, m_prev, m, grads, weight, foreseen, state) -> state        after m_t at x_t, t >= 2
    stopped(state)                                                      -> whether no further step is to be made

`weight` is that of the fresh gradient in m_t, `foreseen` the one that was known before the samples of step t: the same,
unless the schedule looks at them first.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp

from normstorm._shared.pytrees import STATIC, dimension, pytree
from normstorm._shared.validate import OPEN_UNIT, POSITIVE, number, refuse, whole
from normstorm.theory import trajectory
from normstorm.theory.constants import Constants
from normstorm.theory.trajectory import WHOLE, Closure, Followed, Instances, Layout, Observed, Ranges

from .averaging import NoAveraging
from .estimators import Corrected, GradientSample, LargeFirstBatch, TwoBatch
from .geometries import Clipped, Euclidean, Normalized, norm

Tree = Any
PIECES = 40_000  # of all steps together: of more, few bounds become better


@pytree
@dataclass(frozen=True)
class NoObserver:
    """Nothing is watched."""

    def first(self, problem: Any, x: Tree, m: Tree, grads: GradientSample) -> Tree:
        return ()

    def step(self, *given: Any) -> Tree:
        return ()

    def stopped(self, state: Tree) -> Any:
        return False


@pytree
@dataclass(frozen=True)
class Trajectory:
    """The certificate of theory.trajectory, step by step.

    fixed      what is fixed before the run
    closure    constants from which ranges follow, or None
    first_w    w_1
    target     the run ends when the bound of the average is at most this; None: it does not
    cut        pieces of a step
    local      whether the problem states ranges (`problem.range`)
    """

    fixed: Instances
    closure: Closure | None
    first_w: Any
    target: Any
    cut: Layout = field(metadata=STATIC)
    local: bool = field(metadata=STATIC)

    def first(self, problem: Any, x: Tree, m: Tree, grads: GradientSample) -> Followed:
        size = norm(m)
        c, known = self.closure, []
        if c is not None:
            noise = c.sigma0 + c.sigma1 * c.first_gradient
            known.append(Ranges(noise, noise, jnp.zeros_like(size)))
        if self.local:
            known.append(trajectory.from_problem(*problem.range(x, jnp.zeros_like(size))))
        squares: Any = jnp.zeros_like(size)
        if self.cut.firsts > 1:
            squares = sum(map(_distances_from_earlier, jax.tree.leaves(grads.pieces))) / self.cut.firsts**2
        fixed = self._in_precision(size)
        begun = trajectory.follow_first_step(jnp, fixed, self.cut, self.first_w, _smallest(known), size, squares)
        return _cast(begun, size.dtype)

    def step(
        self,
        problem: Any,
        x: Tree,
        x_prev: Tree,
        m_prev: Tree,
        m: Tree,
        grads: GradientSample,
        weight: Any,
        foreseen: Any,
        state: Followed,
    ) -> Followed:
        size, moved = norm(m), norm(jax.tree.map(jnp.subtract, x, x_prev))
        fixed, c = self._in_precision(size), self.closure
        known = [] if c is None else [trajectory.from_constants(jnp, c, fixed, state, moved)]
        if self.local:
            known.append(trajectory.from_problem(*problem.range(x, moved)))
        rest = jnp.zeros_like(size)
        if foreseen is not weight:
            change = weight - foreseen
            unforeseen = jax.tree.map(
                lambda g, m, sub, prev: change * (g - m - sub + prev), grads.g, m_prev, grads.g_sub, grads.g_prev
            )
            rest = norm(unforeseen)
            m = jax.tree.map(jnp.subtract, m, unforeseen)
        head, tail = self._squares(m_prev, m, grads, foreseen)
        seen = Observed(foreseen, moved, size, head, tail, rest)
        L1 = 0.0 if c is None else c.L1
        return _cast(trajectory.follow_step(jnp, fixed, self.cut, L1, _smallest(known), state, seen), size.dtype)

    def stopped(self, state: Followed) -> Any:
        if self.target is None:
            return False
        return trajectory.average_bound(jnp, self._in_precision(state.size), state) <= self.target

    def _in_precision(self, size: jax.Array) -> Instances:
        return Instances(*(jnp.asarray(part, size.dtype) for part in self.fixed))

    def _squares(self, m_prev: Tree, m: Tree, grads: GradientSample, a: Any) -> tuple[Any, Any]:
        """Sums of squared distances of the pieces of head and tail from their centre."""
        if self.cut == WHOLE:
            return norm(jax.tree.map(jnp.subtract, m, m_prev)) ** 2, 0.0
        cut, (here, there, others) = self.cut, grads.pieces
        fresh, pair = a / cut.K, (1 - a) / cut.k
        head = jax.tree.map(lambda g, old, m: cut.head * (pair * (g - old) + fresh * (g - m)), here, there, m_prev)
        tail = jax.tree.map(lambda g, m: cut.tail * fresh * (g - m), others, m_prev) if cut.tails else None
        return norm(head) ** 2, norm(tail) ** 2 if cut.tails else 0.0


def _cast(state: Followed, dtype: Any) -> Followed:
    """In the precision of x, whatever that of the constants is."""
    cast: Followed = jax.tree.map(lambda part: jnp.asarray(part, dtype), state)
    return cast


def _distances_from_earlier(pieces: jax.Array) -> jax.Array:
    """Sum over j >= 2 of the squared distance of piece j from the mean of those before it."""
    flat = pieces.reshape(pieces.shape[0], -1)
    count = jnp.arange(1, flat.shape[0], dtype=flat.dtype)[:, None]
    return jnp.sum((flat[1:] - jnp.cumsum(flat, 0)[:-1] / count) ** 2)


def _smallest(known: list[Ranges]) -> Ranges:
    """Each bound by the smallest of several."""
    one, *others = known
    for other in others:
        one = Ranges(*(jnp.minimum(a, b) for a, b in zip(one, other, strict=True)))
    return one


def uncovered(algorithm: Any) -> str | None:
    """Why the certificate does not hold for the estimates of an algorithm; None if it does."""
    kind = type(algorithm.estimator)
    if kind in COVERED:  # not what inherits from them: it may change the recursion
        return None
    return REASONS.get(kind.__name__, f"its estimate ({kind.__name__}) is not a STORM recursion")


COVERED = (Corrected, LargeFirstBatch, TwoBatch)
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
    pieces: int = PIECES,
) -> Any:
    """The same algorithm, watched by the trajectory certificate for a run of about so many steps from x.

    Ranges come from the problem's own method `range`, if it has one, and from `constants` of this start, in the
    almost-sure sense, if they are given and all steps go along m_t (or L1 and sigma1 are 0, which needs no such steps).
    With probability at least 1 - delta the bound of the average holds after every step; the run ends when it is at most
    `target`, if that is given. About `pieces` parts of all the run's batches are looked at one by one.
    """
    who = "follow"
    steps, pieces = whole(who, "steps", steps), whole(who, "pieces", pieces)
    delta = number(who, "delta", delta, OPEN_UNIT)
    target = None if target is None else number(who, "target", target, POSITIVE)
    reason = uncovered(algorithm)
    if reason is not None:
        raise ValueError(f"follow: algorithm must have a STORM estimate; {algorithm.name} has none: {reason}")
    closure, stated = _closure(algorithm, constants), getattr(problem, "range", None)
    if stated is None and closure is None:
        raise ValueError(
            f"follow: ranges must come from a method range(x, radius) of the problem or from constants; "
            f"{getattr(problem, 'name', type(problem).__name__)!r} has no such method"
            + ("" if constants is None else f", and constants do not serve {algorithm.name}, whose steps leave m_t")
        )
    spread = math.inf if stated is None else float(stated(x, 0.0)[0])
    first, later = trajectory.noise_levels(closure, spread)
    if not later < math.inf:
        refuse(who, "range", "finite at x", spread)
    estimator = algorithm.estimator
    alpha = float(getattr(algorithm.schedule, "alpha", steps ** (-2 / 3)))
    first_w = 1 / alpha if hasattr(algorithm.schedule, "alpha") else 1.0
    cut = WHOLE
    if not isinstance(estimator, TwoBatch) and max(estimator.K, getattr(estimator, "first_batch", 1)) > 1:
        cut = trajectory.layout(estimator.K, estimator.k, getattr(estimator, "first_batch", estimator.K), steps, pieces)
        estimator = replace(estimator, pieces=(cut.heads, cut.tails, cut.firsts))
    fixed = trajectory.instances(first, later, alpha, steps, delta, cut, dimension(x))
    watch = Trajectory(fixed, closure, first_w, target, cut, stated is not None)
    return replace(algorithm, estimator=estimator, observer=watch)


def _closure(algorithm: Any, constants: Constants | None) -> Closure | None:
    """Constants, if ranges follow from them along the steps of this algorithm."""
    if constants is None:
        return None
    if constants.noise == "mean-square":
        refuse("follow", "constants", "in the almost-sure sense", constants)
    along = isinstance(algorithm.geometry, (Normalized, Euclidean, Clipped))
    along = along and isinstance(algorithm.averaging, NoAveraging)
    return Closure.of(constants) if along or constants.is_plain else None
