"""A gradient that is filtered: an estimate that knows its own error, and steps that it is good for.

STORM's recursion is a Kalman filter. A sample gradient measures the gradient at the old point, its change transports
the estimate to the new one; so the weight of the measurement follows from two variances, and both can be observed:

    V    of the error of m: it falls with every measurement, and rises by the noise of a transport
    S    of a measurement around m, V and the noise of a sample: the running mean of what was seen

`Filtered` is the estimator and `FilteredSteps` the schedule; they are made for each other. `Filter` is what is known
before the samples of the next step, so the weight that follows from it is predictable.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from normstorm._shared.pytrees import pytree

from .estimators import Asked, GradientSample, Sampled, Single, asked, draw_large_batch, large_batch_key, static
from .geometries import norm, squared_norm
from .requirements import A_FINITE_SUM, NOTHING
from .restarts import component_count, each_gradient, where_wanted

Tree = Any
SEEN = ("bend", "spread", "along", "square", "secant", "moves", "reach")  # by the first probe


class Filter(NamedTuple):
    """What the estimator knows; all but m, secant, sum, table and kept are numbers.

    m, V, S        the estimate, the variance of its error, and of a measurement around it
    gain           the weight of the last measurement;   seen   measurements so far
    bend, spread   squared curvature of a mean over k samples along a step, held high, and its variance
    along, square  plain means of the curvature along a step, with its sign, and of the square
    secant, moves  the last change of a gradient over a step's length, and how many were seen
    reach          the length over which curvature was first seen; 0: not yet
    sum, gains, since     of the measurements around m since the last check, of their weights, and how many
    excess, alarms        what the last check found, 1 is as it should be, and how often it was too much
    table, kept           the last gradients of a finite sum's components and their mean; () without a table
    """

    m: Tree
    V: jax.Array
    S: jax.Array
    gain: jax.Array
    seen: jax.Array
    bend: jax.Array
    spread: jax.Array
    along: jax.Array
    square: jax.Array
    secant: Tree
    moves: jax.Array
    reach: jax.Array
    sum: Tree
    gains: jax.Array
    since: jax.Array
    excess: jax.Array
    alarms: jax.Array
    table: Tree = ()
    kept: Tree = ()


def _add(a: Tree, b: Tree, scale: Any = 1) -> Tree:
    return jax.tree.map(lambda a, b: a + scale * b, a, b)


def _inner(a: Tree, b: Tree) -> jax.Array:
    return jnp.asarray(sum(jnp.sum(p * q) for p, q in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)))


def _over(top: Any, bottom: jax.Array) -> jax.Array:
    """top / bottom, and infinity where nothing is below."""
    return jnp.where(bottom > 0, top / jnp.where(bottom > 0, bottom, 1), jnp.inf)


def _select(which: jax.Array, one: Tree, other: Tree) -> Tree:
    return jax.tree.map(lambda a, b: jnp.where(which, a, b), one, other)


@pytree
@dataclass(frozen=True)
class Filtered:
    """m <- m + c + a (g_K(x) - m - c), c = g_k(x) - g_k(x_prev), with the gain a = V/S of the steps before.

    A step of no length asks only K sample gradients: there is nothing to transport. `single` hands the gradients of
    samples out one by one, for an observer.
    """

    K: int = static()
    k: int = static()
    table: bool = static(False)
    first: int = static(3)
    bend_memory: float = 0.003
    spread_memory: float = 0.005
    rise: float = 0.1
    agreed: float = 0.1
    certain: float = 1.0
    drift: float = 1.0
    alarm: float = 3.0
    single: bool = static(False)

    @property
    def requirements(self) -> frozenset[str]:
        return A_FINITE_SUM if self.table else NOTHING

    def cost(self, steps: int, size: int | None) -> int:
        """The most that so many steps can ask; those that stay ask less. Two derivatives count as three gradients."""
        filled = (size or 0) if self.table and steps >= max(2, size or 0) else 0
        return self.first * self.K + 3 * self.k + (self.K + self.k) * (steps - 1) + filled

    @property
    def least(self) -> int:
        """What a step asks at least."""
        return self.K

    def draw(self, problem: Any, key: jax.Array) -> Tree:
        return problem.sample(key, self.K), large_batch_key(key)

    def first_gradients(self, problem: Any, x: Tree, samples: Tree) -> Sampled:
        K, n = self.K, self.first
        batch = draw_large_batch(problem, samples[1], n * K)
        pieces = jax.tree.map(lambda s: s.reshape(n, K, *s.shape[1:]), batch)
        parts = jax.lax.map(lambda piece: asked(problem, x, piece, self.single), pieces)
        each = parts.mean
        m = jax.tree.map(lambda g: jnp.mean(g, 0), each)
        apart = jax.tree.map(lambda g, m: g - m, each, m)
        s2 = squared_norm(apart) / (n - 1)
        zero, flat = jnp.zeros_like(s2), jax.tree.map(jnp.zeros_like, x)
        known = Filter(m, s2 / n, s2 + s2 / n, zero + 1, zero + n, *(zero,) * 4, flat, *(zero,) * 2, flat, *(zero,) * 4)
        if self.table:
            size = component_count(problem)
            known = known._replace(table=jax.tree.map(lambda a: jnp.zeros((size, *a.shape), a.dtype), x), kept=flat)
        known, cost = self._probed(problem, x, jax.tree.map(lambda s: s[: self.k], batch), known)
        single = None if K > 1 else Single(each)
        if self.single:
            single = Single(jax.tree.map(lambda g: g.reshape(n * K, *g.shape[2:]), parts.each))
        return GradientSample(m, filter=known, single=single), known, n * K + cost

    def first_estimate(self, grads: GradientSample, weight: Any) -> Tree:
        return grads.filter.m

    def update_estimate(self, m: Tree, grads: GradientSample, weight: Any) -> Tree:
        return grads.filter.m

    def sample_gradients(self, problem: Any, t: Any, x: Tree, x_prev: Tree, state: Filter, samples: Tree) -> Sampled:
        rows, _ = samples
        step = jax.tree.map(jnp.subtract, x, x_prev)
        length = norm(step)
        moved = length > 0
        fresh, here, there, single = self._measured(problem, x, x_prev, state, rows)
        change = jax.tree.map(lambda h, p: jnp.where(moved, h - p, 0), here, there)
        after = self._updated(state, fresh, change, step, length)
        cost = self.K + jnp.where(moved, self.k, 0)
        if self.table:
            after, more = self._stored(problem, t, x, after, rows)
            cost = cost + more
        after, more = self._probed(problem, x, jax.tree.map(lambda s: s[: self.k], rows), after)
        return GradientSample(fresh, there, here, filter=after, single=single), after, cost + more

    def _measured(
        self, problem: Any, x: Tree, x_prev: Tree, state: Filter, rows: Tree
    ) -> tuple[Tree, Tree, Tree, Single | None]:
        """The fresh gradient, of a table's rows less what is kept, plus its mean; those of k rows at both points."""
        K, k = self.K, self.k
        head, rest = jax.tree.map(lambda s: s[:k], rows), jax.tree.map(lambda s: s[k:], rows)
        here, there = (asked(problem, point, head, self.single) for point in (x, x_prev))
        tail, fresh = Asked(None), here.mean
        if k < K:
            tail = asked(problem, x, rest, self.single)
            fresh = jax.tree.map(lambda h, t: (k / K) * h + ((K - k) / K) * t, here.mean, tail.mean)
        if self.table:
            fresh = jax.tree.map(lambda g, a, mean: g - jnp.mean(a[rows], 0) + mean, fresh, state.table, state.kept)
        return fresh, here.mean, there.mean, Single(here.each, there.each, tail.each) if self.single else None

    def error_bar(self, state: Filter) -> jax.Array:
        """What ||m - grad F(x)|| is thought to be: a root mean square, no bound."""
        return jnp.sqrt(state.V)

    def gain(self, state: Filter) -> tuple[jax.Array, jax.Array]:
        """V and the weight of the next measurement, from the past alone."""
        n = state.seen + 1
        V = jnp.maximum(state.V, state.S / n)
        return V, jnp.where(state.S > 0, jnp.minimum(1, V / jnp.where(state.S > 0, state.S, 1)), 1 / n)

    def _updated(self, f: Filter, fresh: Tree, change: Tree, step: Tree, length: jax.Array) -> Filter:
        V, a = self.gain(f)
        n = f.seen + 1
        forget = jnp.minimum(0.3, jnp.maximum(jnp.maximum(jnp.minimum(0.02, 10 / n), 1 / n), f.gain))
        carried = _add(f.m, change)
        apart = jax.tree.map(jnp.subtract, fresh, carried)
        S = self._drifted(f, apart, change, length)
        S = S + forget * (squared_norm(apart) - S)
        f = _select(length > 0, self._curved(f, change, step, length), f)
        V = jnp.minimum((1 - a) * V + f.spread * length * length, S)
        return self._checked(f._replace(m=_add(carried, apart, a), V=V, S=S, gain=a, seen=n), apart)

    def _drifted(self, f: Filter, apart: Tree, change: Tree, length: jax.Array) -> jax.Array:
        """S at the new point: a sample that is seen at both says how its noise has changed on the way."""
        more = 2 * _inner(apart, change) + (2 - self.k / self.K) * f.spread * length * length
        return jnp.clip(f.S + self.drift * more, f.S / 2, 2 * f.S)

    def _curved(self, f: Filter, change: Tree, step: Tree, length: jax.Array) -> Filter:
        """What the last secant says of curvature, its spread and its mean along a step."""
        length = jnp.where(length > 0, length, 1)
        secant = jax.tree.map(lambda c: -c / length, change)
        moves, square = f.moves + 1, squared_norm(secant)
        twist = jnp.minimum(squared_norm(jax.tree.map(jnp.subtract, secant, f.secant)) / 2, square)
        agree = 1 - twist / jnp.where(square > 0, square, 1)
        known = 1 - jnp.minimum(_over(f.S, squared_norm(f.m)), 1)
        fall = jnp.maximum(self.bend_memory, self.agreed * agree**4)
        if not self.table:  # with it a sample knows the gradient, but no other's curvature
            fall = jnp.maximum(fall, self.certain * known)
        share = jnp.maximum(jnp.where(square > f.bend, self.rise, fall), 1 / moves)
        slow = jnp.maximum(self.spread_memory, 1 / moves)
        return f._replace(
            bend=f.bend + share * (square - f.bend),
            spread=f.spread + slow * (twist - f.spread),
            along=f.along + slow * (-_inner(secant, step) / length - f.along),
            square=f.square + slow * (square - f.square),
            secant=secant,
            moves=moves,
        )

    def _checked(self, f: Filter, apart: Tree) -> Filter:
        """Measurements around m are uncorrelated if m errs as V says: then their sum is as long as it should be.

        Looked at whenever the weights since the last look add up to 1, the time in which m is renewed. A sum that is
        too long says by how much m was wrong.
        """
        total, gains, since = _add(f.sum, apart), f.gains + f.gain, f.since + 1
        due = gains >= 1
        rounding = 64 * float(np.finfo(f.S.dtype).eps) * norm(f.m)
        noisy = jnp.sqrt(f.S) > rounding
        excess = jnp.where(noisy, squared_norm(total) / (since * jnp.where(noisy, f.S, 1)), 1)
        wrong = due & (excess > self.alarm)
        V = jnp.where(wrong, jnp.minimum(f.S, jnp.maximum(f.V, (excess - 1) * f.S / since)), f.V)
        return f._replace(
            V=V,
            spread=jnp.where(wrong, jnp.clip(f.bend, f.spread, 2 * f.spread), f.spread),
            sum=jax.tree.map(lambda s: jnp.where(due, 0, s), total),
            gains=jnp.where(due, 0, gains),
            since=jnp.where(due, 0, since),
            excess=jnp.where(due, excess, f.excess),
            alarms=f.alarms + wrong,
        )

    def _probed(self, problem: Any, x: Tree, head: Tree, f: Filter) -> tuple[Filter, jax.Array]:
        """The first curvature along m, from derivatives: they need no length, and give one."""
        wanted = (f.reach == 0) & (norm(f.m) > 0)
        given = x, head, f.m, f.moves
        seen = where_wanted(
            lambda given: _probe(problem, *given), wanted, given, {name: getattr(f, name) for name in SEEN}
        )
        return f._replace(**seen), jnp.where(wanted, 3 * self.k, 0)

    def _stored(self, problem: Any, t: Any, x: Tree, f: Filter, rows: jax.Array) -> tuple[Filter, jax.Array]:
        """At step n the table is filled, m is then exact; later the rows of a step are renewed one after the other.

        Their gradients at x were asked in this step, and are only computed again.
        """
        size = component_count(problem)

        def fill() -> Filter:
            table = each_gradient(problem, x, jnp.arange(size))
            mean = jax.tree.map(lambda a: jnp.mean(a, 0), table)
            return f._replace(m=mean, V=0 * f.V, S=0 * f.S, table=table, kept=mean, sum=_add(f.sum, f.sum, -1))

        def renew() -> Filter:
            def store(state: Tree, row: jax.Array) -> tuple[Tree, None]:
                table, mean = state
                old = jax.tree.map(lambda a: a[row], table)
                g = problem.grad(x, row[None])
                mean = jax.tree.map(lambda mean, g, old: mean + (g - old) / size, mean, g, old)
                return (jax.tree.map(lambda a, g: a.at[row].set(g), table, g), mean), None

            table, kept = jax.lax.scan(store, (f.table, f.kept), rows)[0]
            # Once in a while added anew: what rounding took from long gradients would outlive them.
            kept = jax.lax.cond(t % size == 0, lambda: jax.tree.map(lambda a: jnp.mean(a, 0), table), lambda: kept)
            return f._replace(table=table, kept=kept)

        filled = jnp.asarray(t == size)
        after = jax.lax.cond(filled, fill, lambda: jax.lax.cond(t > size, renew, lambda: f))
        return after, jnp.where(filled, size, 0)


