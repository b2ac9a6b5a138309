"""A function that no constants fit: the two-layer linear network (u v - 1)^2/2.

grad F = (u v - 1) (v, u), and the Hessian at u = 0 is [[v^2, -1], [-1, 0]]. At (0, t) the gradient has length t, while
a step h along the first coordinate moves it by (t^2 h, t h^2 - h). Suppose Definition 1 held with (L0, L1), and take
0 < h <= 1/L1: the left side is at least t^2 h, the right side is (L0 + L1 t) h. At t = L1 + sqrt(L0) + 1 the left side
is larger, as t^2 = L1 t + (sqrt(L0) + 1) t > L1 t + L0. So plain networks of two layers have
no global constants; what such a network needs is a regulariser (see `network.py`).
"""

from __future__ import annotations

import jax
import jax.numpy as jnp


def value(x: jax.Array) -> jax.Array:
    return (x[0] * x[1] - 1) ** 2 / 2


def grad(x: jax.Array) -> jax.Array:
    return (x[0] * x[1] - 1) * x[::-1]


def violation(L0: float, L1: float) -> tuple[jax.Array, jax.Array]:
    """A pair (x, y) within 1/L1 of each other that breaks Definition 1 with these constants."""
    t = L1 + L0**0.5 + 1
    h = 1.0 if L1 == 0 else min(1.0, 1 / L1)
    return jnp.array([0.0, t]), jnp.array([h, t])
