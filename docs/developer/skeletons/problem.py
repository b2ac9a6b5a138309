"""A problem with proven constants: copy to src/normstorm/problems/<family>.py and change every line.

    f(x, s) = sum_j (sqrt(1 + x_j^2) - 1) + r <s, x>,    s uniform on the unit sphere,    F* = 0 at x = 0

The derivation of every constant is part of the docstring. CONTRIBUTING.md, "A new problem", names the other files.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from normstorm._shared.validate import nonnegative, whole
from normstorm.problems.base import STATIC, Certified, pytree, raised, unit
from normstorm.random import normal


@pytree
@dataclass(frozen=True, eq=False)
class MyProblem(Certified):
    """F = sum_j h(x_j) with h(x) = sqrt(1 + x^2) - 1.

    h'' = (1 + x^2)^(-3/2) lies in (0, 1], so grad F is 1-Lipschitz, and so is grad f(., s), which differs from it by
    the constant r s: L0 = 1, L1 = 0 in both senses. That constant has length r: sigma0 = r, sigma1 = 0 in both senses.
    **Range.** All grad f(x, s) lie at the distance r from grad F(x): spread = r. change = radius, by L0.
    """

    r: float
    dim: int = field(metadata=STATIC)
    name: ClassVar[str] = "my-problem"
    infimum: ClassVar[float] = 0.0
    infimum_kind: ClassVar[str] = "exact"

    # All randomness is drawn here, from the key: `grad` is asked twice with the same samples, at two points.
    def sample(self, key: jax.Array, n: int) -> jax.Array:
        return unit(normal(key, (n, self.dim)))

    # The mean over the batch, in the precision of x.
    def grad(self, x: jax.Array, batch: jax.Array) -> jax.Array:
        return self.full_grad(x) + self.r * jnp.mean(batch, axis=0).astype(x.dtype)

    # Written so that nothing cancels: the gap F(x) - F* must be right near the minimum, too.
    def value(self, x: jax.Array) -> jax.Array:
        return jnp.sum(x * x / (1 + jnp.sqrt(1 + x * x)))

    def full_grad(self, x: jax.Array) -> jax.Array:
        return x / jnp.sqrt(1 + x * x)

    def start(self) -> jax.Array:
        return jnp.full(self.dim, 2.0)

    # Bounds near x, at every step of a run: cheap, traceable, rounded up in the precision of x.
    def range(self, x: jax.Array, radius: Any) -> tuple[jax.Array, jax.Array]:
        return raised(x, jnp.asarray(self.r)), raised(x, jnp.asarray(radius))

    def smoothness(self, sense: str) -> tuple[float, float]:
        return 1.0, 0.0

    def deviation(self, sense: str) -> tuple[float, float]:
        return float(self.r), 0.0


def my_problem(dim: int = 10, r: float = 1.0) -> MyProblem:
    """What the registry calls: every argument has a default and is checked."""
    return MyProblem(nonnegative("my-problem", "r", r), whole("my-problem", "dim", dim))