def _probe(problem: Any, x: Tree, head: Tree, m: Tree, moves: jax.Array) -> dict[str, Tree]:
    """A secant over the length r at which derivatives along m say that the gradient or its slope changes by an eighth.

    Not measured but expanded to second order: so nothing needs a length to begin with, and all scales with x and F.
    The slope counts because a sample whose loss is flat there says nothing of how far. Where both derivatives are zero
    there is no length; then it is a thousandth of ||x||, or of 1.
    """
    size = norm(m)
    u = jax.tree.map(lambda m: m / size, m)

    def along(z: Tree) -> Tree:
        return jax.jvp(lambda y: problem.grad(y, head), (z,), (u,))[1]

    found: tuple[Tree, Tree] = jax.jvp(along, (x,), (u,))
    first, second = jax.tree.map(lambda leaf: jnp.nan_to_num(leaf, nan=0, posinf=0, neginf=0), found)
    h, b = norm(first), norm(second)
    r = jnp.minimum(_over(size, h), jnp.where(h > 0, _over(h, b), jnp.sqrt(_over(size, b)))) / 8
    far = norm(x)
    r = jnp.where(jnp.isfinite(r) & (r > 0), r, 1e-3 * jnp.where(far > 0, far, 1))
    secant = jax.tree.map(lambda h, b: h - r / 2 * b, first, second)
    square = squared_norm(secant)
    seen = {"bend": square, "spread": square, "along": _inner(secant, u), "square": square}
    return seen | {"secant": secant, "moves": moves + (square > 0), "reach": r}


