"""Every sample of a run against the constants that are stated, by what the steps have computed anyway.

Step t asks a sample s_t at x_t and at x_{t-1}, and step t - 1 asked s_{t-1} at x_{t-1}. If 3A and 4A hold, then, with
G = ||grad F(x_{t-1})||,

    noise        ||grad f(x_{t-1}, s_t) - grad f(x_{t-1}, s_{t-1})|| <= 2 (sigma0 + sigma1 G)
    smoothness   ||grad f(x_t, s_t) - grad f(x_{t-1}, s_t)|| <= (L0 + L1 G) d     for d = ||x_t - x_{t-1}|| <= 1/L1

and G is at most

    (||grad f(x_{t-1}, s)|| + sigma0)/(1 - sigma1)   where sigma1 < 1,
    U_{t-2} + (L0 + L1 U_{t-2}) d_{t-1}              for a bound U_{t-2} at x_{t-2}, at x_1 that of the constants.

No exact gradient and no probability enter: a step that breaks one of these is a counterexample. Means over the samples
of a step obey the first line, too, and so it is made where a step has several; the second line is made for every
sample that is asked at both points. Of K > 1 samples at x_t, also of those of step 1, let a_i be the distance of the
gradient of s_i from their mean and V the mean of a_i^2. Every one of them is compared by

    batch        (a_i + V/a_i)/2 <= sigma0 + sigma1 ||grad F(x_t)||     where a_i^2 >= V

as some sample is at least that far from grad F(x_t), wherever that is (docs/theory/race.md, single samples). An
algorithm that asks no sample at two points is held to both lines at once, with its gradients g_t at x_t and G_t =
||grad F(x_t)||:

    ||g_t - g_{t-1}|| <= (sigma0 + sigma1 G_t) + (sigma0 + sigma1 G) + (L0 + L1 G) d

The first counterexample of each kind is kept, or else the step that came closest to one, with its points. A sample
is a function of seed and step, so that it can be drawn again after the run: watch.py compares it with grad F itself.
Then a noise that is exceeded by less than a factor of two is seen, too, if that sample was the closest.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from normstorm._shared.pytrees import STATIC, pytree
from normstorm.algorithms.core import Algorithm
from normstorm.algorithms.estimators import Corrected, GradientSample, LargeFirstBatch, Momentum, draw_large_batch
from normstorm.algorithms.filtering import Filtered
from normstorm.algorithms.geometries import Stopping, norm
from normstorm.algorithms.observers import Noted, Trajectory, Watched
from normstorm.algorithms.restarts import PeriodicRestarts
from normstorm.random import seed_words, step_key
from normstorm.theory.constants import Constants
from normstorm.theory.trajectory import Followed

from .held import ROUNDING

Tree = Any
CARE = 4096  # units of roundoff, of gradients and of x, that a comparison leaves to rounding
WITNESSED = (Filtered, Corrected, LargeFirstBatch, Momentum, PeriodicRestarts)
WITH_KEYS = (Filtered, LargeFirstBatch, PeriodicRestarts)  # beside their samples is the key of a large batch
MOST_DRAWN = 512  # samples of a step that are looked at again


class PairSeen(NamedTuple):
    """Of step t: the mean gradients of its samples at x_t and at x_{t-1}; of single ones the squared distances from
    their mean at x_t, and of the gradients at both points."""

    here: Tree
    there: Tree = None
    apart: Any = None
    turned: Any = None


class Closest(NamedTuple):
    """The first counterexample, or what came closest to one: seen/allowed, the step t, both, x_{t-1} and x_t."""

    ratio: Any
    step: Any
    seen: Any
    allowed: Any
    x_prev: Tree
    x: Tree


class Testimony(NamedTuple):
    """After step t.

    noted, last, size   notes of the step, the gradient of its samples at x_t, and its length
    bound               what ||grad F(x_t)|| is at most
    step, checked       t, and comparisons made;   wrong   of noise and smoothness that failed
    noise, smooth, batch    `Closest` of each kind
    """

    noted: PairSeen
    last: Tree
    size: Any
    bound: Any
    step: Any
    checked: Any
    wrong: Any
    noise: Closest
    smooth: Closest
    batch: Closest


class _Kind(NamedTuple):
    """Comparisons of a chunk: `seen` (steps, samples), what is allowed and which steps have it (steps,), what was
    closest before, and between which points."""

    seen: Any
    allowed: Any
    made: Any
    old: Closest
    x_prev: Tree
    x: Tree


@pytree
@dataclass(frozen=True)
class Witness:
    """An observer (`algorithms.observers`) that compares; the run is the same as without it, but that the mean of a
    batch is added up from single samples, which may be rounded otherwise."""

    L0: float
    L1: float
    sigma0: float
    sigma1: float
    first_gradient: float
    paired: bool = field(metadata=STATIC)
    single: tuple[int, int] | None = field(default=None, metadata=STATIC)  # samples at x_t, and at both points
    freezes: bool = field(default=False, metadata=STATIC)  # whether a step of no length is none
    target: ClassVar[None] = None  # it ends no run

    def first(self, problem: Any, x: Tree, m: Tree, grads: GradientSample) -> Testimony:
        size = norm(grads.g)
        zero, count = jnp.zeros_like(size), jnp.zeros((), jnp.uint32)
        none = Closest(zero, jnp.zeros((), jnp.int32), zero, zero, x, x)
        bound = jnp.minimum(jnp.asarray(self.first_gradient, size.dtype), self._local(size))
        noted = PairSeen(grads.g, grads.g if self.paired else None)
        if self.single is not None:
            apart, turned = (jnp.zeros(n, size.dtype) for n in self.single)
            noted = noted._replace(apart=apart, turned=turned if self.paired else None)
        wrong = jnp.zeros(2, jnp.uint32)
        begun = Testimony(noted, grads.g, size, bound, none.step + 1, count, wrong, none, none, none)
        return begun if grads.single is None else self._first_batch(grads.single.here, begun, x)

    def _first_batch(self, each: Tree, begun: Testimony, x: Tree) -> Testimony:
        """The samples of step 1, one by one."""
        apart, dtype = _apart(each)[None], begun.size.dtype
        allowed = self.sigma0 + self.sigma1 * begun.bound
        allowed = allowed * (1 + ROUNDING) + _care(dtype) * (begun.size + 2 * jnp.sqrt(jnp.max(apart)))
        points = jax.tree.map(lambda leaf: leaf[None], x)
        kind = _Kind(_needed(apart), allowed[None], jnp.ones(1, bool), begun.batch, points, points)
        batch, wrong, checked = _closest(kind, begun.step[None])
        return begun._replace(batch=batch, wrong=begun.wrong.at[0].add(wrong), checked=begun.checked + checked)

    def note(self, m_prev: Tree, m: Tree, grads: GradientSample, *weights: Any) -> Testimony:
        state: Testimony = weights[-1]
        noted = PairSeen(grads.g_sub, grads.g_prev) if self.paired else PairSeen(grads.g)
        if self.single is not None:
            here, there, others = grads.single  # type: ignore[misc]
            both = here if others is None else jax.tree.map(lambda *parts: jnp.concatenate(parts), here, others)
            turned = _each_square(jax.tree.map(jnp.subtract, here, there)) if self.paired else None
            noted = noted._replace(apart=_apart(both), turned=turned)
        return state._replace(noted=noted)

    def follow(
        self,
        problem: Any,
        before: tuple[Tree, Tree],
        x: Tree,
        m: Tree,
        size: Any,
        noted: PairSeen,
        grad_norm: Any,
        count: Any,
        state: Testimony,
    ) -> Testimony:
        """Of one seed: the comparisons of a chunk at once."""
        earlier = jax.tree.map(lambda first, x: jnp.concatenate([first[None], x[:-1]]), before[0], x)
        moved = jnp.sqrt(_each_square(jax.tree.map(jnp.subtract, x, earlier)))
        now_at, then_at = noted.here, noted.there if self.paired else noted.here
        lasts = jax.tree.map(lambda first, g: jnp.concatenate([first[None], g[:-1]]), state.last, now_at)
        apart = jnp.sqrt(_each_square(jax.tree.map(jnp.subtract, then_at, lasts)))
        here = jnp.sqrt(_each_square(now_at))
        there = jnp.concatenate([state.size[None], here[:-1]])
        if noted.turned is None:
            change = jnp.sqrt(_each_square(jax.tree.map(jnp.subtract, then_at, now_at)))[:, None]
        else:
            change = jnp.sqrt(noted.turned)
        grown = self._grown(state.bound, moved)
        bound = jnp.minimum(grown, self._local(here))
        last = jnp.minimum(jnp.concatenate([state.bound[None], grown[:-1]]), self._local(there))
        near, dtype = moved * self.L1 <= 1, size.dtype
        care = _care(dtype)
        bend = self.L0 + self.L1 * jnp.minimum(last, bound)
        most = jnp.where(near, bend * (moved + care * jnp.sqrt(_each_square(x))), jnp.inf)
        rho, now_rho = self.sigma0 + self.sigma1 * last, self.sigma0 + self.sigma1 * bound
        noisy = 2 * rho if self.paired else rho + now_rho + most
        now = jnp.arange(size.shape[0]) < count
        now = now & (moved > 0) if self.freezes else now
        lengths = here + there + jnp.max(change, 1)
        kinds = {"noise": _Kind(apart[:, None], noisy, now, state.noise, earlier, x)}
        if self.paired:
            kinds["smooth"] = _Kind(change, most, now & near & (moved > 0), state.smooth, earlier, x)
        if self.single is not None:
            lengths = lengths + 2 * jnp.sqrt(jnp.max(noted.apart, 1))
            kinds["batch"] = _Kind(_needed(noted.apart), now_rho, now, state.batch, x, x)
        closest: dict[str, Any] = {}
        checked, wrong = state.checked, state.wrong
        steps = state.step + 1 + jnp.arange(size.shape[0])
        for name, kind in kinds.items():
            kind = kind._replace(allowed=kind.allowed * (1 + ROUNDING) + care * lengths)
            closest[name], over, compared = _closest(kind, steps)
            wrong, checked = wrong.at[int(name == "smooth")].add(over), checked + compared
        end = jnp.maximum(count - 1, 0)
        at_end = jnp.where(count > 0, bound[end], state.bound), jnp.where(count > 0, here[end], state.size)
        last_g = jax.tree.map(lambda g, old: jnp.where(count > 0, g[end], old), now_at, state.last)
        done = state._replace(
            last=last_g, size=at_end[1].astype(dtype), bound=at_end[0].astype(dtype), step=state.step + count
        )
        return done._replace(checked=checked, wrong=wrong, **closest)

    def _local(self, size: Any) -> Any:
        """What ||grad F|| is at most where a sample gradient has this length."""
        sure = self.sigma1 < 1
        return jnp.where(sure, (size + self.sigma0) / jnp.where(sure, 1 - self.sigma1, 1), jnp.inf)

    def _grown(self, bound: Any, moved: Any) -> Any:
        """And after steps of these lengths from where it is at most `bound`: u + L0/L1 grows by 1 + L1 d with each."""
        way = jnp.cumsum(jnp.where(moved * self.L1 <= 1, jnp.log1p(self.L1 * moved), jnp.inf))
        curved = self.L1 > 0
        added = jnp.where(curved, jnp.expm1(way) / jnp.where(curved, self.L1, 1), jnp.cumsum(moved))
        # Where a step was too long nothing is known; infinity times a constant of 0 would be no number.
        return jnp.where(jnp.isinf(way), jnp.inf, bound * jnp.exp(way) + self.L0 * added)


class SeenByBoth(NamedTuple):
    """What the certificate along the run and the witness keep."""

    watched: Watched
    testimony: Testimony

    @property
    def noted(self) -> tuple[Noted, PairSeen]:
        return self.watched.noted, self.testimony.noted

    @property
    def followed(self) -> Followed:
        return self.watched.followed


@pytree
@dataclass(frozen=True)
class WatchedByBoth:
    """The certificate along a run, and a witness beside it."""

    trajectory: Trajectory
    witness: Witness

    @property
    def target(self) -> Any:
        return self.trajectory.target

    @property
    def block(self) -> int:
        return self.trajectory.block

    def first(self, *given: Any) -> SeenByBoth:
        return SeenByBoth(self.trajectory.first(*given), self.witness.first(*given))

    def note(self, m_prev: Tree, m: Tree, grads: Any, weight: Any, foreseen: Any, state: SeenByBoth) -> SeenByBoth:
        step = m_prev, m, grads, weight, foreseen
        return SeenByBoth(self.trajectory.note(*step, state.watched), self.witness.note(*step, state.testimony))

    def follow(self, problem: Any, before: Any, x: Tree, m: Tree, size: Any, noted: Any, *rest: Any) -> SeenByBoth:
        (grad_norm, count, state), (ours, theirs) = rest, noted
        steps = problem, before, x, m, size
        return SeenByBoth(
            self.trajectory.follow(*steps, ours, grad_norm, count, state.watched),
            self.witness.follow(*steps, theirs, grad_norm, count, state.testimony),
        )

    def told(self, state: SeenByBoth, schedule: Any, kept: Tree) -> Tree:
        return self.trajectory.told(state.watched, schedule, kept)

    def stopped(self, state: SeenByBoth) -> Any:
        return self.trajectory.stopped(state.watched)


def witnessed(algorithm: Algorithm, constants: Constants | None) -> Algorithm:
    """The algorithm with a witness, if there are constants of every sample and its gradients are those of samples.

    It stands beside the certificate along the run; an observer of another kind is left alone.
    """
    estimator, beside = algorithm.estimator, isinstance(algorithm.observer, Trajectory)
    known = constants is not None and constants.noise != "mean-square"
    if not known or (algorithm.watched and not beside) or type(estimator) not in WITNESSED:
        return algorithm
    c: Any = constants
    paired, sizes = not isinstance(estimator, Momentum), _sizes(estimator)
    if sizes is not None:
        estimator = replace(estimator, single=True)
    freezes = isinstance(algorithm.geometry, Stopping)
    witness = Witness(c.L0, c.L1, c.sigma0, c.sigma1, c.first_gradient, paired, sizes, freezes)
    watching = WatchedByBoth(algorithm.observer, witness) if beside else witness
    return replace(algorithm, estimator=estimator, observer=watching)


def _sizes(estimator: Any) -> tuple[int, int] | None:
    """How many samples a step has at x_t, and at both points; None if it is one, which is its own mean."""
    if isinstance(estimator, PeriodicRestarts):
        return estimator.S2, estimator.S2
    return (estimator.K, getattr(estimator, "k", 0)) if estimator.K > 1 else None


def drawn_samples(problem: Any, algorithm: Algorithm, seed: int, step: int) -> Tree:
    """The samples of this step once more, and those of the step before, as one batch."""
    words, kind = jnp.asarray(seed_words([seed])[0]), type(algorithm.estimator)

    def drawn(t: int) -> Tree:
        found = algorithm.draw(problem, step_key(words, jnp.int32(t)))
        return found[0] if kind in WITH_KEYS else found

    if step > 1:
        every = [drawn(t) for t in (step, max(step - 1, 2))]
    elif kind in WITH_KEYS:
        size = (
            algorithm.estimator.first * algorithm.estimator.K if kind is Filtered else algorithm.estimator.first_batch
        )
        key = algorithm.draw(problem, step_key(words, jnp.int32(1)))[-1]
        every = [draw_large_batch(problem, key, size)]
    else:
        every = [drawn(1)]
    return jax.tree.map(lambda *parts: jnp.concatenate([part[:MOST_DRAWN] for part in parts]), *every)


def _closest(kind: _Kind, steps: Any) -> tuple[Closest, Any, Any]:
    """The first counterexample or what came closest to one, how many there are, and comparisons made."""
    seen, allowed, old = kind.seen, kind.allowed[:, None], kind.old
    valid = kind.made[:, None] & jnp.isfinite(seen)
    ratio = jnp.where(valid & (allowed > 0), seen / allowed, 0)
    loudest, sample = jnp.max(ratio, 1), jnp.argmax(ratio, 1)[:, None]
    over = loudest > 1
    place = jnp.where(jnp.any(over), jnp.argmax(over), jnp.argmax(loudest))
    seen_there = jnp.take_along_axis(seen, sample, 1)[:, 0]
    found = Closest(loudest, steps, seen_there, kind.allowed, kind.x_prev, kind.x)
    one = jax.tree.map(lambda a, b: a[place].astype(b.dtype), found, old)
    better = (old.ratio <= 1) & (one.ratio > old.ratio)
    closest: Closest = jax.tree.map(lambda a, b: jnp.where(better, a, b), one, old)
    made = jnp.sum(valid & jnp.isfinite(allowed), dtype=jnp.uint32)
    return closest, jnp.sum(ratio > 1, dtype=jnp.uint32), made


def _apart(each: Tree) -> jax.Array:
    """Squared distances of these gradients from their mean."""
    return _each_square(jax.tree.map(lambda g: g - jnp.mean(g, 0), each))


def _needed(apart: jax.Array) -> jax.Array:
    """How far some sample of a batch is from any point, as each one says, (..., samples); 0 where one says nothing."""
    square, few = jnp.mean(apart, -1, keepdims=True), _care(apart.dtype)
    loud = (apart >= (1 - few) * square) & (apart > 0)  # the loudest one in spite of rounding
    root = jnp.sqrt(jnp.where(loud, apart, 1))
    return jnp.where(loud, (root + square / root) / 2, 0 * apart)


def _care(dtype: Any) -> float:
    return CARE * float(np.finfo(dtype).eps)


def _each_square(tree: Tree) -> jax.Array:
    """The squared length of each of many vectors."""
    rows = (leaf.reshape(leaf.shape[0], -1) for leaf in jax.tree.leaves(tree))
    return jnp.asarray(sum((row * row) @ jnp.ones(row.shape[1], row.dtype) for row in rows))
