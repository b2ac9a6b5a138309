"""Every sample of a run against the constants that are stated, by what the steps have computed anyway.

Step t asks a sample s_t at x_t and at x_{t-1}, and step t - 1 asked s_{t-1} at x_{t-1}. If 3A and 4A hold, then, with
G = ||grad F(x_{t-1})||,

    noise        ||grad f(x_{t-1}, s_t) - grad f(x_{t-1}, s_{t-1})|| <= 2 (sigma0 + sigma1 G)
    smoothness   ||grad f(x_t, s_t) - grad f(x_{t-1}, s_t)|| <= (L0 + L1 G) d     for d = ||x_t - x_{t-1}|| <= 1/L1

and G is at most

    (||grad f(x_{t-1}, s)|| + sigma0)/(1 - sigma1)   where sigma1 < 1,
    U_{t-2} + (L0 + L1 U_{t-2}) d_{t-1}              for a bound U_{t-2} at x_{t-2}, at x_1 that of the constants.

No exact gradient and no probability enter: a step that breaks one of these is a counterexample. A mean over the samples
of a step obeys them, too; where a step has several, their mean is what is compared. An algorithm that asks no sample at
two points is held to both lines at once, with its gradients g_t at x_t and G_t = ||grad F(x_t)||:

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
from normstorm.algorithms.estimators import Corrected, GradientSample, Momentum
from normstorm.algorithms.filtering import Filtered
from normstorm.algorithms.geometries import norm
from normstorm.algorithms.observers import Noted, Trajectory, Watched
from normstorm.random import seed_words, step_key
from normstorm.theory.constants import Constants
from normstorm.theory.trajectory import Followed

from .held import ROUNDING

Tree = Any
CARE = 4096  # units of roundoff, of gradients and of x, that a comparison leaves to rounding
KINDS = "noise", "smoothness"


class PairSeen(NamedTuple):
    """Of step t: the gradients of its sample at x_t and at x_{t-1}."""

    here: Tree
    there: Tree = None


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
    noise, smooth       `Closest` of each kind
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


@pytree
@dataclass(frozen=True)
class Witness:
    """An observer (`algorithms.observers`) that compares; the run is the same as without it."""

    L0: float
    L1: float
    sigma0: float
    sigma1: float
    first_gradient: float
    paired: bool = field(metadata=STATIC)
    target: ClassVar[None] = None  # it ends no run

    def first(self, problem: Any, x: Tree, m: Tree, grads: GradientSample) -> Testimony:
        size = norm(grads.g)
        zero, count = jnp.zeros_like(size), jnp.zeros((), jnp.uint32)
        none = Closest(zero, jnp.zeros((), jnp.int32), zero, zero, x, x)
        bound = jnp.minimum(jnp.asarray(self.first_gradient, size.dtype), self._local(size))
        noted = PairSeen(grads.g, grads.g if self.paired else None)
        return Testimony(noted, grads.g, size, bound, none.step + 1, count, jnp.zeros(2, jnp.uint32), none, none)

    def note(self, m_prev: Tree, m: Tree, grads: GradientSample, *weights: Any) -> Testimony:
        state: Testimony = weights[-1]
        noted = PairSeen(grads.g_sub, grads.g_prev) if self.paired else PairSeen(grads.g)
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
        change = jnp.sqrt(_each_square(jax.tree.map(jnp.subtract, then_at, now_at)))
        here = jnp.sqrt(_each_square(now_at))
        there = jnp.concatenate([state.size[None], here[:-1]])
        grown = self._grown(state.bound, moved)
        bound = jnp.minimum(grown, self._local(here))
        last = jnp.minimum(jnp.concatenate([state.bound[None], grown[:-1]]), self._local(there))
        near, dtype = moved * self.L1 <= 1, size.dtype
        care = CARE * float(np.finfo(dtype).eps)
        bend = self.L0 + self.L1 * jnp.minimum(last, bound)
        most = jnp.where(near, bend * (moved + care * jnp.sqrt(_each_square(x))), jnp.inf)
        rho = self.sigma0 + self.sigma1 * last
        noisy = 2 * rho if self.paired else rho + self.sigma0 + self.sigma1 * bound + most
        now = jnp.arange(size.shape[0]) < count
        checked, wrong, closest = state.checked, [], []
        kinds = (apart, noisy, now, state.noise), (change, most, now & near & (moved > 0), state.smooth)
        for seen, allowed, made, old in kinds if self.paired else kinds[:1]:
            allowed = allowed * (1 + ROUNDING) + care * (here + there + change)
            ratio = jnp.where(made & jnp.isfinite(seen) & (allowed > 0), seen / allowed, 0)
            over = ratio > 1
            place = jnp.where(jnp.any(over), jnp.argmax(over), jnp.argmax(ratio))
            found = Closest(ratio, state.step + 1 + jnp.arange(size.shape[0]), seen, allowed, earlier, x)
            one = jax.tree.map(lambda a, b, i=place: a[i].astype(b.dtype), found, old)
            better = (old.ratio <= 1) & (one.ratio > old.ratio)
            closest.append(jax.tree.map(lambda a, b, which=better: jnp.where(which, a, b), one, old))
            wrong.append(jnp.sum(over, dtype=jnp.uint32))
            checked = checked + jnp.sum(made & jnp.isfinite(allowed), dtype=jnp.uint32)
        noise, smooth = closest if self.paired else (*closest, state.smooth)
        end = jnp.maximum(count - 1, 0)
        at_end = jnp.where(count > 0, bound[end], state.bound), jnp.where(count > 0, here[end], state.size)
        wrong = wrong if self.paired else [*wrong, jnp.zeros((), jnp.uint32)]
        last_g = jax.tree.map(lambda g, old: jnp.where(count > 0, g[end], old), now_at, state.last)
        done = state._replace(
            last=last_g, size=at_end[1].astype(dtype), bound=at_end[0].astype(dtype), step=state.step + count
        )
        return done._replace(checked=checked, wrong=state.wrong + jnp.stack(wrong), noise=noise, smooth=smooth)

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
    kind, beside = type(algorithm.estimator), isinstance(algorithm.observer, Trajectory)
    known = constants is not None and constants.noise != "mean-square"
    if not known or (algorithm.watched and not beside) or kind not in (Filtered, Corrected, Momentum):
        return algorithm
    c: Any = constants
    witness = Witness(c.L0, c.L1, c.sigma0, c.sigma1, c.first_gradient, paired=kind is not Momentum)
    return replace(algorithm, observer=WatchedByBoth(algorithm.observer, witness) if beside else witness)


def drawn_samples(problem: Any, algorithm: Algorithm, seed: int, step: int) -> Tree:
    """The samples of this step once more, and those of the step before, as one batch."""
    words = jnp.asarray(seed_words([seed])[0])
    both = [algorithm.draw(problem, step_key(words, jnp.int32(t))) for t in (step, max(step - 1, 2))]
    if isinstance(algorithm.estimator, Filtered):  # beside them is a key
        both = [drawn[0] for drawn in both]
    return jax.tree.map(lambda *parts: jnp.concatenate(parts), *both)


def _each_square(tree: Tree) -> jax.Array:
    """The squared length of each of many vectors."""
    rows = (leaf.reshape(leaf.shape[0], -1) for leaf in jax.tree.leaves(tree))
    return jnp.asarray(sum((row * row) @ jnp.ones(row.shape[1], row.dtype) for row in rows))