class Walk(NamedTuple):
    """The longest step so far, and the sum of w since the last one."""

    longest: jax.Array
    waited: jax.Array


@pytree
@dataclass(frozen=True)
class FilteredSteps:
    """A step along m of the length part n s/L min{1, w/q}, with n = ||m|| and w = min{1, n^2/V}.

    L^2 = max{bend, spread}, s = min{1, max{1/8, 2 L |along|/M}}, M = min{square, L^2}: short steps where samples agree
    on no curvature along m. q = min{1, spread/(2 L along)} is what the way to m = 0 would add to V, in units of n^2.
    The step is taken as soon as the w since the last one, its own included, add up to k/K, the measurements that its
    old gradients could have been; but not if squares of that size are no numbers any more. It is no longer than
    `growth` times the longest so far, or than the length over which curvature was first seen.
    """

    part: float = 0.5
    least: float = 0.125
    growth: float = 2.0
    share: float = 1.0  # k/K

    def init(self, x: Tree) -> Walk:
        zero = jnp.zeros((), jax.tree.leaves(x)[0].dtype)
        return Walk(zero, zero)

    def weight(self, t: Any, grads: GradientSample, state: Tree) -> tuple[Any, Tree]:
        return grads.filter.gain, state

    def step(self, t: Any, m: Tree, grads: GradientSample, walk: Walk) -> tuple[Any, Tree]:
        f, n = grads.filter, norm(m)
        L, h, limits = jnp.sqrt(jnp.maximum(f.bend, f.spread)), jnp.maximum(f.along, 0), np.finfo(f.S.dtype)
        q = jnp.minimum(_over(0.5 * f.spread, L * h), 1)
        clear = jnp.minimum(_over(n * n, f.V), 1)
        agreed = jnp.clip(2 * _over(L * jnp.abs(f.along), jnp.minimum(f.square, L * L)), self.least, 1)
        length = _over(self.part * n, L) * agreed * jnp.minimum(_over(clear, q), 1)
        length = jnp.minimum(length, jnp.maximum(self.growth * walk.longest, f.reach))
        waited = walk.waited + clear
        moves = (waited >= self.share) & (n * n > limits.tiny / limits.eps) & jnp.isfinite(n) & jnp.isfinite(length)
        length = jnp.where(moves, length, 0)
        walk = Walk(jnp.maximum(walk.longest, length), jnp.where(moves, 0, waited))
        return length / jnp.where(n > 0, n, 1), walk
