"""The usual losses on given rows, with proven constants from the lengths of the rows.

Every model has the regulariser lam2/2 ||x||^2 + lam1 sum_j x_j^2/(1 + x_j^2), either part of which may be 0. It is the
same in every sample, so that it cancels in the noise. (x^2/(1 + x^2))'' lies in [-1/2, 2]: its gradient moves by at
most Lr = lam2 + 2 lam1 times the distance. E is the mean over rows, R = max ||a_i||; L1 = 0 in all but the robust one.

Three numbers of the rows carry the smoothness: max ||a_i||^2 (3A), sqrt(lmax(E ||a||^2 aa')) (3B), lmax(E aa')
(Definition 1). They are attained by squares.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, field
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from .base import STATIC, Certified, FiniteSum, dot, longest, pytree, raised
from .dro import ChiSquareDRO, G
from .linear import LeastSquares, Matrix, row_lengths, row_smoothness, second_moment, top_eigenvalue

SHORT = 1 + 1e-6  # rows of length 1, up to rounding


class Regularised(FiniteSum, Certified):
    """What all models have: the regulariser, a start at 0, and advice on the scale of the rows."""

    data: tuple[Matrix, Matrix]
    l2: float
    bounded: float
    infimum_kind: ClassVar[str] = "lower bound"

    def regulariser(self, x: jax.Array) -> jax.Array:
        return self.l2 / 2 * jnp.sum(x**2) + self.bounded * jnp.sum(x**2 / (1 + x**2))

    @property
    def bend(self) -> float:
        """Lr."""
        return self.l2 + 2 * self.bounded

    def start(self) -> jax.Array:
        return jnp.zeros(np.shape(self.data[0])[1])

    @property
    def advice(self) -> str:
        """What the scale of the rows costs, in a sentence; empty if no row is longer than 1."""
        size = row_lengths(self.data[0])
        if np.max(size) <= SHORT:
            return ""
        return (
            f"The longest row has length {np.max(size):.3g}, their root mean square is {np.mean(size**2) ** 0.5:.3g}: "
            "L0 grows with the square of the longest and sigma0 with its length, so standardise the columns and divide "
            "every row by its length (unit_rows), if the model allows it."
        )


class LinearModel(Regularised):
    """f_i = phi(a_i'x - b_i) + regulariser, phi convex, phi' in [low, high], phi'' <= c.

    **Smoothness.** phi' is c-Lipschitz, so phi'(z_i) a_i moves by at most c ||a_i|| |a_i'(x - y)|: L0 is Lr plus c
    times the three numbers of the rows.
    **Noise.** Write phi'_i = p + w s_i with p = (low + high)/2, w = (high - low)/2 and |s_i| <= 1. By Cauchy-Schwarz
    ||E s a|| <= A = sqrt(lmax(E aa')), so the noise is at most |p| ||a_i - E a|| + w (||a_i|| + A): sigma0 is the
    largest (4A). Around p E a instead of the mean the mean square is not smaller, and by Minkowski's inequality at most
    (|p| sqrt(E ||a - E a||^2) + w sqrt(E ||a||^2))^2; around 0 it is at most max{low^2, high^2} E ||a||^2. sigma0^2 is
    the smaller (4B). sigma1 = 0.
    **Range.** |a_i'x - b_i| <= Z = R ||x|| + max |b_i|: spread is R times the largest |phi'| there, around the gradient
    of the regulariser. phi' moves by at most min{c R radius, high - low}: change = R min{...} + Lr radius.
    **Lower bound.** phi(z) >= q z - phi*(q), so with any q_i in [low, high] F >= -E [phi*(q) + q b] - ||E q a||^2/(2
    lam2), and without lam2 the same if E q a = 0. q = phi' near the minimiser; the bounded part is at least 0.
    """

    slopes: ClassVar[tuple[float, float]]
    curvature: ClassVar[float]

    @abstractmethod
    def phi(self, z: jax.Array) -> jax.Array: ...

    @abstractmethod
    def steepest(self, far: jax.Array) -> jax.Array:
        """The largest |phi'(z)| for |z| <= far."""

    def loss(self, x: jax.Array, row: tuple[jax.Array, jax.Array]) -> jax.Array:
        return self.phi(dot(row[0], x) - row[1]) + self.regulariser(x)

    def range(self, x: jax.Array, radius: Any) -> tuple[jax.Array, jax.Array]:
        a, b = self._rows(x)
        R, (low, high) = longest(a), self.slopes
        spread = R * self.steepest(R * jnp.linalg.norm(x) + jnp.max(jnp.abs(b)))
        moved = jnp.minimum(self.curvature * R * radius, high - low)
        return raised(x, spread), raised(x, R * moved + self.bend * radius)

    def objective_smoothness(self) -> tuple[float, float]:
        return self.curvature * top_eigenvalue(second_moment(self.data[0])) + self.bend, 0.0

    def smoothness(self, sense: str) -> tuple[float, float]:
        return self.curvature * row_smoothness(self.data[0], sense) + self.bend, 0.0

    def deviation(self, sense: str) -> tuple[float, float]:
        a, (low, high) = self.data[0], self.slopes
        size, apart = row_lengths(a), row_lengths(a - a.mean(axis=0))
        p, w = abs(low + high) / 2, (high - low) / 2
        if sense == "almost-sure":
            return float(np.max(p * apart + w * size)) + w * top_eigenvalue(second_moment(a)) ** 0.5, 0.0
        around = p * np.mean(apart**2) ** 0.5 + w * np.mean(size**2) ** 0.5
        return float(min(around, max(abs(low), abs(high)) * np.mean(size**2) ** 0.5)), 0.0


@pytree
@dataclass(frozen=True, eq=False)
class LogisticRegression(LinearModel):
    """phi(z) = log(1 + e^-z), labels absorbed in the rows: phi' = -1/(1 + e^z) in [-1, 0], phi'' <= 1/4."""

    data: tuple[Matrix, Matrix]
    l2: float
    bounded: float
    infimum: float
    name: ClassVar[str] = "logistic-regression"
    slopes: ClassVar[tuple[float, float]] = (-1.0, 0.0)
    curvature: ClassVar[float] = 0.25

    def phi(self, z: jax.Array) -> jax.Array:
        return jax.nn.softplus(-z)

    def steepest(self, far: jax.Array) -> jax.Array:
        return jax.nn.sigmoid(far)


@pytree
@dataclass(frozen=True, eq=False)
class LogCoshRegression(LinearModel):
    """phi(z) = log cosh z: phi' = tanh z in [-1, 1], phi'' = 1 - tanh^2 z <= 1."""

    data: tuple[Matrix, Matrix]
    l2: float
    bounded: float
    infimum: float
    name: ClassVar[str] = "log-cosh-regression"
    slopes: ClassVar[tuple[float, float]] = (-1.0, 1.0)
    curvature: ClassVar[float] = 1.0

    def phi(self, z: jax.Array) -> jax.Array:
        return jnp.logaddexp(z, -z) - math.log(2)

    def steepest(self, far: jax.Array) -> jax.Array:
        return jnp.tanh(far)


@pytree
@dataclass(frozen=True, eq=False)
class HuberRegression(LinearModel):
    """phi(z) = z^2/2 up to |z| = k and k |z| - k^2/2 beyond: phi' in [-k, k], 1-Lipschitz."""

    data: tuple[Matrix, Matrix]
    l2: float
    bounded: float
    infimum: float
    k: float
    name: ClassVar[str] = "huber-regression"
    curvature: ClassVar[float] = 1.0

    @property
    def slopes(self) -> tuple[float, float]:  # type: ignore[override]
        return -self.k, self.k

    def phi(self, z: jax.Array) -> jax.Array:
        inside = jnp.minimum(jnp.abs(z), self.k)
        return inside * (jnp.abs(z) - inside / 2)

    def steepest(self, far: jax.Array) -> jax.Array:
        return jnp.minimum(far, self.k)


@pytree
@dataclass(frozen=True, eq=False)
class SoftmaxRegression(Regularised):
    """f_i = log sum_c exp(X a_i)_c - (X a_i)_(y_i) + regulariser for a matrix X with a row for each of C classes.

    grad f_i = (p_i - e_i) a_i', p_i the probabilities and e_i the unit vector of y_i. Norms are Frobenius.
    **Smoothness.** p has the Jacobian diag(p) - pp', whose norm is at most 1/2: u'(diag p - pp')u is the variance of a
    number that lies within an interval of length max u - min u <= sqrt 2 ||u||. So the gradient moves by at most
    ||a_i|| ||(X - Y) a_i||/2, and L0 is Lr plus half the three numbers of the rows, as for a matrix of squares.
    **Noise.** p_i = 1/C + u_i with ||u_i|| <= r = sqrt(1 - 1/C), and ||E u a'|| <= r A with A = sqrt(lmax(E aa')), as E
    u'Wa <= r sqrt(E ||Wa||^2) <= r A for ||W|| = 1. With D_i = (1/C - e_i) a_i' the noise is at most ||D_i - E D|| + r
    (||a_i|| + A), and, as ||p - e|| <= sqrt 2, at most sqrt 2 ||a_i|| + ||E D|| + r A: sigma0 (4A) is the smaller of
    the largest ones. In mean square: (sqrt(E ||D - E D||^2) + r sqrt(E ||a||^2))^2 and 2 E ||a||^2, the smaller (4B).
    **Range.** (X a)_c - (X a)_y <= sqrt 2 R ||X|| = h, so 1 - p_y <= t = 1/(1 + e^-h/(C - 1)) and ||p - e|| <= sqrt 2
    t: spread is sqrt 2 t R. p moves by at most min{R radius/2, sqrt 2}: change = R min{...} + Lr radius.
    **Lower bound.** f >= 0; with lam2 > 0 F without its bounded part is strongly convex, F* >= F(z) - ||grad
    F(z)||^2/(2 lam2) for any z.
    """

    data: tuple[Matrix, Matrix]
    l2: float
    bounded: float
    infimum: float
    classes: int = field(metadata=STATIC)
    name: ClassVar[str] = "softmax-regression"

    def loss(self, x: jax.Array, row: tuple[jax.Array, jax.Array]) -> jax.Array:
        scores = dot(x, row[0])
        # A sum with one entry, not an index: data in the precision of x may be floats.
        own = jnp.sum(jnp.where(jnp.arange(x.shape[0]) == row[1], scores, 0))
        return jax.nn.logsumexp(scores) - own + self.regulariser(x)

    def start(self) -> jax.Array:
        return jnp.zeros((self.classes, np.shape(self.data[0])[1]))

    def range(self, x: jax.Array, radius: Any) -> tuple[jax.Array, jax.Array]:
        R = longest(self._rows(x)[0])
        wrong = jax.nn.sigmoid(math.sqrt(2) * R * jnp.linalg.norm(x) + jnp.log(self.classes - 1.0))
        moved = jnp.minimum(R * radius / 2, math.sqrt(2))
        return raised(x, math.sqrt(2) * wrong * R), raised(x, R * moved + self.bend * radius)

    def objective_smoothness(self) -> tuple[float, float]:
        return top_eigenvalue(second_moment(self.data[0])) / 2 + self.bend, 0.0

    def smoothness(self, sense: str) -> tuple[float, float]:
        return row_smoothness(self.data[0], sense) / 2 + self.bend, 0.0

    def deviation(self, sense: str) -> tuple[float, float]:
        a, y = self.data
        size, r = row_lengths(a), math.sqrt(1 - 1 / self.classes)
        D = (1 / self.classes - np.eye(self.classes)[y])[:, :, None] * a[:, None, :]
        mean = D.mean(axis=0)
        apart = np.linalg.norm((D - mean).reshape(len(a), -1), axis=1)
        if sense == "almost-sure":
            common = r * top_eigenvalue(second_moment(a)) ** 0.5
            around = np.max(apart + r * size) + common
            return float(min(around, math.sqrt(2) * np.max(size) + np.linalg.norm(mean) + common)), 0.0
        root = np.mean(size**2) ** 0.5
        return float(min(np.mean(apart**2) ** 0.5 + r * root, math.sqrt(2) * root)), 0.0


@pytree
@dataclass(frozen=True, eq=False)
class RidgeRegression(LeastSquares, Regularised):
    """f_i = (a_i'x - b_i)^2/2 + regulariser, where A + lam2 I has full rank, A = E aa'.

    **Smoothness.** L0 is Lr plus the three numbers of the rows.
    **Noise.** Let x* minimise F without the bounded part, r_i = a_i'x* - b_i, so that E r a = -lam2 x*. With g = grad
    F(x), h = (A + lam2 I)(x - x*) and the gradient of the bounded part, whose entries are at most lam1 G with G = 9/(8
    sqrt 3): ||h|| <= ||g|| + e, e = lam1 G sqrt d. The noise is B_i h + w_i with w_i = r_i a_i + lam2 x*, B_i = a_i
    c_i' - P, c_i = (A + lam2 I)^-1 a_i, P = A (A + lam2 I)^-1. B'B = P^2 + UKU' with U = (c, Pa), K = ((||a||^2, -1),
    (-1, 0)), so ||B||^2 <= ||P||^2 + the larger eigenvalue of the 2 by 2 matrix KU'U; with lam2 = 0, where P = I, they
    are equal. 4A: sigma0 = max ||w_i|| + ||B_i|| e, sigma1 = max ||B_i||. In mean square the noise is h'Qh + 2 c'h + m
    with Q = E B'B = E ||a||^2 cc' - P^2, c = E c_i a_i'w_i, m = E ||w||^2, hence at most s^2 + q ||h||^2 with q = 1.25
    lmax(Q) and s^2 = m + c'(q I - Q)^-1 c (see LeastSquares). ||h||^2 <= 5 e^2 + 1.25 ||g||^2, if e > 0: sigma0^2 = s^2
    + 5 q e^2 and sigma1^2 = 1.25 q, and s^2 and q if e = 0 (4B).
    **Range.** That of LeastSquares; Lr radius more in the change. **Lower bound.** F at x*; the bounded part is at
    least 0.
    """

    l2: float
    bounded: float
    name: ClassVar[str] = "ridge-regression"
    infimum_kind: ClassVar[str] = "lower bound"

    def loss(self, x: jax.Array, row: tuple[jax.Array, jax.Array]) -> jax.Array:
        return super().loss(x, row) + self.regulariser(x)

    def range(self, x: jax.Array, radius: Any) -> tuple[jax.Array, jax.Array]:
        spread, change = super().range(x, radius)
        return spread, change + raised(x, self.bend * radius)

    def objective_smoothness(self) -> tuple[float, float]:
        return super().objective_smoothness()[0] + self.bend, 0.0

    def smoothness(self, sense: str) -> tuple[float, float]:
        return super().smoothness(sense)[0] + self.bend, 0.0

    def deviation(self, sense: str) -> tuple[float, float]:
        a, b = self.data
        A, n = second_moment(a), len(a)
        inverse = np.linalg.inv(A + self.l2 * np.eye(len(A)))
        c, P = a @ inverse, A @ inverse
        w = (a @ self.solution - b)[:, None] * a + self.l2 * self.solution
        e = self.bounded * G * math.sqrt(len(A))
        s, cc, u = np.sum(a**2, axis=1), np.sum(c**2, axis=1), a @ P.T
        if sense == "almost-sure":
            cu, uu = np.sum(c * u, axis=1), np.sum(u**2, axis=1)
            half = (s * cc - 2 * cu) / 2
            top = half + np.sqrt(np.maximum(half**2 + cc * uu - cu**2, 0))
            B = np.sqrt(np.linalg.norm(P, 2) ** 2 + np.maximum(top, 0))
            return float(np.max(row_lengths(w) + B * e)), float(np.max(B))
        Q = (c * s[:, None]).T @ c / n - P @ P
        q = max(1.25 * top_eigenvalue(Q), 1e-12)
        v = c.T @ np.sum(a * w, axis=1) / n
        level = np.mean(np.sum(w**2, axis=1)) + v @ np.linalg.solve(q * np.eye(len(A)) - Q, v)
        grown = (5 * q * e**2, 1.25) if e > 0 else (0.0, 1.0)
        return float((level + grown[0]) ** 0.5), float((q * grown[1]) ** 0.5)


@pytree
@dataclass(frozen=True, eq=False)
class RobustRegression(ChiSquareDRO, Regularised):
    """ChiSquareDRO on given rows with ||a_i|| <= 1, and the regulariser for x, not for the multiplier.

    **Smoothness.** Lr more in L0; fact (i) is about the multiplier's part of the gradient, which stays.
    **Noise.** With a regulariser ||E w grad l|| is not g_x, but at most G E w <= G + g_eta. So (4A) the noise is at
    most hypot(G (2 + v) + 2 g_eta, G v) <= G hypot(2 + v, v) + 2 g_eta: sigma1 = 2. 4B never used g_x. Without one, as
    there.
    """

    l2: float
    bounded: float
    name: ClassVar[str] = "robust-regression"

    def loss(self, z: jax.Array, row: tuple[jax.Array, jax.Array]) -> jax.Array:
        return super().loss(z, row) + self.regulariser(z[:-1])

    def range(self, z: jax.Array, radius: Any) -> tuple[jax.Array, jax.Array]:
        spread, change = super().range(z, radius)
        return spread, change + raised(z, self.bend * radius)

    def objective_smoothness(self) -> tuple[float, float]:
        L0, L1 = super().objective_smoothness()
        return L0 + self.bend, L1

    def smoothness(self, sense: str) -> tuple[float, float]:
        L0, L1 = super().smoothness(sense)
        return L0 + self.bend, L1

    def deviation(self, sense: str) -> tuple[float, float]:
        if sense == "mean-square" or self.bend == 0:
            return super().deviation(sense)
        v = self._spread(sense)
        return G * math.hypot(2 + v, v), 2.0
