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

from .estimators import GradientSample, Sampled, draw_large_batch, large_batch_key, static
from .geometries import norm, squared_norm
from .requirements import A_FINITE_SUM, NOTHING
from .restarts import component_count, each_gradient

Tree = Any


class Filter(NamedTuple):
    """What the estimator knows; all but m, secant, sum, table and kept are numbers.

    m, V, S        the estimate, the variance of its error, and of a measurement around it
    gain           the weight of the last measurement;   seen   measurements so far
    bend, spread   squared curvature of a mean over k samples along a step, and its variance
    along          mean curvature along a step, with its sign
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

    A step of no length asks only K sample gradients: there is nothing to transport.
    """

    K: int = static()
    k: int = static()
    table: bool = static(False)
    first: int = static(3)
    bend_memory: float = 0.003
    spread_memory: float = 0.005
    rise: float = 0.3
    reject: float = 16.0
    alarm: float = 3.0
    quick: float = 0.1

    @property
    def requirements(self) -> frozenset[str]:
        return A_FINITE_SUM if self.table else NOTHING

    def cost(self, steps: int, size: int | None) -> int:
        """The most that so many steps can ask; those that stay ask less. Two derivatives count as three gradients."""
        filled = (size or 0) if self.table and steps >= max(2, size or 0) else 0
        return self.first * (self.K + 3 * self.k) + (self.K + self.k) * (steps - 1) + filled

    def draw(self, problem: Any, key: jax.Array) -> Tree:
        return problem.sample(key, self.K), large_batch_key(key)

    def first_gradients(self, problem: Any, x: Tree, samples: Tree) -> Sampled:
        K, n = self.K, self.first
        batch = draw_large_batch(problem, samples[1], n * K)
        pieces = jax.tree.map(lambda s: s.reshape(n, K, *s.shape[1:]), batch)
        each = jax.lax.map(lambda piece: problem.grad(x, piece), pieces)
        m = jax.tree.map(lambda g: jnp.mean(g, 0), each)
        apart = jax.tree.map(lambda g, m: g - m, each, m)
        s2 = squared_norm(apart) / (n - 1)
        zero, flat = jnp.zeros_like(s2), jax.tree.map(jnp.zeros_like, x)
        known = Filter(m, s2 / n, s2 + s2 / n, zero + 1, zero + n, *(zero,) * 3, flat, *(zero,) * 2, flat, *(zero,) * 4)
        if self.table:
            size = component_count(problem)
            known = known._replace(table=jax.tree.map(lambda a: jnp.zeros((size, *a.shape), a.dtype), x), kept=flat)
        heads = jax.tree.map(lambda s: s[:, : self.k], pieces)
        known, cost = self._probed(problem, x, heads, known)
        return GradientSample(m, filter=known), known, n * K + n * cost

    def first_estimate(self, grads: GradientSample, weight: Any) -> Tree:
        return grads.filter.m

    def update_estimate(self, m: Tree, grads: GradientSample, weight: Any) -> Tree:
        return grads.filter.m

    def sample_gradients(self, problem: Any, t: Any, x: Tree, x_prev: Tree, state: Filter, samples: Tree) -> Sampled:
        rows, _ = samples
        step = jax.tree.map(jnp.subtract, x, x_prev)
        length = norm(step)
        moved = length > 0
        fresh, change = self._measured(problem, x, x_prev, state, rows, moved)
        after = self._updated(state, fresh, change, step, length)
        rejected = moved & ~(squared_norm(change) <= self.reject * (squared_norm(state.m) + state.S))
        back = state._replace(bend=jnp.maximum(4 * state.bend, jnp.nan_to_num(after.bend, nan=0, posinf=0)))
        after = _select(rejected, back, after)
        cost = self.K + jnp.where(moved, self.k, 0)
        here = _select(rejected, x_prev, x)
        if self.table:
            after, more = self._stored(problem, t, here, after, rows, rejected)
            cost = cost + more
        after, more = self._probed(problem, here, jax.tree.map(lambda s: s[None, : self.k], rows), after)
        return GradientSample(fresh, rejected=rejected, filter=after), after, cost + more

    def _measured(
        self, problem: Any, x: Tree, x_prev: Tree, state: Filter, rows: Tree, moved: jax.Array
    ) -> tuple[Tree, Tree]:
        """The fresh gradient, and the change from x_prev to x; of a table's rows less what is kept, plus its mean."""
        K, k = self.K, self.k
        head, rest = jax.tree.map(lambda s: s[:k], rows), jax.tree.map(lambda s: s[k:], rows)
        here = problem.grad(x, head)
        there = jax.lax.cond(moved, lambda: problem.grad(x_prev, head), lambda: here)
        fresh = here
        if k < K:
            fresh = jax.tree.map(lambda h, t: (k / K) * h + ((K - k) / K) * t, here, problem.grad(x, rest))
        if self.table:
            fresh = jax.tree.map(lambda g, a, mean: g - jnp.mean(a[rows], 0) + mean, fresh, state.table, state.kept)
        return fresh, jax.tree.map(jnp.subtract, here, there)

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
        S = f.S + forget * (squared_norm(apart) - f.S)
        moved = length > 0
        secant = jax.tree.map(lambda c: -c / jnp.where(moved, length, 1), change)
        moves, square = f.moves + 1, squared_norm(secant)
        twist = jnp.minimum(squared_norm(jax.tree.map(jnp.subtract, secant, f.secant)) / 2, square)
        agree = 1 - twist / jnp.where(square > 0, square, 1)
        fall = jnp.maximum(self.bend_memory, self.quick * agree**4)
        share = jnp.maximum(jnp.where(square > f.bend, self.rise, fall), 1 / moves)
        slow = jnp.maximum(self.spread_memory, 1 / moves)
        curved = f._replace(
            bend=f.bend + share * (square - f.bend),
            spread=f.spread + slow * (twist - f.spread),
            along=f.along + slow * (-_inner(secant, step) / jnp.where(moved, length, 1) - f.along),
            secant=secant,
            moves=moves,
        )
        f = _select(moved, curved, f)
        V = jnp.minimum((1 - a) * V + f.spread * length * length, S)
        return self._checked(f._replace(m=_add(carried, apart, a), V=V, S=S, gain=a, seen=n), apart)

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
            spread=jnp.where(wrong, jnp.minimum(2 * f.spread, f.bend), f.spread),
            sum=jax.tree.map(lambda s: jnp.where(due, 0, s), total),
            gains=jnp.where(due, 0, gains),
            since=jnp.where(due, 0, since),
            excess=jnp.where(due, excess, f.excess),
            alarms=f.alarms + wrong,
        )

    def _probed(self, problem: Any, x: Tree, heads: Tree, f: Filter) -> tuple[Filter, jax.Array]:
        """The first curvature along m, from derivatives: they need no length, and give one."""
        wanted = (f.reach == 0) & (norm(f.m) > 0)

        # Of many seeds at once a loop runs its body only if one of them wants it, which a branch does not.
        def body(carry: tuple[jax.Array, Filter]) -> tuple[jax.Array, Filter]:
            return jnp.zeros_like(wanted), _probe(problem, x, heads, carry[1])

        probed = jax.lax.while_loop(lambda carry: carry[0], body, (wanted, f))[1]
        return probed, jnp.where(wanted, 3 * self.k, 0)

    def _stored(
        self, problem: Any, t: Any, x: Tree, f: Filter, rows: jax.Array, rejected: jax.Array
    ) -> tuple[Filter, jax.Array]:
        """At step n the table is filled, m is then exact; later the rows of a step are renewed one after the other.

        Their gradients at x were asked in this step, and are only computed again; after a rejection not all were.
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
                g = _select(rejected, old, problem.grad(x, row[None]))
                mean = jax.tree.map(lambda mean, g, old: mean + (g - old) / size, mean, g, old)
                return (jax.tree.map(lambda a, g: a.at[row].set(g), table, g), mean), None

            table, kept = jax.lax.scan(store, (f.table, f.kept), rows)[0]
            # Once in a while added anew: what rounding took from long gradients would outlive them.
            kept = jax.lax.cond(t % size == 0, lambda: jax.tree.map(lambda a: jnp.mean(a, 0), table), lambda: kept)
            return f._replace(table=table, kept=kept)

        filled = jnp.asarray(t == size)
        after = jax.lax.cond(filled, fill, lambda: jax.lax.cond(t > size, renew, lambda: f))
        return after, jnp.where(filled, size, 0)


def _probe(problem: Any, x: Tree, heads: Tree, f: Filter) -> Filter:
    """Secants of every head over the length r at which derivatives along m say that the gradient changes by an eighth.

    Not measured but expanded to second order: so nothing needs a length to begin with, and all scales with x and F.
    Where both derivatives are zero there is none; then it is a thousandth of ||x||, or of 1.
    """
    size = norm(f.m)
    u = jax.tree.map(lambda m: m / size, f.m)

    def derivatives(head: Tree) -> tuple[Tree, Tree]:
        def along(z: Tree) -> Tree:
            return jax.jvp(lambda y: problem.grad(y, head), (z,), (u,))[1]

        found: tuple[Tree, Tree] = jax.jvp(along, (x,), (u,))
        return found

    found = jax.lax.map(derivatives, heads)
    first, second = jax.tree.map(lambda leaf: jnp.nan_to_num(leaf, nan=0, posinf=0, neginf=0), found)
    probes = jax.tree.leaves(heads)[0].shape[0]
    slopes, bends = (norm(part) / probes**0.5 for part in (first, second))
    r = jnp.minimum(_over(size, slopes), jnp.sqrt(_over(size, bends))) / 8
    far = norm(x)
    r = jnp.where(jnp.isfinite(r) & (r > 0), r, 1e-3 * jnp.where(far > 0, far, 1))
    secants = jax.tree.map(lambda h, b: h - r / 2 * b, first, second)
    square = squared_norm(secants) / probes
    mean = jax.tree.map(lambda s: jnp.mean(s, 0), secants)
    spread = square
    if probes > 1:
        spread = jnp.clip((square - squared_norm(mean)) * probes / (probes - 1), square / 100, square)
    last = jax.tree.map(lambda s: s[-1], secants)
    seen = jnp.where(square > 0, probes, 0)
    found = {"bend": square, "spread": spread, "along": _inner(mean, u), "secant": last}
    return f._replace(**found, moves=f.moves + seen, reach=r / 32)


@pytree
@dataclass(frozen=True)
class FilteredSteps:
    """A step along m of the length min{ part n/L, noise (n^2 - q V)/(l sigma), growth longest }, with n = ||m||.

    L^2 = bend, l^2 = spread. It has none if n^2 < max{q, still} V: then m is noise. q = min{1, part l^2/(L along)} is
    what the way to m = 0 would add to V, in units of n^2: there are L/(part along) steps, each adds l^2 times its
    square. sigma^2 = max{S - V, S/20} is that of a sample, `longest` the longest step so far or, before the first, a
    part of the length over which curvature was seen.
    """

    part: float = 0.5
    noise: float = 1.0
    still: float = 0.25
    growth: float = 8.0

    def init(self, x: Tree) -> jax.Array:
        return jnp.zeros((), jax.tree.leaves(x)[0].dtype)

    def weight(self, t: Any, grads: GradientSample, state: Tree) -> tuple[Any, Tree]:
        return grads.filter.gain, state

    def step(self, t: Any, m: Tree, grads: GradientSample, longest: jax.Array) -> tuple[Any, Tree]:
        f, n = grads.filter, norm(m)
        sigma2 = jnp.maximum(f.S - f.V, f.S / 20)
        straight = _over(self.part * n, jnp.sqrt(f.bend))
        lost = jnp.minimum(_over(self.part * f.spread, jnp.sqrt(f.bend) * jnp.maximum(f.along, 0)), 1)
        quiet = _over(self.noise * jnp.maximum(n * n - lost * f.V, 0), jnp.sqrt(f.spread * sigma2))
        longest = jnp.maximum(longest, f.reach)
        length = jnp.minimum(jnp.minimum(straight, quiet), self.growth * longest)
        length = jnp.where((n * n < jnp.maximum(lost, self.still) * f.V) | ~(n * n > 0), 0, length)
        return length / jnp.where(n > 0, n, 1), jnp.maximum(longest, length)
