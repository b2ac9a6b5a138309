"""How far, and how much we trust: step size and weight of the fresh gradient.

A schedule is a frozen, JAX-registered dataclass with

    init(x)                      -> state
    weight(t, grads, state)       -> (a_t, state), the weight of the fresh gradient in m_t
    step(t, m, grads, state)      -> (eta_t, state)
    foreseen(state)               -> None, or, if a_t depends on the gradients of step t, a number known before them

`grads` is the `GradientSample` of step t, so that both may depend on gradients seen.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from normstorm._shared.pytrees import pytree
from normstorm._shared.summation import kahan

from .estimators import GradientSample, static
from .geometries import norm, squared_norm

Tree = Any


class KahanSum(NamedTuple):
    """A sum of many numbers with what rounding has taken from it (Kahan): a plain one stops growing in float32."""

    total: jax.Array
    lost: jax.Array

    def add(self, number: jax.Array) -> KahanSum:
        return KahanSum(*kahan(self.total, self.lost, number))


def _zero(x: Tree) -> jax.Array:
    return jnp.zeros((), jax.tree.leaves(x)[0].dtype)


def _zero_sum(x: Tree) -> KahanSum:
    return KahanSum(_zero(x), _zero(x))


@pytree
@dataclass(frozen=True)
class Constant:
    """The same alpha = 1 - beta and eta at every step."""

    alpha: float
    eta: float

    def init(self, x: Tree) -> Tree:
        return ()

    def weight(self, t: Any, grads: GradientSample, state: Tree) -> tuple[Any, Tree]:
        return self.alpha, state

    def step(self, t: Any, m: Tree, grads: GradientSample, state: Tree) -> tuple[Any, Tree]:
        return self.eta, state


class Halved(NamedTuple):
    """The step to be taken, the one that was, what was spent when the epoch began (negative: not known), halvings."""

    eta: jax.Array
    used: jax.Array
    start: jax.Array
    halvings: jax.Array


@pytree
@dataclass(frozen=True)
class Halving:
    """eta_t = eta/2^i after i halvings, a_{t+1} = alpha eta_t/eta; halved by what an observer certifies.

    With E_t the bound of the sum of eta_s ||m_s - grad F(x_s)||, what is spent is 2 E_t + L0/2 sum eta_s^2. A step is
    halved when an epoch, the time of one length, has spent `share` times gap; if nobody tells it what, never.
    """

    alpha: float
    eta: float
    gap: float
    L0: float
    share: float

    def init(self, x: Tree) -> Halved:
        zero = _zero(x)
        return Halved(zero + self.eta, zero + self.eta, zero - 1, zero)

    def weight(self, t: Any, grads: GradientSample, state: Halved) -> tuple[Any, Halved]:
        return self.alpha * (state.used / self.eta), state

    def step(self, t: Any, m: Tree, grads: GradientSample, state: Halved) -> tuple[Any, Halved]:
        return state.eta, state._replace(used=state.eta)

    def told(self, errors: Any, curve: Any, state: Halved) -> Halved:
        """After a block: the bound of the sum of errors in steps of length eta, and the sum of squared lengths."""
        spent = 2 * self.eta * errors + self.L0 / 2 * curve
        begun = jnp.where(state.start < 0, spent, state.start)
        over = spent - begun >= self.share * self.gap
        halve = jnp.where(over, 0.5, 1.0)
        return Halved(
            state.eta * halve, state.used, jnp.where(over, spent, begun), state.halvings + jnp.where(over, 1.0, 0.0)
        )


@pytree
@dataclass(frozen=True)
class Anytime:
    """eta_t = eta r_t, a_{t+1} = alpha r_t, r_t = ((1 + shift) / (t + shift))^{2/3}."""

    alpha: float
    eta: float
    shift: float

    def _fallen(self, t: Any) -> Any:
        return ((1 + self.shift) / (t + self.shift)) ** (2 / 3)

    def init(self, x: Tree) -> Tree:
        return ()

    def weight(self, t: Any, grads: GradientSample, state: Tree) -> tuple[Any, Tree]:
        return self.alpha * self._fallen(jnp.maximum(t - 1, 1)), state

    def step(self, t: Any, m: Tree, grads: GradientSample, state: Tree) -> tuple[Any, Tree]:
        return self.eta * self._fallen(t), state


@pytree
@dataclass(frozen=True)
class PowerDecay:
    """a_t = t^-alpha_power, eta_t = eta t^-eta_power."""

    alpha_power: float
    eta: float
    eta_power: float

    def init(self, x: Tree) -> Tree:
        return ()

    def weight(self, t: Any, grads: GradientSample, state: Tree) -> tuple[Any, Tree]:
        return t ** -jnp.asarray(self.alpha_power), state

    def step(self, t: Any, m: Tree, grads: GradientSample, state: Tree) -> tuple[Any, Tree]:
        return self.eta * t ** -jnp.asarray(self.eta_power), state


@pytree
@dataclass(frozen=True)
class ShiftedPower:
    """mu_t = k / (shift + t)^power; eta_t = gamma mu_t, a_{t+1} = min{1, c mu_t^2} at power 1/3, c mu_t at 1/2."""

    gamma: float
    k: float
    shift: float
    c: float
    corrected: bool = static()

    def _mu(self, t: Any) -> Any:
        return self.k / (self.shift + t) ** (1 / 3 if self.corrected else 1 / 2)

    def init(self, x: Tree) -> Tree:
        return ()

    def weight(self, t: Any, grads: GradientSample, state: Tree) -> tuple[Any, Tree]:
        mu = self._mu(t - 1)
        return jnp.minimum(1, self.c * mu * mu if self.corrected else self.c * mu), state

    def step(self, t: Any, m: Tree, grads: GradientSample, state: Tree) -> tuple[Any, Tree]:
        return self.gamma * self._mu(t), state


class Curvature(NamedTuple):
    """A running mean of squared curvatures, how many were seen, and the length of the last step."""

    square: jax.Array
    seen: jax.Array
    moved: jax.Array


@pytree
@dataclass(frozen=True)
class MeasuredCurvature:
    """a_{t+1} = (1 + (t - 1)/offset)^{-2/3}, eta_t = scale sqrt(a_{t+1}) / L_t, for steps x_{t+1} = x_t - eta_t m_t.

    L_t^2 is a running mean of ||g_k(x_i) - g_k(x_{i-1})||^2 / ||x_i - x_{i-1}||^2 over i <= t in which the last one has
    a weight of at least 1/20; L_1 = L0 + L1 ||m_1||. No step is longer than `longest` times a_{t+1}.
    """

    L0: float
    L1: float
    longest: float
    offset: float
    scale: float

    def init(self, x: Tree) -> Curvature:
        return Curvature(_zero(x), _zero(x), _zero(x))

    def _weight(self, t: Any) -> Any:
        return (1 + jnp.maximum(t - 2, 0) / self.offset) ** (-2 / 3)

    def weight(self, t: Any, grads: GradientSample, state: Curvature) -> tuple[Any, Tree]:
        return self._weight(t), state

    def step(self, t: Any, m: Tree, grads: GradientSample, state: Curvature) -> tuple[Any, Tree]:
        size = norm(m)
        stated = self.L0 + self.L1 * size
        square, count = stated * stated, state.seen
        if grads.g_prev is not None:
            seen = squared_norm(jax.tree.map(jnp.subtract, grads.g_sub, grads.g_prev))
            moves = state.moved > 0
            count = count + moves
            share = jnp.where(moves, jnp.maximum(1 / jnp.maximum(count, 1), 1 / 20), 0)
            ratio = seen / jnp.where(moves, state.moved, 1) ** 2
            square = jnp.where(count > 0, (1 - share) * state.square + share * ratio, square)
        length = self.scale * jnp.sqrt(self._weight(t + 1)) * size / jnp.sqrt(square)
        moved = jnp.where(size > 0, jnp.minimum(length, self.longest * self._weight(t + 1)), 0)
        return moved / jnp.where(size > 0, size, 1), Curvature(square, count, moved)


@pytree
@dataclass(frozen=True)
class AdaGradNorm:
    """eta_t = eta / sqrt(b0^2 + sum over i <= t of ||g_i||^2), and a_t = 1."""

    eta: float
    b0: float

    def init(self, x: Tree) -> Tree:
        return _zero_sum(x)

    def weight(self, t: Any, grads: GradientSample, state: Tree) -> tuple[Any, Tree]:
        return 1.0, state

    def step(self, t: Any, m: Tree, grads: GradientSample, state: KahanSum) -> tuple[Any, Tree]:
        seen = state.add(squared_norm(grads.g))
        return self.eta / jnp.sqrt(self.b0 * self.b0 + seen.total), seen


@pytree
@dataclass(frozen=True)
class Storm:
    """eta_t = k / (w + sum over i <= t of ||g_i||^2)^{1/3}, a_{t+1} = min{1, c eta_t^2}."""

    k: float
    w: float
    c: float

    def init(self, x: Tree) -> Tree:
        return _zero_sum(x), 1 + _zero(x)

    def weight(self, t: Any, grads: GradientSample, state: Tree) -> tuple[Any, Tree]:
        return state[1], state

    def step(self, t: Any, m: Tree, grads: GradientSample, state: Tree) -> tuple[Any, Tree]:
        seen = state[0].add(squared_norm(grads.g))
        eta = self.k / (self.w + seen.total) ** (1 / 3)
        return eta, (seen, jnp.minimum(1, self.c * eta * eta))


@pytree
@dataclass(frozen=True)
class StormPlus:
    """a_{t+1} = (1 + sum ||g_i||^2)^{-2/3}, eta_t = scale (sum ||m_i||^2 / a_{i+1})^{-1/3}, sums over i <= t."""

    scale: float

    def init(self, x: Tree) -> Tree:
        return _zero_sum(x), _zero_sum(x), 1 + _zero(x)

    def weight(self, t: Any, grads: GradientSample, state: Tree) -> tuple[Any, Tree]:
        return state[2], state

    def step(self, t: Any, m: Tree, grads: GradientSample, state: Tree) -> tuple[Any, Tree]:
        seen = state[0].add(squared_norm(grads.g))
        a = (1 + seen.total) ** (-2 / 3)
        moved = state[1].add(squared_norm(m) / a)
        moves = moved.total > 0
        eta = jnp.where(moves, self.scale * jnp.where(moves, moved.total, 1) ** (-1 / 3), 0)
        return eta, (seen, moved, a)


@pytree
@dataclass(frozen=True)
class MetaStorm:
    """eta_t = eta a^{(1-p)/2} / (b0^{1/p} + sum over i <= t of ||m_i||^2)^p, a = (1 + s / a0^2)^{-2/3}.

    kind "norm":        a is a_{t+1}, s the sum over i <= t of ||g_i||^2
    kind "count":       a is a_{t+1}, s = t
    kind "difference":  a is a_t, s the sum over i < t of ||g(x_i; xi_i) - g(x_i; xi_{i+1})||^2
    """

    eta: float
    p: float
    a0: float
    b0: float
    kind: str = static()

    def init(self, x: Tree) -> Tree:
        last = jax.tree.map(jnp.zeros_like, x) if self.kind == "difference" else ()
        return _zero_sum(x), _zero_sum(x), 1 + _zero(x), last

    def foreseen(self, state: Tree) -> Any:
        return state[2] if self.kind == "difference" else None

    def _weight(self, seen: KahanSum) -> Any:
        return (1 + seen.total / (self.a0 * self.a0)) ** (-2 / 3)

    def weight(self, t: Any, grads: GradientSample, state: Tree) -> tuple[Any, Tree]:
        seen, moved, a, last = state
        if self.kind == "difference":
            if grads.g_prev is not None:
                seen = seen.add(squared_norm(jax.tree.map(jnp.subtract, last, grads.g_prev)))
                a = self._weight(seen)
            last = grads.g
        return a, (seen, moved, a, last)

    def step(self, t: Any, m: Tree, grads: GradientSample, state: Tree) -> tuple[Any, Tree]:
        seen, moved, a, last = state
        if self.kind != "difference":
            seen = seen.add(squared_norm(grads.g) if self.kind == "norm" else jnp.ones_like(a))
            a = self._weight(seen)
        moved = moved.add(squared_norm(m))
        eta = self.eta * a ** ((1 - self.p) / 2) / (self.b0 ** (1 / self.p) + moved.total) ** self.p
        return eta, (seen, moved, a, last)
