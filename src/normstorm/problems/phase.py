"""Phase retrieval: recover x, up to sign, from squares of inner products."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from normstorm.problems.base import Certified, FiniteSum, count, dot, positive, pytree
from normstorm.problems.lemmas import Vector, from_hessian, largest_excess
from normstorm.problems.linear import Matrix, sphere_rows


@pytree
@dataclass(frozen=True, eq=False)
class PhaseRetrieval(FiniteSum, Certified):
    """f_i = ((a_i'x)^2 - y_i)^2/4 with y_i = (a_i'z)^2 >= 0 for some z. F* = 0, at z and -z.

    grad f_i = ((a_i'x)^2 - y_i)(a_i'x) a_i and H_i = (3 (a_i'x)^2 - y_i) a_i a_i'. Let r = ||x||, R = max ||a_i||,
    Y = max y_i.
    **Gradient from below.** <grad F, x> = E (a'x)^4 - E y (a'x)^2 >= k4 r^4 - S r^2 with S = lmax(E y aa') and k4 any
    lower bound of E (a'u)^4 over unit u, so ||grad F|| >= B(r) = k4 r^3 - S r, and B(q r) >= q^3 B(r) for q >= 1.
    **k4.** On symmetric matrices let M be the form Z -> E <aa', Z>^2. For unit u, Z = uu' has norm 1 and trace 1, so
    E (a'u)^4 = <Z, M Z> - t (tr Z)^2 + t >= lmin(M - t I I') + t for every number t. We take the best t on a grid; no
    t is wrong. (Jensen's inequality would give lmin(E aa')^2, a factor d/(d + 2) * 3 below this for rows on a
    sphere.)
    **Smoothness.** Both terms in 3 (a'x)^2 - y are non-negative, so ||H_i|| <= R^2 max(3 R^2 r^2, Y); in root mean
    square <= sqrt(9 E||a||^8 r^4 + E y^2 ||a||^4). Both grow at most like r^2: the radial lemma gives l0 for the
    chosen l1, then the Hessian lemma.
    **Noise.** With s = |a'x| <= R r and 0 <= y <= Y, |s^2 - y| s is at most s^3 if s^2 >= y, and else at most min(y
    s, 2 (y/3)^(3/2)). So ||grad f_i|| <= N(r) = R max(R^3 r^3, min(Y R r, 2 (Y/3)^(3/2))), which grows at most like
    r^3, and the noise is at most N(r) + ||grad F||: 4A holds with sigma1 = 1 + n1 for n1 = 1.25 R^4/k4 and sigma0
    from the radial lemma. In mean square it is at most E||grad f||^2 - ||grad F||^2, and E||grad f||^2 <= N2(r) =
    min(N(r)^2, E||a||^8 r^6 + E y^2||a||^4 r^2). The radial lemma for N2 and B^2 with n1 = 1.5 E||a||^8/k4^2 gives
    sigma0^2, and sigma1^2 = n1 - 1 (at least 0).
    """

    data: tuple[Matrix, Matrix]
    l1: float
    k4: float
    name: ClassVar[str] = "phase-retrieval"
    infimum: ClassVar[float] = 0.0
    infimum_kind: ClassVar[str] = "exact"

    def loss(self, x: jax.Array, row: tuple[jax.Array, jax.Array]) -> jax.Array:
        return (dot(row[0], x) ** 2 - row[1]) ** 2 / 4

    def start(self) -> jax.Array:
        a, y = self.data
        radius = float(np.sqrt(np.mean(y) / np.mean(np.sum(a**2, axis=1)) * a.shape[1]))
        return jnp.zeros(a.shape[1]).at[0].set(radius)

    def smoothness(self, sense: str) -> tuple[float, float]:
        R, Y, m8, y2 = self._moments()

        def hessian(r: Vector) -> Vector:
            if sense == "almost-sure":
                return np.maximum(3 * R**4 * r**2, R**2 * Y)
            return np.sqrt(9 * m8 * r**4 + y2)

        return from_hessian(largest_excess(hessian, self._gradient, self.l1, self._reach()), self.l1)

    def deviation(self, sense: str) -> tuple[float, float]:
        R, Y, m8, y2 = self._moments()
        k4 = self.k4

        def size(r: Vector) -> Vector:
            return np.asarray(R * np.maximum(R**3 * r**3, np.minimum(Y * R * r, 2 * (Y / 3) ** 1.5)))

        if sense == "almost-sure":
            slope = 1.25 * R**4 / k4
            return largest_excess(size, self._gradient, slope, self._reach()), 1 + slope
        slope = max(1.5 * m8 / k4**2, 1.0)
        square = largest_excess(
            lambda r: np.minimum(size(r) ** 2, m8 * r**6 + y2 * r**2),
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
        a, y = self.data
        return float(np.linalg.eigvalsh((a * y[:, None]).T @ a / len(a))[-1])

    def _moments(self) -> tuple[float, float, float, float]:
        a, y = self.data
        square = np.sum(a**2, axis=1)
        return (
            float(np.max(square) ** 0.5),
            float(np.max(y)),
            float(np.mean(square**4)),
            float(np.mean(y**2 * square**2)),
        )


def fourth_moment(a: Matrix) -> float:
    """A lower bound of min over unit u of E (a'u)^4; see PhaseRetrieval."""
    n, d = a.shape
    i, j = np.triu_indices(d)
    weight = np.where(i == j, 1.0, 2**0.5)
    Z = a[:, i] * a[:, j] * weight
    M, trace = Z.T @ Z / n, (i == j).astype(float)
    scale = float(np.trace(M)) / d
    bounds = [np.linalg.eigvalsh(M - t * np.outer(trace, trace))[0] + t for t in np.linspace(0, scale, 201)]
    return float(max(bounds)) * (1 - 1e-9)


def phase_retrieval(n: int = 200, dim: int = 4, length: float = 1.0, l1: float = 20.0, seed: int = 0) -> PhaseRetrieval:
    """Rows of length sqrt(dim), a planted signal of the given length, no measurement noise."""
    name = "phase-retrieval"
    rng = np.random.default_rng(seed)
    a = dim**0.5 * sphere_rows(rng, count(name, "n", n), count(name, "dim", dim))
    z = positive(name, "length", length) * sphere_rows(rng, 1, dim)[0]
    k4 = fourth_moment(a)
    if k4 <= 0:
        raise ValueError(f"{name}: n must be large enough for rows in all directions; got n={n}, dim={dim}")
    return PhaseRetrieval((a, (a @ z) ** 2), positive(name, "l1", l1), k4)
