"""Noise with exactly known moments, added to an objective F whose Definition 1 constants (L0F, L1F) are known.

A noise is a random function added to F, with mean zero at every x; several of them are independent and add up:

    grad f(x, s) = grad F(x) + sum_p n_p(x, s_p)

Each n_p is described by three numbers, `Effect(level, ratio, slope)`, with g = ||grad F(x)|| and d = ||x - y||,
D = ||grad F(x) - grad F(y)||:

    almost surely    ||n_p(x)|| <= level + ratio g              ||n_p(x) - n_p(y)|| <= ratio D + slope d
    in mean square   E||n_p(x)||^2 <= level^2 + ratio^2 g^2     E||n_p(x) - n_p(y)||^2 <= ratio^2 D^2 + slope^2 d^2

**Constants of the sum.** Almost surely the triangle inequality and Definition 1 give, for d <= 1/L1F,
3A: (1 + sum ratio) (L0F, L1F) + (sum slope, 0), 4A: (sum level, sum ratio). In mean square the cross terms vanish, as
the parts are independent with mean zero. 4B: levels and ratios add in squares. For 3B let c^2 = 1 + sum ratio^2 and
b^2 = sum slope^2. Then E||grad f(x) - grad f(y)||^2 <= [c^2 (L0F + L1F g)^2 + b^2] d^2, and the root of the bracket is
the length of (c L0F, b) + (c L1F g, 0), hence at most hypot(c L0F, b) + c L1F g: 3B holds with
(hypot(c L0F, b), c L1F). Both L1 are >= L1F, so the admissible radius does not exceed that of F.

**Range.** grad f(x, s) lies in the ball around grad F(x) whose radius is the sum of the lengths of the n_p, which are
bounded for the gradient at hand. Its change is at most D plus the changes of the n_p, where the objective bounds D near
x (`change`, O(d), without a limit on the radius; per unit of radius it does not fall when the radius grows). Both are
attained by samples that point along the gradient and its change for all noises but `coordinate` beside others;
unbounded noise has an infinite range.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from normstorm._shared.jax_internals import apart
from normstorm._shared.validate import nonnegative, positive
from normstorm.random import numbers

from .base import STATIC, Certified, margin, pytree, raised, unit

TINY = 1e-12


class Effect(NamedTuple):
    level: float
    ratio: float
    slope: float


class Objective(Protocol):
    """A deterministic F with proven Definition 1 constants."""

    @property
    def name(self) -> str: ...
    @property
    def infimum(self) -> float: ...
    @property
    def infimum_kind(self) -> str: ...
    @property
    def separable(self) -> bool: ...
    def value(self, x: jax.Array) -> jax.Array: ...
    def grad(self, x: jax.Array) -> jax.Array: ...
    def start(self) -> jax.Array: ...
    def smoothness(self) -> tuple[float, float]: ...
    def change(self, x: jax.Array, radius: jax.Array) -> jax.Array: ...


class Noise(Protocol):
    def takes(self, dim: int) -> tuple[int, int]:
        """The standard normals, and the numbers uniform on [0, 1), that one sample is made of."""
        ...

    def sample(self, normals: jax.Array, uniforms: jax.Array, dim: int) -> Any:
        """Samples from the numbers that they take, a row for each."""
        ...

    def mean(self, x: jax.Array, gradient: jax.Array, sample: Any) -> jax.Array:
        """Mean of n_p(x, s) over the samples; gradient = grad F(x)."""
        ...

    def effect(self, sense: str, dim: int) -> Effect: ...

    def range(self, gradient: jax.Array, moved: jax.Array, radius: jax.Array) -> tuple[Any, Any]:
        """Sure bounds of ||n_p(x)|| and of ||n_p(x) - n_p(y)||; moved bounds ||grad F(x) - grad F(y)||."""
        ...


@pytree
@dataclass(frozen=True, eq=False)
class SphereNoise:
    """f += s1 e F(x) + s0 <u, x>, e = +-1 and u uniform on the unit sphere, independent (bounded).

    n = s1 e grad F(x) + s0 u. Its length is at most s0 + s1 g, attained when u points along e grad F. E e = 0 and
    E u = 0 kill the cross term: E||n||^2 = s0^2 + s1^2 g^2, an equality. The difference at two points is
    s1 e (grad F(x) - grad F(y)), of length s1 D.
    """

    s0: float
    s1: float

    def takes(self, dim: int) -> tuple[int, int]:
        return dim, 1

    def sample(self, normals: jax.Array, uniforms: jax.Array, dim: int) -> tuple[jax.Array, jax.Array]:
        return jnp.where(uniforms[:, 0] < 0.5, -1.0, 1.0), unit(normals)

    def mean(self, x: jax.Array, gradient: jax.Array, sample: tuple[jax.Array, jax.Array]) -> jax.Array:
        e, u = (jnp.mean(part, axis=0).astype(x.dtype) for part in sample)
        return self.s1 * e * gradient + self.s0 * u

    def effect(self, sense: str, dim: int) -> Effect:
        return Effect(self.s0, self.s1, 0.0)

    def range(self, gradient: jax.Array, moved: jax.Array, radius: jax.Array) -> tuple[Any, Any]:
        return self.s0 + self.s1 * jnp.linalg.norm(gradient), self.s1 * moved


@pytree
@dataclass(frozen=True, eq=False)
class GaussianNoise(SphereNoise):
    """As SphereNoise with e ~ N(0, 1), u ~ N(0, I/d): the same second moments, but unbounded, so 3A and 4A fail."""

    def takes(self, dim: int) -> tuple[int, int]:
        return dim + 1, 0

    def sample(self, normals: jax.Array, uniforms: jax.Array, dim: int) -> tuple[jax.Array, jax.Array]:
        return normals[:, 0], normals[:, 1:] / math.sqrt(dim)

    def effect(self, sense: str, dim: int) -> Effect:
        if sense == "almost-sure":
            raise ValueError("gaussian noise: sense must be mean-square (it is unbounded); got sense='almost-sure'")
        return Effect(self.s0, self.s1, 0.0)

    def range(self, gradient: jax.Array, moved: jax.Array, radius: jax.Array) -> tuple[Any, Any]:
        return math.inf, math.inf


@pytree
@dataclass(frozen=True, eq=False)
class FourierNoise:
    """f += (sf/w) cos(w <v, x> + phi), v uniform on the unit sphere, phi uniform on [0, 2 pi) (bounded).

    n = -sf sin(w <v, x> + phi) v has length <= sf, mean zero and mean square sf^2/2, because of phi. It moves with x:
    by sf |sin(a + phi) - sin(b + phi)| <= 2 sf |sin((a - b)/2)| with |a - b| <= w d, which is at most sf w d. Averaged
    over phi, [sin(a + phi) - sin(b + phi)]^2 is 2 sin^2((a - b)/2) <= (a - b)^2/2, and E <v, x - y>^2 = d^2/dim, so its
    mean square is at most sf^2 w^2 d^2/(2 dim).

    Noise that is linear in x cancels in grad f(x_t, s) - grad f(x_{t-1}, s) and flatters every method that reduces
    variance; this one does not cancel.
    """

    sf: float
    w: float

    def takes(self, dim: int) -> tuple[int, int]:
        return dim, 1

    def sample(self, normals: jax.Array, uniforms: jax.Array, dim: int) -> tuple[jax.Array, jax.Array]:
        return unit(normals), 2 * math.pi * uniforms[:, 0]

    def mean(self, x: jax.Array, gradient: jax.Array, sample: tuple[jax.Array, jax.Array]) -> jax.Array:
        v, phi = (part.astype(x.dtype) for part in sample)
        wave = apart(jnp.sin, self.w * jnp.sum(v * x, axis=-1) + phi)  # once a sample, not once a coordinate
        return -self.sf * jnp.mean(wave[:, None] * v, axis=0)

    def effect(self, sense: str, dim: int) -> Effect:
        if sense == "almost-sure":
            return Effect(self.sf, 0.0, self.sf * self.w)
        return Effect(self.sf / math.sqrt(2), 0.0, self.sf * self.w / math.sqrt(2 * dim))

    def range(self, gradient: jax.Array, moved: jax.Array, radius: jax.Array) -> tuple[Any, Any]:
        return self.sf, 2 * self.sf * jnp.sin(jnp.minimum(self.w * radius, math.pi) / 2)


@pytree
@dataclass(frozen=True, eq=False)
class CoordinateNoise:
    """f(x, j) = dim h_j(x_j) for separable F = sum_j h_j(x_j), j uniform: noise that vanishes with the gradient.

    n = (dim P_j - I) grad F(x) with P_j the projection on coordinate j. The matrix has the eigenvalue dim - 1 once and
    -1 otherwise, so its norm is dim - 1 (0 if dim = 1). E||dim P_j g||^2 = dim ||g||^2, so E||n||^2 = (dim - 1) g^2, an
    equality. Differences obey the same two statements with D in the place of g. For a given gradient the length of n is
    the root of g^2 + (dim^2 - 2 dim) (dF/dx_j)^2, largest for the steepest coordinate.
    """

    def takes(self, dim: int) -> tuple[int, int]:
        return 0, 1

    def sample(self, normals: jax.Array, uniforms: jax.Array, dim: int) -> jax.Array:
        # A number below one, times dim, may be rounded up to dim.
        return jnp.minimum((dim * uniforms[:, 0]).astype(jnp.int32), dim - 1)

    def mean(self, x: jax.Array, gradient: jax.Array, sample: jax.Array) -> jax.Array:
        share = jnp.mean(jax.nn.one_hot(sample, x.size, dtype=x.dtype), axis=0)
        return (x.size * share - 1) * gradient

    def effect(self, sense: str, dim: int) -> Effect:
        return Effect(0.0, dim - 1.0 if sense == "almost-sure" else math.sqrt(dim - 1.0), 0.0)

    def range(self, gradient: jax.Array, moved: jax.Array, radius: jax.Array) -> tuple[Any, Any]:
        d, squares = gradient.size, gradient**2
        return jnp.sqrt(jnp.sum(squares) + max(d * (d - 2), -1) * jnp.max(squares)), (d - 1) * moved


@pytree
@dataclass(frozen=True, eq=False)
class Noisy(Certified):
    """An objective with independent noises; a batch is a tuple with one sample per noise."""

    objective: Objective
    noises: tuple[Noise, ...]
    dim: int = field(metadata=STATIC)

    @property
    def name(self) -> str:
        return self.objective.name

    @property
    def infimum(self) -> float:
        return self.objective.infimum

    @property
    def infimum_kind(self) -> str:
        return self.objective.infimum_kind

    def sample(self, key: jax.Array, n: int) -> tuple[Any, ...]:
        if not self.noises:
            return ()
        ends = np.cumsum([(0, 0), *(noise.takes(self.dim) for noise in self.noises)], axis=0).tolist()
        p, q = ends[-1]
        normals, uniforms = numbers(key, n * p, n * q)
        normals, uniforms = normals.reshape(n, p), uniforms.reshape(n, q)
        return tuple(
            noise.sample(normals[:, a:c], uniforms[:, b:d], self.dim)
            for noise, (a, b), (c, d) in zip(self.noises, ends, ends[1:], strict=False)
        )

    def grad(self, x: jax.Array, batch: tuple[Any, ...]) -> jax.Array:
        gradient = result = self.objective.grad(x)
        for noise, sample in zip(self.noises, batch, strict=True):
            result = result + noise.mean(x, gradient, sample)
        return result

    def value(self, x: jax.Array) -> jax.Array:
        return self.objective.value(x)

    def full_grad(self, x: jax.Array) -> jax.Array:
        return self.objective.grad(x)

    def range(self, x: jax.Array, radius: Any) -> tuple[jax.Array, jax.Array]:
        radius, gradient = jnp.asarray(radius, x.dtype), self.objective.grad(x)
        # Near a stationary point a gradient is a small difference: it may have lost what a rounding of x would change.
        rounding = margin(x) * (jnp.linalg.norm(x) + TINY)
        steepness = self.objective.change(x, jnp.maximum(radius, rounding)) / jnp.maximum(radius, rounding)
        moved, lost, none = radius * steepness, rounding * steepness, jnp.zeros_like(radius)
        spread, change = none, moved
        for noise in self.noises:
            size, more = noise.range(gradient, moved, radius)
            spread, change = spread + size + noise.range(gradient, lost, none)[1], change + more
        return raised(x, spread), raised(x, change)

    def start(self) -> jax.Array:
        return self.objective.start()

    def objective_smoothness(self) -> tuple[float, float]:
        return self.objective.smoothness()

    def smoothness(self, sense: str) -> tuple[float, float]:
        L0, L1 = self.objective.smoothness()
        effects = [noise.effect(sense, self.dim) for noise in self.noises]
        if sense == "almost-sure":
            scale = 1 + sum(e.ratio for e in effects)
            return scale * L0 + sum(e.slope for e in effects), scale * L1
        scale = math.hypot(1, *(e.ratio for e in effects))
        return math.hypot(scale * L0, *(e.slope for e in effects)), scale * L1

    def deviation(self, sense: str) -> tuple[float, float]:
        effects = [noise.effect(sense, self.dim) for noise in self.noises]
        levels, ratios = [e.level for e in effects], [e.ratio for e in effects]
        if sense == "almost-sure":
            return math.fsum(levels), math.fsum(ratios)
        return math.hypot(*levels), math.hypot(*ratios)


def sphere(s0: float, s1: float) -> SphereNoise:
    """Bounded noise: s0 >= 0 of constant size, s1 >= 0 per unit of gradient norm (see `SphereNoise`)."""
    return SphereNoise(nonnegative("sphere noise", "s0", s0), nonnegative("sphere noise", "s1", s1))


def gaussian(s0: float, s1: float) -> GaussianNoise:
    """Unbounded noise with the second moments of `sphere`: constants in mean square only."""
    return GaussianNoise(nonnegative("gaussian noise", "s0", s0), nonnegative("gaussian noise", "s1", s1))


def fourier(sf: float, w: float) -> FourierNoise:
    """Bounded noise that bends: waves of slope at most sf >= 0 and frequency w > 0 (see `FourierNoise`)."""
    return FourierNoise(nonnegative("fourier noise", "sf", sf), positive("fourier noise", "w", w))


def coordinate() -> CoordinateNoise:
    """One random coordinate of a separable objective: noise that vanishes with the gradient."""
    return CoordinateNoise()


def noisy(objective: Objective, *noises: Noise) -> Noisy:
    """The stochastic problem: objective plus the given independent noises (none at all is allowed)."""
    if not objective.separable and any(isinstance(noise, CoordinateNoise) for noise in noises):
        raise ValueError(f"coordinate noise: objective must be separable; got {objective.name}")
    return Noisy(objective, tuple(noises), int(objective.start().shape[0]))
