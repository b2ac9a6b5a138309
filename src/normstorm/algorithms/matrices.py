"""Matrices: directions from an orthogonal factor or a norm ball, and estimates that suit them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from normstorm._shared.pytrees import pytree

from .estimators import Corrected, GradientSample, Momentum, Sampled, static
from .geometries import Geometry, Normalized, norm
from .requirements import MATRICES, NOTHING, no_matrices

Tree = Any
QUINTIC = (3.4445, -4.7750, 2.0315)  # Muon's
STEPS = 5
FLOOR = 1e-8  # Scion's
BALLS = ("euclidean", "sign", "mean_sign", "spectral", "column", "row", "rms")


def _product(a: jax.Array, b: jax.Array) -> jax.Array:
    """A product that no accelerator shortens to fewer digits."""
    return jnp.matmul(a, b, precision=jax.lax.Precision.HIGHEST)


def matrix(leaf: jax.Array) -> jax.Array:
    """The leaf itself, if it has rows and columns."""
    if (reason := no_matrices(leaf)) is not None:
        raise ValueError(reason)
    return leaf


def newton_schulz(M: jax.Array, floor: Any) -> Any:
    """Five steps of the quintic iteration; singular values end near 1, not at 1."""
    a, b, c = QUINTIC
    tall = M.shape[0] > M.shape[1]
    X = M.T if tall else M
    X = X / (norm(X) + floor)
    for _ in range(STEPS):
        A = _product(X, X.T)
        X = a * X + _product(b * A + c * _product(A, A), X)
    return X.T if tall else X


def polar(M: jax.Array) -> jax.Array:
    """U V^T of M = U S V^T; singular values that are zero up to rounding give nothing, so 0 stays 0."""
    U, values, Vt = jnp.linalg.svd(M, full_matrices=False)
    kept = values > values.max() * max(M.shape) * float(np.finfo(M.dtype).eps)
    return _product(U * kept, Vt)


@pytree
@dataclass(frozen=True)
class Spectral(Geometry):
    """An orthogonal factor of every matrix of m, by `method` "svd" or "newton_schulz".

    `scaled`: times sqrt(max(1, rows / columns)).
    """

    floor: float
    method: str = static()
    scaled: bool = static()
    requirements: ClassVar[frozenset[str]] = MATRICES

    def _factor(self, leaf: jax.Array) -> jax.Array:
        M = matrix(leaf)
        scale = max(1.0, M.shape[0] / M.shape[1]) ** 0.5 if self.scaled else 1.0
        return scale * (polar(M) if self.method == "svd" else newton_schulz(M, self.floor))

    def step(self, t: Any, x: Tree, m: Tree, g: Tree, state: Tree) -> tuple[Tree, Tree]:
        return jax.tree.map(self._factor, m), state


@pytree
@dataclass(frozen=True)
class Ball(Geometry):
    """radius times the point of the unit ball of `shape` that has the largest inner product with m."""

    radius: float
    shape: str = static()

    @property
    def requirements(self) -> frozenset[str]:
        return NOTHING if self.shape in ("euclidean", "sign", "rms") else MATRICES

    def step(self, t: Any, x: Tree, m: Tree, g: Tree, state: Tree) -> tuple[Tree, Tree]:
        if self.shape == "euclidean":
            m, _ = Normalized().step(t, x, m, g, ())
            return jax.tree.map(lambda u: self.radius * u, m), state
        return jax.tree.map(lambda leaf: self.radius * self._point(leaf), m), state

    def _point(self, d: jax.Array) -> Any:
        if self.shape == "sign":
            return jnp.sign(d)
        if self.shape == "rms":
            return d / (jnp.sqrt(jnp.mean(d * d)) + FLOOR)
        rows, columns = matrix(d).shape
        if self.shape == "mean_sign":
            return jnp.sign(d) / columns
        if self.shape == "spectral":
            return (rows / columns) ** 0.5 * polar(d)
        if self.shape == "column":
            return d / (jnp.sqrt(jnp.mean(d * d, axis=0, keepdims=True)) + FLOOR)
        return d / (jnp.sqrt(jnp.sum(d * d, axis=1, keepdims=True)) * columns**0.5 + FLOOR)


@pytree
@dataclass(frozen=True)
class LowRank(Corrected):
    """Corrected, but of every matrix of m only the part of the largest `rank` singular values goes on."""

    rank: int = static()
    requirements: ClassVar[frozenset[str]] = MATRICES

    def update_estimate(self, m: Tree, grads: GradientSample, weight: Any) -> Tree:
        return super().update_estimate(jax.tree.map(self._truncated, m), grads, weight)

    def _truncated(self, leaf: jax.Array) -> jax.Array:
        U, values, Vt = jnp.linalg.svd(matrix(leaf), full_matrices=False)
        return _product(U[:, : self.rank] * values[: self.rank], Vt[: self.rank])


@pytree
@dataclass(frozen=True)
class ScaledCorrection(Momentum):
    """m <- a g(x) + (1 - a) (m + gain [g(x) - g_prev]), g_prev = g(x_prev) on the same samples: 2 K sample gradients.

    `stale` takes the gradient of the step before, on its own samples, as g_prev: K sample gradients.
    """

    stale: bool = static(False)
    gain: float = 1.0

    def first_gradients(self, problem: Any, x: Tree, samples: Tree) -> Sampled:
        g = problem.grad(x, samples)
        return GradientSample(g), g if self.stale else (), self.K

    def sample_gradients(self, problem: Any, t: Any, x: Tree, x_prev: Tree, state: Tree, samples: Tree) -> Sampled:
        g = problem.grad(x, samples)
        if self.stale:
            return GradientSample(g, state), g, self.K
        return GradientSample(g, problem.grad(x_prev, samples)), state, 2 * self.K

    def update_estimate(self, m: Tree, grads: GradientSample, weight: Any) -> Tree:
        def mix(g: jax.Array, g_prev: jax.Array, m: jax.Array) -> Any:
            return weight * g + (1 - weight) * (m + self.gain * (g - g_prev))

        return jax.tree.map(mix, grads.g, grads.g_prev, m)

    def cost(self, steps: int, size: int | None) -> int:
        return self.K * steps if self.stale else self.K * (2 * steps - 1)


@pytree
@dataclass(frozen=True)
class MarsCorrection(ScaledCorrection):
    """m <- a c + (1 - a) m, m_0 = 0, c = g(x) + gain [g(x) - g_prev]; `clip`: c / max(1, ||c||)."""

    clip: bool = static(True)

    def _corrected(self, g: Tree, g_prev: Tree) -> Tree:
        c = jax.tree.map(lambda g, g_prev: g + self.gain * (g - g_prev), g, g_prev)
        return jax.tree.map(lambda leaf: leaf / jnp.maximum(1, norm(c)), c) if self.clip else c

    def first_gradients(self, problem: Any, x: Tree, samples: Tree) -> Sampled:
        grads, state, cost = super().first_gradients(problem, x, samples)
        return GradientSample(self._corrected(grads.g, grads.g)), state, cost

    def sample_gradients(self, problem: Any, t: Any, x: Tree, x_prev: Tree, state: Tree, samples: Tree) -> Sampled:
        grads, state, cost = super().sample_gradients(problem, t, x, x_prev, state, samples)
        return GradientSample(self._corrected(grads.g, grads.g_prev), grads.g_prev), state, cost

    def update_estimate(self, m: Tree, grads: GradientSample, weight: Any) -> Tree:
        return jax.tree.map(lambda c, m: weight * c + (1 - weight) * m, grads.g, m)
