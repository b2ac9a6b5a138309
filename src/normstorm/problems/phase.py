"""Phase retrieval: recover x, up to sign, from squares of inner products."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from normstorm._shared.validate import POSITIVE, number, positive, whole

from .base import Certified, FiniteSum, dot, longest, pytree, raised
from .lemmas import Vector, largest_excess
from .linear import Matrix, generator, sphere_rows


@pytree
@dataclass(frozen=True, eq=False)
class PhaseRetrieval(FiniteSum, Certified):
    """f_i = ((a_i'x)^2 - y_i)^2/4 with y_i = (a_i'z)^2 >= 0 for some z. F* = 0, at z and -z.

    grad f_i = ((a_i'x)^2 - y_i)(a_i'x) a_i and H_i = (3 (a_i'x)^2 - y_i) a_i a_i'. Let r = ||x||, R = max ||a_i||,
    Y = max y_i, s = a'x.
    **Gradient from below.** Let k = E (a'u)^4 for the direction u of x. <grad F, x> = E s^4 - E y s^2, and E y s^2 is
    at most lmax(E y aa') r^2, and at most sqrt(k E y^2) r^2 by Cauchy and Schwarz. With k4 any lower bound of k over
    all u, ||grad F|| >= B(r) = k4 r^3 - S r wherever B(r) >= 0, for S the smaller of lmax(E y aa') and sqrt(k4 E y^2):
    if k4 r^2 - sqrt(k4 E y^2) >= 0, then k r^2 - sqrt(k E y^2) increases with k from k4 on. And B(q r) >= q^3 B(r) for
    q >= 1.
    **Moments.** On symmetric matrices let M be the form Z -> E w <aa', Z>^2, w >= 0. For unit u, Z = uu' has norm 1 and
    trace 1, so E w (a'u)^4 = <Z, M Z> - t (tr Z)^2 + t lies between the ends of the spectrum of M - t I I', plus t, for
    every number t. We take the best t on a grid; no t is wrong. This gives k4 (w = 1) and an upper bound k8 of
    E ||a||^4 (a'u)^4. It also bounds E ||a||^2 (a'u)^6, hence by Hoelder's inequality E ||a||^2 (a'u)^4 (a'v)^2 for two
    unit vectors. Let Q = lmax(E y^2 ||a||^2 aa').
    **Smoothness**, for any chosen L1 > 0. On the way from x to a point at distance <= 1/L1 the radius is at most
    p = r + 1/L1. There ||H_i|| <= N(p) = R^2 max(3 R^2 p^2, Y), both terms in 3 s^2 - y being non-negative; and for a
    unit vector v, E ||H v||^2 <= E ||a||^2 (9 s^4 + y^2)(a'v)^2 <= N(p)^2 = 9 k8 p^4 + Q. The change of the gradient is
    the integral of H v, so its length, or root mean square (Minkowski), is at most N(p) times the distance. N(r + 1/L1)
    grows at most like r^2: the radial lemma gives L0. There is no factor 1/ln 2, as H is bounded on the whole way.
    **Noise.** With |s| <= R r and 0 <= y <= Y, |s^2 - y| |s| is at most |s|^3 if s^2 >= y, and else at most min(y |s|,
    2 (y/3)^(3/2)). So ||grad f_i|| <= N(r) = R max(R^3 r^3, min(Y R r, 2 (Y/3)^(3/2))), which grows at most like
    r^3, and the noise is at most N(r) + ||grad F||: 4A holds with sigma1 = 1 + n1 for n1 = 1.25 R^4/k4 and sigma0
    from the radial lemma. In mean square it is E||grad f||^2 - ||grad F||^2, and E||grad f||^2 = E ||a||^2 (s^2 - y)^2
    s^2 <= E ||a||^2 (s^6 + y^2 s^2) <= k8 r^6 + Q r^2. So the radial lemma for N2(r) = min(N(r)^2, k8 r^6 + Q r^2) and
    B^2 with n1 = 3 k8/k4^2 gives sigma0^2, and sigma1^2 = n1 - 1 (at least 0). Any n1 above R^4/k4 and k8/k4^2 would
    do; these make plans short.
    **Range.** With p = x - z and q = x + z, s^2 - (a'z)^2 = (a'p)(a'q) lies between -m and M, R^2 times the ends of the
    spectrum of (pq' + qp')/2, (p'q -+ ||p|| ||q||)/2. Let b = s^2 - (a'z)^2, c = R^2 (M - m)/2. Then ||b s a - c x||^2
    = s^2 (b^2 ||a||^2 - 2 c b) + c^2 r^2 is convex in b, and s^2 (b^2 R^2 - 2 c b) <= R^2 r^2 R^2 m M at both ends of
    [-m, M], so the length is at most R^2 r (M + m)/2: spread = R^4 r ||p|| ||q||/2 + R^2 r e with e = max |y_i -
    (a_i'z)^2| (rounding). It vanishes at z and -z. From s to s + t the gradient changes by t (3 s^2 + 3 s t + t^2 - y)
    a. The bracket is 3 s^2 + 3 s t + t^2 >= 0, at most B = R^2 (3 r^2 + 3 r d + d^2) for d = radius, minus y; or it is
    s^2 - y, of size at most max(m, M) + e, plus 2 s^2 + 3 s t + t^2, which lies between -t^2/8 and B - R^2 r^2 >= t^2.
    So change = R^2 d times the smaller of max(B, Y) and max(m, M) + e + B - R^2 r^2.
    """

    data: tuple[Matrix, Matrix]
    signal: Vector
    L1: float
    k4: float
    k8: float
    name: ClassVar[str] = "phase-retrieval"
    infimum: ClassVar[float] = 0.0
    infimum_kind: ClassVar[str] = "exact"

    def loss(self, x: jax.Array, row: tuple[jax.Array, jax.Array]) -> jax.Array:
        return (dot(row[0], x) ** 2 - row[1]) ** 2 / 4

    def start(self) -> jax.Array:
        a, y = self.data
        radius = float(np.sqrt(np.mean(y) / np.mean(np.sum(a**2, axis=1)) * a.shape[1]))
        return jnp.zeros(a.shape[1]).at[0].set(radius)

    def range(self, x: jax.Array, radius: Any) -> tuple[jax.Array, jax.Array]:
        a, y = self._rows(x)
        z = jnp.asarray(self.signal, x.dtype)
        R, Y, off = longest(a), jnp.max(y), jnp.max(jnp.abs(y - dot(a, z) ** 2))
        r, p, q = jnp.linalg.norm(x), x - z, x + z
        product, overlap, size = jnp.linalg.norm(p) * jnp.linalg.norm(q), jnp.sum(p * q), r**2 + jnp.sum(z**2)
        spread = raised(x, R**4 * r * product / 2 + R**2 * r * off, R**4 * r * size)
        farthest = raised(x, R**2 * (product + jnp.abs(overlap)) / 2 + off, R**2 * size)
        way = R**2 * radius * (3 * r + radius)
        bracket = jnp.minimum(jnp.maximum(3 * R**2 * r**2 + way, Y), farthest + 2 * R**2 * r**2 + way)
        return spread, raised(x, R**2 * radius * bracket)

    def smoothness(self, sense: str) -> tuple[float, float]:
        R, Y = self._bounds()

        def hessian(r: Vector) -> Vector:
            p = r + 1 / self.L1
            if sense == "almost-sure":
                return np.maximum(3 * R**4 * p**2, R**2 * Y)
            return np.sqrt(9 * self.k8 * p**4 + self._spread())

        return largest_excess(hessian, self._gradient, self.L1, self._reach()), self.L1

    def deviation(self, sense: str) -> tuple[float, float]:
        R, Y = self._bounds()

        def size(r: Vector) -> Vector:
            return np.asarray(R * np.maximum(R**3 * r**3, np.minimum(Y * R * r, 2 * (Y / 3) ** 1.5)))

        if sense == "almost-sure":
            slope = 1.25 * R**4 / self.k4
            return largest_excess(size, self._gradient, slope, self._reach()), 1 + slope
        slope = max(3 * self.k8 / self.k4**2, 1.0)
        square = largest_excess(
            lambda r: np.minimum(size(r) ** 2, self.k8 * r**6 + self._spread() * r**2),
            lambda a, b: np.maximum(self._gradient(a, b), 0) ** 2,
            slope,
            self._reach(),
        )
        return square**0.5, (slope - 1) ** 0.5

    def _gradient(self, a: Vector, b: Vector) -> Vector:
        """B on [a, b] from below, where it is positive: it is negative up to its zero and grows from there on."""
        return np.asarray(self.k4 * a**3 - self._signal() * a)

    def _reach(self) -> float:
        """Where B has its zero."""
        return float((self._signal() / self.k4) ** 0.5)

    def _signal(self) -> float:
        """S."""
        a, y = self.data
        largest = float(np.linalg.eigvalsh((a * y[:, None]).T @ a / len(a))[-1])
        return min(largest, math.sqrt(self.k4 * np.mean(y**2)))

    def _spread(self) -> float:
        """Q."""
        a, y = self.data
        weight = y**2 * np.sum(a**2, axis=1)
        return float(np.linalg.eigvalsh((a * weight[:, None]).T @ a / len(a))[-1])

    def _bounds(self) -> tuple[float, float]:
        """R and Y."""
        a, y = self.data
        return float(np.max(np.linalg.norm(a, axis=1))), float(np.max(y))


def fourth_moments(a: Matrix, weights: Vector) -> tuple[float, float]:
    """Bounds of E w (a'u)^4 over unit u, from below and from above; see PhaseRetrieval."""
    n, d = a.shape
    i, j = np.triu_indices(d)
    Z = a[:, i] * a[:, j] * np.where(i == j, 1.0, 2**0.5)
    M, trace = (Z * weights[:, None]).T @ Z / n, (i == j).astype(float)
    grid = np.linspace(0, float(np.trace(M)) / d, 201)
    spectra = [np.linalg.eigvalsh(M - t * np.outer(trace, trace)) + t for t in grid]
    low, high = max(e[0] for e in spectra), min(e[-1] for e in spectra)
    return float(low) * (1 - 1e-9), float(high) * (1 + 1e-9)


def phase_retrieval(n: int = 200, dim: int = 4, length: float = 1.0, L1: float = 20.0, seed: int = 0) -> PhaseRetrieval:
    """Rows of length sqrt(dim), a planted signal of the given length, no measurement noise; L1 is free."""
    name = "phase-retrieval"
    n, dim, rng = whole(name, "n", n), whole(name, "dim", dim), generator(name, seed)
    a = dim**0.5 * sphere_rows(rng, n, dim)
    z = number(name, "length", length, POSITIVE) * sphere_rows(rng, 1, dim)[0]
    k4, _ = fourth_moments(a, np.ones(n))
    if k4 <= 0:
        raise ValueError(f"{name}: n must be large enough for rows in all directions; got n={n}, dim={dim}")
    _, k8 = fourth_moments(a, np.sum(a**2, axis=1) ** 2)
    return PhaseRetrieval((a, (a @ z) ** 2), z, positive(name, "L1", L1), k4, k8)
