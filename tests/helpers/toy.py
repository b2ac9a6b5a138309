"""A problem for the tests: quadratic plus quartic, with noise that depends on x, and a meter."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp

from normstorm.random import normal


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Toy:
    """F(x) = sum x^2/2 + q x^4/4;  grad f(x, (e, z)) = (1 + s1 e) grad F(x) + s0 z with e, z standard normal."""

    d: int = field(metadata={"static": True})
    s0: float = 1.0
    s1: float = 0.3
    q: float = 1.0
    dtype: str = field(default="float64", metadata={"static": True})
    name: str = field(default="toy", metadata={"static": True})

    def sample(self, key: jax.Array, n: int) -> jax.Array:
        return normal(key, (n, self.d + 1), self.dtype)

    def grad(self, x: jax.Array, batch: jax.Array) -> jax.Array:
        return jnp.mean((1 + self.s1 * batch[:, :1]) * self.full_grad(x) + self.s0 * batch[:, 1:], axis=0)

    def full_grad(self, x: jax.Array) -> jax.Array:
        return x + self.q * x * x * x

    def value(self, x: jax.Array) -> jax.Array:
        return jnp.sum(x * x / 2 + self.q * x**4 / 4)


class Counts:
    """Without a dictionary of attributes, which would be looked into: a problem that changes is another problem."""

    __slots__ = ("asked", "calls")

    def __init__(self) -> None:
        self.asked = self.calls = 0


class Metered:
    """Counts the sample gradients of every traced call. Not a pytree: it becomes part of the program."""

    def __init__(self, inner: Any) -> None:
        self.inner, self.name, self.counts = inner, "metered", Counts()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.counts if name in Counts.__slots__ else self.inner, name)

    def grad(self, x: Any, batch: Any) -> Any:
        self.counts.calls += 1
        self.counts.asked += jax.tree.leaves(batch)[0].shape[0]
        return self.inner.grad(x, batch)
