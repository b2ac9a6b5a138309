"""Finite sums over rows a_i of data with a linear model a_i'x, or X a_i for a matrix X.

All constants are computed from the rows in double precision; E and mean stand for the mean over the rows. What a range
needs of the rows alone (largest lengths, residuals at a fixed point) does not change from step to step: a compiled loop
computes it once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from normstorm._shared.validate import NONNEGATIVE, OPEN_UNIT, number, whole

from .base import Certified, FiniteSum, dot, longest, margin, pytree, raised
from .infima import Matrix as Matrix
from .infima import regularised_bound
from .lemmas import from_hessian


@pytree
@dataclass(frozen=True, eq=False)
class LeastSquares(FiniteSum, Certified):
    """f_i = (a_i'x - b_i)^2/2 with A = E aa' of full rank.

    **F*.** With the least-squares solution x* and residuals r_i = a_i'x* - b_i, F* = E r^2/2, exact.
    **Smoothness.** grad f_i(x) - grad f_i(y) = a_i a_i'(x - y). Hence L1 = 0 and L0 = max ||a_i||^2 (3A),
    sqrt(lmax(E ||a||^2 aa')) (3B), lmax(A) (Definition 1), all attained.
    **Noise.** E r a = 0, so with g = grad F(x) = A (x - x*) the noise is B_i g + r_i a_i, where B_i = (a_i a_i' - A)
    A^-1. 4A: sigma0 = max |r_i| ||a_i||, sigma1 = max ||B_i||. In mean square it is g'Qg + 2 c'g + m with Q = E B'B,
    c = E r B'a, m = E r^2 ||a||^2. Let sigma1^2 = q > lmax(Q) and maximise g'(Q - q I)g + 2 c'g: sigma0^2 = m + c'(q
    I - Q)^-1 c is the smallest number for which 4B holds with this q. We take q = 1.25 lmax(Q).
    **Range.** Let R = max ||a_i||. Thales: ||aa'w - R^2 w/2||^2 = (a'w)^2 (||a||^2 - R^2) + R^4 ||w||^2/4, so all
    a_i a_i'w lie in a ball of radius R^2 ||w||/2. With w = x - c, grad f_i = a_i a_i'w + (a_i'c - b_i) a_i for every c:
    spread is R^2 ||x - c||/2 + max ||a_i|| |a_i'c - b_i|, the smaller of the two for c = 0 and c = x*. change = R^2
    radius, attained.
    """

    data: tuple[Matrix, Matrix]
    infimum: float
    solution: Matrix
    name: ClassVar[str] = "least-squares"
    infimum_kind: ClassVar[str] = "exact"

    def loss(self, x: jax.Array, row: tuple[jax.Array, jax.Array]) -> jax.Array:
        return (dot(row[0], x) - row[1]) ** 2 / 2

    def start(self) -> jax.Array:
        return jnp.zeros(np.shape(self.data[0])[1])

    def range(self, x: jax.Array, radius: Any) -> tuple[jax.Array, jax.Array]:
        a, b = self._rows(x)
        R2, lengths = longest(a) ** 2, jnp.linalg.norm(a, axis=1)

        def around(c: jax.Array) -> jax.Array:
            residuals = jnp.linalg.norm((dot(a, c.T) - b).reshape(len(a), -1), axis=1)
            return jnp.asarray(jnp.max(lengths * residuals) + R2 * jnp.linalg.norm(x - c) / 2)

        solution = jnp.asarray(self.solution, x.dtype)
        spread = jnp.minimum(around(jnp.zeros_like(x)), around(solution))
        return raised(x, spread, R2 * jnp.linalg.norm(solution)), raised(x, R2 * radius)

    def objective_smoothness(self) -> tuple[float, float]:
        return top_eigenvalue(second_moment(self.data[0])), 0.0

    def smoothness(self, sense: str) -> tuple[float, float]:
        return row_smoothness(self.data[0], sense), 0.0

    def deviation(self, sense: str) -> tuple[float, float]:
        a, b = self.data
        A = second_moment(a)
        r = (a @ self.solution.T - b).reshape(len(a), -1)
        B = a[:, :, None] * np.linalg.solve(A, a.T).T[:, None, :] - np.eye(a.shape[1])
        if sense == "almost-sure":
            return float(np.max(row_lengths(r) * row_lengths(a))), float(np.max(np.linalg.norm(B, 2, axis=(1, 2))))
        Q = np.einsum("nij,nik->jk", B, B) / len(a)
        c = np.einsum("np,nij,ni->jp", r, B, a) / len(a)
        q = 1.25 * top_eigenvalue(Q)
        level = np.mean((row_lengths(r) * row_lengths(a)) ** 2) + np.sum(c * np.linalg.solve(q * np.eye(len(c)) - Q, c))
        return float(level**0.5), q**0.5


@pytree
@dataclass(frozen=True, eq=False)
class MatrixRegression(LeastSquares):
    """f_i = ||X a_i - b_i||^2/2 for a matrix X, all norms of matrices Frobenius: a least-squares problem in every row.

    With X*, r_i = X* a_i - b_i and E ra' = 0 as there, G = grad F(X) = (X - X*) A and grad f_i = (X a_i - b_i) a_i'.
    **Smoothness.** ||(X - Y) a_i a_i'|| = ||a_i|| ||(X - Y) a_i||, and the mean of its square is the trace of (X - Y)
    E[||a||^2 aa'] (X - Y)': the three constants L0 are those of LeastSquares, attained by X - Y of rank one.
    **Noise.** It is G B_i' + r_i a_i' with the same B_i, and ||G B_i'|| <= ||B_i|| ||G||. 4A: sigma0 = max ||r_i||
    ||a_i||, sigma1 = max ||B_i||. In mean square it is a sum over the rows g of G and the numbers r of r_i that belong
    to them, each with its own c and m and with the same Q: sigma1^2 = q, and sigma0^2 is the sum of the rows' numbers.
    **Range.** That of LeastSquares, whose lines hold with Frobenius norms: Thales in every row of X - C.
    """

    name: ClassVar[str] = "matrix-regression"

    def loss(self, x: jax.Array, row: tuple[jax.Array, jax.Array]) -> jax.Array:
        return jnp.sum((dot(x, row[0]) - row[1]) ** 2) / 2

    def start(self) -> jax.Array:
        a, b = self.data
        return jnp.zeros((np.shape(b)[1], np.shape(a)[1]))


@pytree
@dataclass(frozen=True, eq=False)
class SeparableLogistic(FiniteSum, Certified):
    """f_i = log(1 + exp(-a_i'x)), labels absorbed in the rows, and a unit u with a_i'u >= margin > 0 for all i.

    F* = 0, approached along u and never attained. Let p_i = 1/(1 + exp(a_i'x)) and R = max ||a_i||; grad f_i = -p_i
    a_i.
    **Key.** ||grad F|| >= <-grad F, u> = E p a'u >= margin E p.
    **Smoothness.** ||H_i|| = p_i (1 - p_i) ||a_i||^2 <= R^2 p_i. As p_i <= n E p and E p^2 <= n (E p)^2, the key gives
    l0 = 0 and l1 = R^2/margin times 1 (F), n (3A), sqrt(n) (3B); then the Hessian lemma.
    **Noise.** sigma0 = 0. The noise of f_i is at most R [(1 - 1/n) p_i + E p - p_i/n] = R [E p + (1 - 2/n) p_i],
    which is <= (n - 1) R E p for n >= 2: sigma1 = (n - 1) R/margin (4A). Its mean square is E ||grad f_i||^2 - ||grad
    F||^2 <= n R^2 (E p)^2 - ||grad F||^2: sigma1^2 = n R^2/margin^2 - 1 (4B). The exponential loss obeys the same
    constants with p_i = exp(-a_i'x), see ExponentialLoss.
    **Range**, by a pass over the rows, which are few here. spread is the exact largest distance from the mean gradient.
    p = 1/(1 + e^z) changes most towards z = 0: for |z - z'| <= D by at most q(-|z| + D) - q(-|z|) with q(t) = 1/(1 +
    e^-t), as q' is even and falls with |t|. That difference is q(-|z| + D) q(|z|) (1 - e^-D). D = ||a_i|| radius.
    """

    data: Matrix
    margin: float
    name: ClassVar[str] = "separable-logistic"
    infimum: ClassVar[float] = 0.0
    infimum_kind: ClassVar[str] = "exact"

    def loss(self, x: jax.Array, row: jax.Array) -> jax.Array:
        return jax.nn.softplus(-dot(row, x))

    def start(self) -> jax.Array:
        return jnp.zeros(np.shape(self.data)[1])

    def range(self, x: jax.Array, radius: Any) -> tuple[jax.Array, jax.Array]:
        a: jax.Array = self._rows(x)
        z, lengths = dot(a, x), jnp.linalg.norm(a, axis=1)
        p, moved = self._weights(z, lengths * radius)
        mean = dot(p, a) / len(a)
        # The distance from the mean, multiplied out: products with rows are quicker than rows.
        squares = (p * lengths) ** 2 - 2 * p * dot(a, mean)
        largest = jnp.max(p * lengths)
        spread = jnp.sqrt(jnp.maximum(jnp.max(squares) + jnp.sum(mean**2), 0) + 4 * margin(x) * largest**2)
        # log p and log moved change with z by at most twice as much, and z has lost its part of ||a|| ||x||.
        lost = jnp.expm1(2 * margin(x) * jnp.max(lengths) * jnp.linalg.norm(x))
        return raised(x, spread + 2 * lost * largest), raised(x, jnp.max(lengths * moved) * (1 + lost))

    def _weights(self, z: jax.Array, D: jax.Array) -> tuple[jax.Array, jax.Array]:
        """p, and its largest change, by one exponential of z."""
        small = jnp.exp(-jnp.abs(z))
        p, far = jnp.where(z > 0, small, 1) / (1 + small), small / (1 + small)
        return p, far * jnp.expm1(D) / (1 + small * jnp.exp(D))

    def objective_smoothness(self) -> tuple[float, float]:
        return from_hessian(0.0, self._radius() ** 2 / self.margin)

    def smoothness(self, sense: str) -> tuple[float, float]:
        spread = self.size if sense == "almost-sure" else self.size**0.5
        return from_hessian(0.0, spread * self._radius() ** 2 / self.margin)

    def deviation(self, sense: str) -> tuple[float, float]:
        n, ratio = self.size, self._radius() / self.margin
        if sense == "almost-sure":
            return 0.0, (n - 1) * ratio
        return 0.0, max(n * ratio**2 - 1, 0.0) ** 0.5

    def _radius(self) -> float:
        return float(np.max(row_lengths(self.data)))


@pytree
@dataclass(frozen=True, eq=False)
class ExponentialLoss(SeparableLogistic):
    """f_i = exp(-a_i'x) on the same data: grad f_i = -p_i a_i, ||H_i|| = p_i ||a_i||^2 with p_i = f_i.

    Every line of the derivation for SeparableLogistic holds as it stands. F* = 0. In the range p changes by at most
    p (e^D - 1), towards smaller z.
    """

    name: ClassVar[str] = "separable-exponential"

    def loss(self, x: jax.Array, row: jax.Array) -> jax.Array:
        return jnp.exp(-dot(row, x))

    def _weights(self, z: jax.Array, D: jax.Array) -> tuple[jax.Array, jax.Array]:
        p = jnp.exp(-z)
        return p, p * jnp.expm1(D)


@pytree
@dataclass(frozen=True, eq=False)
class LogisticNonconvex(FiniteSum, Certified):
    """f_i = log(1 + exp(-a_i'x)) + lam sum_j x_j^2/(1 + x_j^2), labels absorbed in the rows. L1 = 0, sigma1 = 0.

    **Smoothness.** (x^2/(1 + x^2))'' = (2 - 6 x^2)/(1 + x^2)^3 lies in [-1/2, 2], so the regulariser has a 2
    lam-Lipschitz gradient. p = 1/(1 + e^z) is 1/4-Lipschitz, so the gradients -p_i a_i move by at most ||a_i||
    |a_i'(x - y)|/4. Hence L0 is 2 lam plus a quarter of max ||a_i||^2 (3A), sqrt(lmax(E ||a||^2 aa')) (3B), lmax(E
    aa') (Definition 1).
    **Noise.** The regulariser cancels. v_i = p_i a_i with p_i in (0, 1). Write p_i = (1 + s_i)/2 with |s_i| <= 1: by
    Cauchy-Schwarz ||E s a|| <= sqrt(lmax(E aa')), so ||E v|| <= V = (||E a|| + sqrt(lmax(E aa')))/2, and
    sigma0 = max ||a_i|| + V (4A). E||v - E v||^2 <= E||a||^2 gives sigma0 (4B).
    **Range.** Around the regulariser's gradient, ||v_i|| <= R/(1 + e^(-R ||x||)) with R = max ||a_i||: the spread. p
    moves by at most tanh(D/4) when z moves by D, symmetrically around 0, so change = R tanh(R radius/4) + 2 lam radius.
    **Lower bound.** By duality in every cell of a cover of a box that holds the minimum, see `infima.py`.
    """

    data: Matrix
    lam: float
    infimum: float
    name: ClassVar[str] = "logistic-nonconvex"
    infimum_kind: ClassVar[str] = "lower bound"

    def loss(self, x: jax.Array, row: jax.Array) -> jax.Array:
        return jax.nn.softplus(-dot(row, x)) + self.lam * jnp.sum(x**2 / (1 + x**2))

    def start(self) -> jax.Array:
        return jnp.zeros(np.shape(self.data)[1])

    def range(self, x: jax.Array, radius: Any) -> tuple[jax.Array, jax.Array]:
        R = longest(self._rows(x))
        spread = R * jax.nn.sigmoid(R * jnp.linalg.norm(x))
        return raised(x, spread), raised(x, R * jnp.tanh(R * radius / 4) + 2 * self.lam * radius)

    def objective_smoothness(self) -> tuple[float, float]:
        return top_eigenvalue(second_moment(self.data)) / 4 + 2 * self.lam, 0.0

    def smoothness(self, sense: str) -> tuple[float, float]:
        return row_smoothness(self.data, sense) / 4 + 2 * self.lam, 0.0

    def deviation(self, sense: str) -> tuple[float, float]:
        a = self.data
        if sense == "mean-square":
            return float(np.mean(row_lengths(a) ** 2) ** 0.5), 0.0
        common = (np.linalg.norm(a.mean(axis=0)) + top_eigenvalue(second_moment(a)) ** 0.5) / 2
        return float(np.max(row_lengths(a)) + common), 0.0


def least_squares(n: int = 200, dim: int = 5, noise: float = 0.3, seed: int = 0) -> LeastSquares:
    """Rows uniform on the unit sphere, targets from a planted x of length 1 plus normal noise."""
    name = "least-squares"
    dim, rng = whole(name, "dim", dim), generator(name, seed)
    n, noise = whole(name, "n", n, least=dim + 1), number(name, "noise", noise, NONNEGATIVE)
    a = sphere_rows(rng, n, dim)
    b = a @ sphere_rows(rng, 1, dim)[0] + noise * rng.standard_normal(n)
    solution = np.linalg.lstsq(a, b)[0]
    return LeastSquares((a, b), float(np.mean((a @ solution - b) ** 2) / 2), solution)


def matrix_regression(
    n: int = 200, rows: int = 4, columns: int = 3, noise: float = 0.3, seed: int = 0
) -> MatrixRegression:
    """Unit vectors a_i, targets from a planted X with rows of length 1 plus normal noise."""
    name = "matrix-regression"
    rows, columns, rng = whole(name, "rows", rows), whole(name, "columns", columns), generator(name, seed)
    n, noise = whole(name, "n", n, least=columns + 1), number(name, "noise", noise, NONNEGATIVE)
    a = sphere_rows(rng, n, columns)
    planted = sphere_rows(rng, rows, columns)
    b = a @ planted.T + noise * rng.standard_normal((n, rows))
    solution = np.linalg.lstsq(a, b)[0]
    return MatrixRegression(
        (a, b), float(np.mean(row_lengths(a @ solution - b) ** 2) / 2), np.asarray(solution.T, float)
    )


def separable_logistic(n: int = 6, dim: int = 3, margin: float = 0.5, seed: int = 0) -> SeparableLogistic:
    """Unit rows that have at least the given margin along a planted direction."""
    return SeparableLogistic(*_separable_rows("separable-logistic", n, dim, margin, seed))


def separable_exponential(n: int = 6, dim: int = 3, margin: float = 0.5, seed: int = 0) -> ExponentialLoss:
    """The rows of `separable_logistic`."""
    return ExponentialLoss(*_separable_rows("separable-exponential", n, dim, margin, seed))


def logistic_nonconvex(
    n: int = 200, dim: int = 10, lam: float = 0.1, flips: float = 0.1, seed: int = 0
) -> LogisticNonconvex:
    """Unit rows, labels from a planted direction, a share of them flipped."""
    name = "logistic-nonconvex"
    dim, rng = whole(name, "dim", dim), generator(name, seed)
    n, flips = whole(name, "n", n, least=dim + 1), number(name, "flips", flips, NONNEGATIVE)
    a = sphere_rows(rng, n, dim)
    labels = np.sign(a @ sphere_rows(rng, 1, dim)[0])
    labels[rng.random(n) < flips] *= -1
    rows = a * labels[:, None]
    lam = number(name, "lam", lam, NONNEGATIVE)
    return LogisticNonconvex(rows, lam, regularised_bound(rows, lam))


def generator(name: str, seed: int) -> np.random.Generator:
    return np.random.default_rng(whole(name, "seed", seed, least=0))


def sphere_rows(rng: np.random.Generator, n: int, dim: int) -> Matrix:
    rows = rng.standard_normal((n, dim))
    return np.asarray(rows / row_lengths(rows)[:, None])


def _separable_rows(name: str, n: int, dim: int, margin: float, seed: int) -> tuple[Matrix, float]:
    n, dim = whole(name, "n", n, least=2), whole(name, "dim", dim, least=2)
    margin, rng = number(name, "margin", margin, OPEN_UNIT), generator(name, seed)
    u = sphere_rows(rng, 1, dim)[0]
    along = rng.uniform(margin, 1, n)
    across = rng.standard_normal((n, dim))
    across -= np.outer(across @ u, u)
    across *= (np.sqrt(1 - along**2) / row_lengths(across))[:, None]
    rows = np.outer(along, u) + across
    return rows, _margin(rows) * (1 - 1e-9)


def _margin(rows: Matrix) -> float:
    """The margin along the shortest vector of the convex hull, as Frank-Wolfe steps find it; any vector is valid."""
    v = rows.mean(axis=0)
    best = 0.0
    for _ in range(2000):
        best = max(best, float(np.min(rows @ v) / np.linalg.norm(v)))
        step = rows[np.argmin(rows @ v)] - v
        length = float(step @ step)
        if length == 0:
            break
        v = v + min(max(-(v @ step) / length, 0.0), 1.0) * step
    return best


def row_smoothness(a: Matrix, sense: str) -> float:
    if sense == "almost-sure":
        return float(np.max(row_lengths(a) ** 2))
    return float(top_eigenvalue((a * row_lengths(a)[:, None] ** 2).T @ a / len(a)) ** 0.5)


def row_lengths(a: Matrix) -> Matrix:
    return np.asarray(np.linalg.norm(a, axis=1))


def second_moment(a: Matrix) -> Matrix:
    return np.asarray(a.T @ a / len(a))


def top_eigenvalue(matrix: Matrix) -> float:
    return float(np.linalg.eigvalsh(matrix)[-1])
