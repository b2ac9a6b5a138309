"""Objectives in closed form, with Definition 1 constants that are attained or nearly so.

(l0, l1) stands for Hessian constants, ||H_F|| <= l0 + l1 ||grad F||; the Hessian lemma turns them into Definition 1
constants. For a separable F = sum_j h(x_j) the Hessian norm is max_j |h''(x_j)| and max_j |h'(x_j)| <= ||grad F||, so a
bound |h''| <= l0 + l1 |h'| in one variable is enough.

**Range.** `change(x, radius)` bounds ||grad F(x) - grad F(y)|| for ||x - y|| <= radius =: d, for every d. The change is
the integral of the Hessian along the way, on which the radius is at most r + t after a length t, r = ||x||. For a
radial F = phi(||x||) whose Hessian norm is phi'', and phi'' increases, it is at most phi'(r + d) - phi'(r), attained on
the way outwards. For a separable F it is at most d times the largest of |h'(x_j + t) - h'(x_j)|/|t| over j and |t| <=
d, since the squares of the coordinates' changes are at most its square times t_j^2, and these add up to d^2; attained
along one coordinate. If h'' is even and increases with |x|, the largest is that of the largest |x_j|, outwards: again
h'(m + d) - h'(m) with m = max |x_j|. Differences are expanded, so that no digits are lost.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from normstorm._shared.validate import positive, whole

from .base import STATIC, margin, pytree, raised
from .lemmas import from_hessian
from .noise import Noise, Noisy, fourier, noisy, sphere


@pytree
@dataclass(frozen=True, eq=False)
class Quadratic:
    """F = sum_j a_j x_j^2/2 with a_j > 0. F* = 0.

    The Hessian is diag(a), so L0 = max a and L1 = 0, attained along the steepest coordinate.
    """

    curvatures: np.ndarray
    name: ClassVar[str] = "quadratic"
    infimum: ClassVar[float] = 0.0
    infimum_kind: ClassVar[str] = "exact"
    separable: ClassVar[bool] = True

    def value(self, x: jax.Array) -> jax.Array:
        return jnp.sum(jnp.asarray(self.curvatures, x.dtype) * x**2) / 2

    def grad(self, x: jax.Array) -> jax.Array:
        return jnp.asarray(self.curvatures, x.dtype) * x

    def start(self) -> jax.Array:
        d = len(self.curvatures)
        return jnp.full(d, d**-0.5)

    def smoothness(self) -> tuple[float, float]:
        return float(np.max(self.curvatures)), 0.0

    def change(self, x: jax.Array, radius: jax.Array) -> jax.Array:
        return jnp.max(jnp.asarray(self.curvatures, x.dtype)) * radius


@pytree
@dataclass(frozen=True, eq=False)
class RadialPower:
    """F = ||x||^(2p)/(2p), p >= 2. F* = 0.

    With r = ||x||: ||grad F|| = r^(2p-1), and the Hessian has the eigenvalues (2p-1) r^(2p-2) (along x) and r^(2p-2).
    For any l1 > 0, (2p-1) r^(2p-2) - l1 r^(2p-1) is largest at r = (2p-2)/l1, where it equals r^(2p-2). So l0 =
    ((2p-2)/l1)^(2p-2); the default l1 = 2p-2 gives l0 = 1.
    """

    l1: float
    p: int = field(metadata=STATIC)
    dim: int = field(metadata=STATIC)
    name: ClassVar[str] = "quartic"
    infimum: ClassVar[float] = 0.0
    infimum_kind: ClassVar[str] = "exact"
    separable: ClassVar[bool] = False

    def value(self, x: jax.Array) -> jax.Array:
        return jnp.sum(x**2) ** self.p / (2 * self.p)

    def grad(self, x: jax.Array) -> jax.Array:
        return jnp.sum(x**2) ** (self.p - 1) * x

    def start(self) -> jax.Array:
        return jnp.full(self.dim, 1.5 / self.dim**0.5)

    def smoothness(self) -> tuple[float, float]:
        degree = 2 * self.p - 2
        return from_hessian((degree / self.l1) ** degree, self.l1)

    def change(self, x: jax.Array, radius: jax.Array) -> jax.Array:
        """(r + d)^(2p-1) - r^(2p-1) by the binomial theorem."""
        r, k = self._size(x), 2 * self.p - 1
        return jnp.asarray(sum(math.comb(k, j) * r ** (k - j) * radius**j for j in range(1, k + 1)))

    def _size(self, x: jax.Array) -> jax.Array:
        return jnp.asarray(jnp.linalg.norm(x))


@pytree
@dataclass(frozen=True, eq=False)
class SeparablePower(RadialPower):
    """F = sum_j x_j^(2p)/(2p), p >= 2. F* = 0.

    h' = x^(2p-1) and h'' = (2p-1) x^(2p-2): in one variable the function of RadialPower, hence its constants.
    """

    name: ClassVar[str] = "quartic-sum"
    separable: ClassVar[bool] = True

    def value(self, x: jax.Array) -> jax.Array:
        return jnp.sum(x ** (2 * self.p)) / (2 * self.p)

    def grad(self, x: jax.Array) -> jax.Array:
        return x ** (2 * self.p - 1)

    def _size(self, x: jax.Array) -> jax.Array:
        return jnp.max(jnp.abs(x))


@pytree
@dataclass(frozen=True, eq=False)
class Cosh:
    """F = sum_j [cosh(c x_j) - 1]. F* = 0.

    h' = c sinh(c x), and h'' = c^2 cosh(c x) = c^2 sqrt(1 + sinh^2) <= c^2 + c |h'|: (l0, l1) = (c^2, c), attained in
    the limit of large x.
    """

    c: float
    dim: int = field(metadata=STATIC)
    name: ClassVar[str] = "cosh"
    infimum: ClassVar[float] = 0.0
    infimum_kind: ClassVar[str] = "exact"
    separable: ClassVar[bool] = True

    def value(self, x: jax.Array) -> jax.Array:
        return jnp.sum(2 * jnp.sinh(self.c * x / 2) ** 2)

    def grad(self, x: jax.Array) -> jax.Array:
        return self.c * jnp.sinh(self.c * x)

    def start(self) -> jax.Array:
        return jnp.ones(self.dim) / self.c

    def smoothness(self) -> tuple[float, float]:
        return from_hessian(self.c**2, self.c)

    def change(self, x: jax.Array, radius: jax.Array) -> jax.Array:
        """c [sinh(c (m + d)) - sinh(c m)], as a product."""
        half = self.c * radius / 2
        return 2 * self.c * jnp.cosh(self.c * jnp.max(jnp.abs(x)) + half) * jnp.sinh(half)


@pytree
@dataclass(frozen=True, eq=False)
class DoubleWell:
    """F = sum_j (x_j^2 - 1)^2/4: 2^dim minima at +-1, a maximum at 0, saddles between them. F* = 0.

    h' = x^3 - x, h'' = 3 x^2 - 1, (l0, l1) = (2, 3). By symmetry let x >= 0. If x <= 1, then -1 <= h'' <= 2. If x > 1,
    then h'' - 2 - 3 h' = -3 (x - 1)^2 (x + 1) <= 0.
    """

    dim: int = field(metadata=STATIC)
    name: ClassVar[str] = "double-well"
    infimum: ClassVar[float] = 0.0
    infimum_kind: ClassVar[str] = "exact"
    separable: ClassVar[bool] = True

    def value(self, x: jax.Array) -> jax.Array:
        return jnp.sum((x**2 - 1) ** 2) / 4

    def grad(self, x: jax.Array) -> jax.Array:
        return x**3 - x

    def start(self) -> jax.Array:
        return jnp.full(self.dim, 0.1)

    def smoothness(self) -> tuple[float, float]:
        return from_hessian(2.0, 3.0)

    def change(self, x: jax.Array, radius: jax.Array) -> jax.Array:
        """[h'(x + t) - h'(x)]/t = t^2 + 3 x t + 3 x^2 - 1: largest at t = d outwards, least at -min(d, 3 |x|/2)."""
        a = jnp.abs(x)
        inwards = jnp.minimum(radius, 1.5 * a)
        high, low = radius * (radius + 3 * a) + 3 * a**2, inwards * (inwards - 3 * a) + 3 * a**2
        steepest = jnp.max(jnp.maximum(high - 1, 1 - low))
        return radius * raised(x, steepest, 1 + jnp.max(high))


@pytree
@dataclass(frozen=True, eq=False)
class CoshCosine:
    """F = sum_j [cosh(c x_j) + a cos(b x_j)], with many critical points.

    h' = c sinh(c x) - a b sin(b x), so c |sinh| <= |h'| + a b. h'' = c^2 cosh - a b^2 cos(b x), so
    |h''| <= c^2 + c (c |sinh|) + a b^2 <= (c^2 + a b c + a b^2) + c |h'|.
    `infimum` is dim times a proven lower bound of min h, see `lowest`.
    """

    c: float
    a: float
    b: float
    infimum: float
    dim: int = field(metadata=STATIC)
    name: ClassVar[str] = "cosh-cosine"
    infimum_kind: ClassVar[str] = "lower bound"
    separable: ClassVar[bool] = True

    def value(self, x: jax.Array) -> jax.Array:
        return jnp.sum(jnp.cosh(self.c * x) + self.a * jnp.cos(self.b * x))

    def grad(self, x: jax.Array) -> jax.Array:
        return self.c * jnp.sinh(self.c * x) - self.a * self.b * jnp.sin(self.b * x)

    def start(self) -> jax.Array:
        return jnp.full(self.dim, 0.9 / self.b)

    def smoothness(self) -> tuple[float, float]:
        c, a, b = self.c, self.a, self.b
        return from_hessian(c**2 + a * b * c + a * b**2, c)

    def change(self, x: jax.Array, radius: jax.Array) -> jax.Array:
        """The two parts of h'' on the way are bounded apart, from above and from below.

        That of cosh has the mean c [sinh(c (x + t)) - sinh(c x)]/t <= c^2 cosh(c (|x| + d/2)) sinh(c d/2)/(c d/2), and
        is at least c^2 (1 + v^2/2), v = c |.| at the nearest point to 0. All of c |x| comes from the sine that the
        gradient needs, too. cos(b y), |y - x| <= d, is cos(b x) up to |sin(b x)| b d + (b d)^2/2. What b x may have
        lost widens that.
        """
        c, a, b, size = self.c, self.a, self.b, jnp.abs(x)
        half, turn = c * radius / 2, b * (radius + margin(x) * (1 + size))
        sine, grown = jnp.abs(jnp.sinh(c * x)), jnp.sinh(half)
        cosh = jnp.sqrt(1 + sine**2) * jnp.cosh(half) + sine * grown
        most = c**2 * cosh * jnp.where(half > 0, grown / jnp.where(half > 0, half, 1), 1)
        least = c**2 * (1 + (c * jnp.maximum(size - radius, 0)) ** 2 / 2)
        middle, apart = jnp.cos(b * x), turn * (jnp.abs(jnp.sin(b * x)) + turn / 2)
        low, high = jnp.maximum(middle - apart, -1), jnp.minimum(middle + apart, 1)
        steepest = jnp.max(jnp.maximum(most - a * b**2 * low, a * b**2 * high - least))
        return radius * raised(x, steepest, a * b**2 + jnp.max(most))

    @staticmethod
    def lowest(c: float, a: float, b: float, cells: int = 1 << 18) -> float:
        """A lower bound of min h, below it by at most M s^2/8 for cells of width s.

        h is even, and h(x) >= cosh(c x) - a > 1 + a = h(0) once cosh(c x) > 1 + 2 a, so [0, R] with
        cosh(c R) = 1 + 2 a contains a minimiser. There |h''| <= M = c^2 (1 + 2 a) + a b^2. Within a cell h is above the
        chord minus M s^2/8, hence above the smaller end minus M s^2/8.
        """
        R = np.arccosh(1 + 2 * a) / c
        x = np.linspace(0, R, cells + 1)
        M = c**2 * (1 + 2 * a) + a * b**2
        return float(np.min(np.cosh(c * x) + a * np.cos(b * x)) - M * (R / cells) ** 2 / 8)


@pytree
@dataclass(frozen=True, eq=False)
class ExpQuad:
    """F = phi(||x||): l0 r^2/2 + l0/(2 l1^2) for r <= 1/l1, (l0/l1^2) e^(l1 r - 1) beyond. F* = l0/(2 l1^2) at 0.

    phi, phi' and phi'' agree at r = 1/l1, so F is C^2. The Hessian has the eigenvalues phi'' and phi'/r. Inside both
    are l0. Outside phi'' = l1 phi' and phi'/r <= l1 phi', so ||H|| = l1 ||grad F||. Both cases: ||H|| <= l0 + l1
    ||grad F||, and far out nothing is lost. l0 and l1 are free.
    """

    l0: float
    l1: float
    dim: int = field(metadata=STATIC)
    name: ClassVar[str] = "exp-quad"
    infimum_kind: ClassVar[str] = "exact"
    separable: ClassVar[bool] = False

    @property
    def infimum(self) -> float:
        return self.l0 / (2 * self.l1**2)

    def value(self, x: jax.Array) -> jax.Array:
        r2 = jnp.sum(x**2)
        q = self.l1 * jnp.sqrt(jnp.maximum(r2, self.l1**-2))
        return self.l0 / self.l1**2 * jnp.where(q > 1, jnp.exp(q - 1), (self.l1**2 * r2 + 1) / 2)

    def grad(self, x: jax.Array) -> jax.Array:
        q = jnp.maximum(self.l1 * jnp.sqrt(jnp.sum(x**2)), 1)
        return self.l0 * jnp.exp(q - 1) / q * x

    def start(self) -> jax.Array:
        return jnp.full(self.dim, 3.0 / (self.l1 * self.dim**0.5))

    def smoothness(self) -> tuple[float, float]:
        return from_hessian(self.l0, self.l1)

    def change(self, x: jax.Array, radius: jax.Array) -> jax.Array:
        """phi'(r + d) - phi'(r): l0 times the way inside, and an exponential outside."""
        edge, r = 1 / self.l1, jnp.linalg.norm(x)
        inside = jnp.clip(edge - r, 0, radius)
        grown = jnp.exp(self.l1 * jnp.maximum(r, edge) - 1) * jnp.expm1(self.l1 * (radius - inside))
        return self.l0 * (inside + grown / self.l1)


@pytree
@dataclass(frozen=True, eq=False)
class Valley:
    """F = g0 (sqrt(1 + x_1^2) - 1) + sum_{j>1} x_j^2/2: a long gentle slope beside sharp directions. F* = 0.

    The Hessian is diagonal, with g0 (1 + x_1^2)^(-3/2) and 1: L0 = max(g0, 1) (g0 if dim = 1), L1 = 0. The start lies
    `distance` up the slope, where the gap is about g0 distance.
    """

    g0: float
    distance: float
    dim: int = field(metadata=STATIC)
    name: ClassVar[str] = "noisy-valley"
    infimum: ClassVar[float] = 0.0
    infimum_kind: ClassVar[str] = "exact"
    separable: ClassVar[bool] = True

    def value(self, x: jax.Array) -> jax.Array:
        slope = x[0] ** 2 / (1 + jnp.sqrt(1 + x[0] ** 2))
        return self.g0 * slope + jnp.sum(x[1:] ** 2) / 2

    def grad(self, x: jax.Array) -> jax.Array:
        gentle = self.g0 * x[:1] / jnp.sqrt(1 + x[:1] ** 2)
        return jnp.concatenate([gentle, x[1:]])

    def start(self) -> jax.Array:
        return jnp.zeros(self.dim).at[0].set(self.distance)

    def smoothness(self) -> tuple[float, float]:
        return (max(self.g0, 1.0) if self.dim > 1 else self.g0), 0.0

    def change(self, x: jax.Array, radius: jax.Array) -> jax.Array:
        """d times the larger of 1 (if dim > 1) and g0 (1 + q^2)^(-3/2), q the least |x_1| on the way."""
        slope = self.g0 * (1 + jnp.maximum(jnp.abs(x[0]) - radius, 0) ** 2) ** -1.5
        return radius * (jnp.maximum(slope, 1) if self.dim > 1 else slope)


def default_noise() -> tuple[Noise, ...]:
    """Bounded, part of it proportional to the gradient, part of it moving with x."""
    return sphere(0.3, 0.3), fourier(0.5, 3.0)


def quadratic(dim: int = 10, low: float = 0.1, high: float = 10.0, noise: tuple[Noise, ...] | None = None) -> Noisy:
    curvatures = np.geomspace(positive("quadratic", "low", low), positive("quadratic", "high", high), _dim(dim))
    return noisy(Quadratic(curvatures), *_or_default(noise))


def quartic(dim: int = 5, p: int = 2, l1: float | None = None, noise: tuple[Noise, ...] | None = None) -> Noisy:
    return noisy(RadialPower(*_power("quartic", p, l1), _dim(dim)), *_or_default(noise))


def quartic_sum(dim: int = 5, p: int = 2, l1: float | None = None, noise: tuple[Noise, ...] | None = None) -> Noisy:
    return noisy(SeparablePower(*_power("quartic-sum", p, l1), _dim(dim)), *_or_default(noise))


def cosh(dim: int = 5, c: float = 2.0, noise: tuple[Noise, ...] | None = None) -> Noisy:
    return noisy(Cosh(positive("cosh", "c", c), _dim(dim)), *_or_default(noise))


def double_well(dim: int = 5, noise: tuple[Noise, ...] | None = None) -> Noisy:
    return noisy(DoubleWell(_dim(dim)), *_or_default(noise))


def cosh_cosine(
    dim: int = 5, c: float = 1.0, a: float = 2.0, b: float = 3.0, noise: tuple[Noise, ...] | None = None
) -> Noisy:
    dim, (c, a, b) = _dim(dim), (positive("cosh-cosine", k, v) for k, v in (("c", c), ("a", a), ("b", b)))
    return noisy(CoshCosine(c, a, b, dim * CoshCosine.lowest(c, a, b), dim), *_or_default(noise))


def exp_quad(dim: int = 5, l0: float = 1.0, l1: float = 2.0, noise: tuple[Noise, ...] | None = None) -> Noisy:
    objective = ExpQuad(positive("exp-quad", "l0", l0), positive("exp-quad", "l1", l1), _dim(dim))
    return noisy(objective, *_or_default(noise))


def noisy_valley(
    dim: int = 10, g0: float = 0.1, distance: float = 30.0, noise: tuple[Noise, ...] | None = None
) -> Noisy:
    objective = Valley(positive("noisy-valley", "g0", g0), positive("noisy-valley", "distance", distance), _dim(dim))
    return noisy(objective, *((sphere(1.0, 0.0), fourier(0.3, 1.0)) if noise is None else noise))


def _or_default(noise: tuple[Noise, ...] | None) -> tuple[Noise, ...]:
    return default_noise() if noise is None else noise


def _dim(dim: int) -> int:
    return whole("problem", "dim", dim)


def _power(name: str, p: int, l1: float | None) -> tuple[float, int]:
    p = whole(name, "p", p, least=2)
    return (2.0 * p - 2 if l1 is None else positive(name, "l1", l1)), p
