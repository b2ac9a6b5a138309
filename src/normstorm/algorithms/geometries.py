"""How we measure: from an estimate m to a direction.

A geometry is a frozen, JAX-registered dataclass with

    init(x)                        -> state
    step(t, x, m, g, state)        -> (direction, state)        g: the gradient that this step asked at x
    stopped(state)                 -> whether no further step is to be made

    requirements (if any)                 what x must have, see `requirements.py`

and a `Wrapper` holds another one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from normstorm._shared.pytrees import pytree

from .estimators import static
from .requirements import NOTHING

Tree = Any
SHORT = 256  # up to so many squares are added one by one
ROWS, WIDTH = 32, 32  # of a sum that is folded: at most so many rows, as wide as a multiple of this


def norm(tree: Tree) -> jax.Array:
    """The Euclidean norm of a whole pytree."""
    return jnp.sqrt(sum(_squares(jnp.asarray(leaf)) for leaf in jax.tree.leaves(tree)))


def squared_norm(tree: Tree) -> jax.Array:
    """The square of the Euclidean norm."""
    size = norm(tree)
    return size * size


def _squares(leaf: jax.Array) -> jax.Array:
    """Sum of squares. A long one is first folded, row on row: added one by one, each term waits for the one before.

    Rows begin where registers do.
    """
    if leaf.size < SHORT:
        return jnp.sum(leaf * leaf)
    flat, width = leaf.ravel(), WIDTH * -(-leaf.size // (WIDTH * ROWS))
    rows = leaf.size // width
    folded = [row * row for row in jnp.split(flat[: rows * width], rows)]
    while len(folded) > 1:
        pairs = zip(folded[::2], folded[1::2], strict=False)
        folded = [a + b for a, b in pairs] + folded[len(folded) & ~1 :]
    return jnp.sum(folded[0]) + _squares(flat[rows * width :])


def _ratio(top: jax.Array, bottom: jax.Array) -> jax.Array:
    """Coordinate by coordinate, and 0 / 0 = 0."""
    moves = bottom > 0
    return jnp.where(moves, top / jnp.where(moves, bottom, 1), 0)


def _scaled(tree: Tree, scale: Any) -> Tree:
    return jax.tree.map(lambda leaf: leaf * scale, tree)


class Geometry:
    """What most have in common: remembers nothing, never stops."""

    def init(self, x: Tree) -> Tree:
        return ()

    def stopped(self, state: Tree) -> Any:
        return False


@pytree
@dataclass(frozen=True)
class Normalized(Geometry):
    """m / ||m|| over the whole pytree; 0 / 0 = 0, so a zero estimate means "stay"."""

    def step(self, t: Any, x: Tree, m: Tree, g: Tree, state: Tree) -> tuple[Tree, Tree]:
        size = norm(m)
        moves = size > 0
        scale = jnp.where(moves, 1 / jnp.where(moves, size, 1), 0)
        return jax.tree.map(lambda leaf: leaf * scale, m), state


@pytree
@dataclass(frozen=True)
class PowerNormalized(Geometry):
    """m / ||m||^power; a zero estimate means "stay"."""

    power: float

    def step(self, t: Any, x: Tree, m: Tree, g: Tree, state: Tree) -> tuple[Tree, Tree]:
        size = norm(m)
        moves = size > 0
        return _scaled(m, jnp.where(moves, jnp.where(moves, size, 1) ** -jnp.asarray(self.power), 0)), state


@pytree
@dataclass(frozen=True)
class Euclidean(Geometry):
    """m itself."""

    def step(self, t: Any, x: Tree, m: Tree, g: Tree, state: Tree) -> tuple[Tree, Tree]:
        return m, state


@pytree
@dataclass(frozen=True)
class Clipped(Geometry):
    """m min{ most, threshold / (||m|| + offset), square / ||m||^2 }, where c / 0 is infinity."""

    most: float
    threshold: float
    square: float = math.inf
    offset: float = 0.0

    def step(self, t: Any, x: Tree, m: Tree, g: Tree, state: Tree) -> tuple[Tree, Tree]:
        size = norm(m)

        def over(top: Any, bottom: jax.Array) -> jax.Array:
            return jnp.where(bottom > 0, top / jnp.where(bottom > 0, bottom, 1), jnp.inf)

        cap = jnp.minimum(over(self.threshold, size + self.offset), over(self.square, size * size))
        return _scaled(m, jnp.minimum(self.most, cap)), state


@pytree
@dataclass(frozen=True)
class SoftClipped(Geometry):
    """m / (1 + ||m|| / threshold)."""

    threshold: float

    def step(self, t: Any, x: Tree, m: Tree, g: Tree, state: Tree) -> tuple[Tree, Tree]:
        return _scaled(m, 1 / (1 + norm(m) / self.threshold)), state


@pytree
@dataclass(frozen=True)
class Sign(Geometry):
    """The sign of every coordinate; sign(0) = 0."""

    def step(self, t: Any, x: Tree, m: Tree, g: Tree, state: Tree) -> tuple[Tree, Tree]:
        return jax.tree.map(jnp.sign, m), state


@pytree
@dataclass(frozen=True)
class SecondMoment(Geometry):
    """m / (sqrt(v) + eps), v <- b2 v + (1 - b2) s^2 coordinate by coordinate; s is m, or g with `of_gradient`."""

    b2: float
    eps: float
    of_gradient: bool = static(False)

    def init(self, x: Tree) -> Tree:
        return jax.tree.map(jnp.zeros_like, x)

    def step(self, t: Any, x: Tree, m: Tree, g: Tree, state: Tree) -> tuple[Tree, Tree]:
        seen = g if self.of_gradient else m
        state = jax.tree.map(lambda v, s: self.b2 * v + (1 - self.b2) * s * s, state, seen)
        return jax.tree.map(lambda m, v: _ratio(m, jnp.sqrt(v) + self.eps), m, state), state


@pytree
@dataclass(frozen=True)
class Adam(Geometry):
    """(m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps), v <- b2 v + (1 - b2) g^2 from the fresh gradient."""

    b1: float
    b2: float
    eps: float

    def init(self, x: Tree) -> Tree:
        return jax.tree.map(jnp.zeros_like, x)

    def step(self, t: Any, x: Tree, m: Tree, g: Tree, state: Tree) -> tuple[Tree, Tree]:
        state = jax.tree.map(lambda v, g: self.b2 * v + (1 - self.b2) * g * g, state, g)
        done = 1.0 * t  # an integer as exponent would widen single precision
        first, second = 1 - self.b1**done, 1 - self.b2**done
        return jax.tree.map(lambda m, v: m / first / (jnp.sqrt(v / second) + self.eps), m, state), state


@pytree
@dataclass(frozen=True)
class NormMoment(Geometry):
    """m / (s + eps), s <- b2 s + (1 - b2) ||fresh gradient||, a number for all coordinates."""

    b2: float
    eps: float

    def init(self, x: Tree) -> Tree:
        return jnp.zeros((), jax.tree.leaves(x)[0].dtype)

    def step(self, t: Any, x: Tree, m: Tree, g: Tree, state: Tree) -> tuple[Tree, Tree]:
        state = self.b2 * state + (1 - self.b2) * norm(g)
        return jax.tree.map(lambda m: _ratio(m, state + self.eps), m), state


@dataclass(frozen=True)
class Wrapper:
    """Holds another geometry and keeps its state."""

    inner: Any

    @property
    def requirements(self) -> frozenset[str]:
        found: frozenset[str] = getattr(self.inner, "requirements", NOTHING)
        return found

    def init(self, x: Tree) -> Tree:
        return self.inner.init(x)

    def stopped(self, state: Tree) -> Any:
        return self.inner.stopped(state)


@pytree
@dataclass(frozen=True)
class Nesterov(Wrapper):
    """The direction of beta m + (1 - beta) g, g the fresh gradient (Nesterov)."""

    beta: float

    def step(self, t: Any, x: Tree, m: Tree, g: Tree, state: Tree) -> tuple[Tree, Tree]:
        ahead = jax.tree.map(lambda m, g: self.beta * m + (1 - self.beta) * g, m, g)
        found: tuple[Tree, Tree] = self.inner.step(t, x, ahead, g, state)
        return found


@pytree
@dataclass(frozen=True)
class Mixed(Wrapper):
    """nu times the direction of m and 1 - nu times that of the fresh gradient."""

    nu: float

    def step(self, t: Any, x: Tree, m: Tree, g: Tree, state: Tree) -> tuple[Tree, Tree]:
        slow, _ = self.inner.step(t, x, m, g, state)
        fast, _ = self.inner.step(t, x, g, g, state)
        return jax.tree.map(lambda a, b: self.nu * a + (1 - self.nu) * b, slow, fast), state


@pytree
@dataclass(frozen=True)
class WeightDecay(Wrapper):
    """The direction and decay times x: x_{t+1} = (1 - eta decay) x_t - eta u."""

    decay: float

    def step(self, t: Any, x: Tree, m: Tree, g: Tree, state: Tree) -> tuple[Tree, Tree]:
        direction, state = self.inner.step(t, x, m, g, state)
        return jax.tree.map(lambda u, x: u + self.decay * x, direction, x), state


@pytree
@dataclass(frozen=True)
class Stopping(Wrapper):
    """Stay for good as soon as ||m|| <= threshold."""

    threshold: float

    def init(self, x: Tree) -> Tree:
        return jnp.zeros((), bool), self.inner.init(x)

    def stopped(self, state: Tree) -> Any:
        return state[0]

    def step(self, t: Any, x: Tree, m: Tree, g: Tree, state: Tree) -> tuple[Tree, Tree]:
        direction, inner = self.inner.step(t, x, m, g, state[1])
        stop = norm(m) <= self.threshold
        return jax.tree.map(lambda u: jnp.where(stop, 0, u), direction), (stop, inner)
