"""A two-layer tanh network made certifiable by a quartic regulariser."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from normstorm._shared.validate import POSITIVE, number, positive, whole

from .base import STATIC, Certified, FiniteSum, dot, longest, pytree, raised
from .lemmas import Vector, largest_excess
from .linear import Matrix, generator, sphere_rows

TANH2 = 4 / (3 * 3**0.5)  # max |tanh''|
USECH = 0.447744  # above max u sech^2 u = 0.4477432...


@pytree
@dataclass(frozen=True, eq=False)
class TanhNetwork(FiniteSum, Certified):
    """f_i = (N_i - y_i)^2/2 + (rho/4) ||theta||^4, N_i = v'tanh(W x_i), theta = (W, v) flattened.

    h hidden units, ||x_i|| <= R, |y_i| <= Y, E y^2 = Y2^2, r = ||theta||, so ||W||^2 + ||v||^2 = r^2.
    **The network.** |tanh u| <= min(1, |u|) gives ||tanh(W x)|| <= min(sqrt h, R ||W||), so |N| <= n(r) = min(sqrt h
    r, R r^2/2), and ||grad N||^2 = ||tanh(W x)||^2 + ||v sech^2(W x)||^2 ||x||^2 <= R^2 r^2. The Hessian of N has the
    blocks vv: 0, vW: diag(sech^2) times x', of norm <= R, WW: v_j tanh''(.) xx' for each unit, of norm <= c = (4/(3
    sqrt 3)) R^2 r. So ||H_N|| is at most the norm of the matrix with rows (0, R), (R, c): (c + sqrt(c^2 + 4 R^2))/2.
    **Smoothness**, for any chosen L1 > 0. ||H_i|| <= R^2 r^2 + (n(r) + Y) ||H_N|| + 3 rho r^2, which grows at most like
    r^2 once r >= 2 sqrt(h)/R, where n is linear. On the way from theta to a point at distance <= 1/L1 this holds with
    r + 1/L1 in the place of r, and the integral of H_i along the way is the change of the gradient. So the radial
    lemma, with the gradient at theta, gives L0. No factor 1/ln 2 is needed, as H_i is bounded on the whole way; one
    bound serves 3A, 3B and Definition 1.
    **Gradient from below.** <grad N, theta> = N + q with q = sum_j v_j u_j sech^2(u_j), |q| <= m(r) = min(k sqrt h r,
    R r^2/2), k = max u sech^2 u. With e = N - y: e (N + q) = e^2 + e (y + q) >= -(y + q)^2/4, and E (y + q)^2 <= (Y2 +
    m(r))^2. So ||grad F|| >= <grad F, theta>/r >= B(r) = rho r^3 - (Y2 + m(r))^2/(4 r), and B(c r) >= c^3 B(r) for c >=
    1 where B(r) >= 0, as m(c r) <= c^2 m(r). On a cell [a, b] it is at least rho a^3 - (Y2 + m(b))^2/(4 a).
    **Noise.** The regulariser cancels: it is e_i grad N_i minus its mean. ||e_i grad N_i|| <= (n(r) + Y) R r, and the
    root mean square, hence the length of the mean, is at most (n(r) + Y2) R r. All grow at most like r^2 from the same
    r on. So 4A: (2 n(r) + Y + Y2) R r <= sigma0 + sigma1 ||grad F||, and 4B: ((n(r) + Y2) R r)^2 <= sigma0^2 + sigma1^2
    B(r)^2, by the radial lemma for the chosen sigma1. Without the regulariser there are no global constants (see
    `negative.py`).
    **Lower bound.** For any numbers p_i, (N - y)^2/2 >= p (y - N) - p^2/2. With c = w'x/||w||, tanh(w'x) is ||w|| c
    times a number in (0, 1], so |E p tanh(w'x)| <= ||w|| max(E (p c)_+, E (p c)_-) = ||w|| (E|p c| + |E p c|)/2 <=
    ||w|| S with S = (sqrt(E|p| lmax(E |p| xx')) + ||E p x||)/2, as E|p c| <= sqrt(E|p| E|p| c^2). And sum |v_j| ||w_j||
    <= r^2/2. So E p N <= S r^2/2 and F >= E p y - E p^2/2 - S r^2/2 + rho r^4/4 >= E p y - E p^2/2 - S^2/(4 rho). With
    the best multiple of p this is (E p y)^2/(2 E p^2 + S^2/rho), if E p y > 0. p = y - c u'x, u the direction of E y x
    and c from a grid: the residuals of a linear function, which is what the regulariser leaves of the network.
    **Range.** Let w_j be the rows of W. |tanh(w_j'x)| <= T_j = tanh(R ||w_j||), so |N| <= sum |v_j| T_j. ||grad N||^2
    is the sum over j of q + ||x||^2 v_j^2 (1 - q)^2 with q = tanh(w_j'x)^2 in [0, T_j^2], convex in q: at most P^2 =
    sum max(R^2 v_j^2, T_j^2 + R^2 v_j^2 (1 - T_j^2)^2). Around the regulariser's gradient, spread = (sum |v_j| T_j + Y)
    P. Within d = radius of theta, T_j is at most T'_j with ||w_j|| + d in the place of ||w_j||, and v moves by at most
    d: |N| <= n' = sum |v_j| T'_j + d sqrt(sum T'_j^2), and ||grad N|| <= P' + R d, P' being P with T'. c is at most c'
    = (4/(3 sqrt 3)) R^2 (max |v_j| + d), as the block WW is one block for each unit. The regulariser's gradient changes
    by at most rho ((r + d)^3 - r^3), as it is radial. So change = d [(P' + R d)^2 + (n' + Y)(c' + sqrt(c'^2 + 4 R^2))/2
    + rho (3 r^2 + 3 r d + d^2)].
    """

    data: tuple[Matrix, Matrix]
    rho: float
    L1: float
    sigma1: float
    infimum: float
    hidden: int = field(metadata=STATIC)
    name: ClassVar[str] = "tanh-network"
    infimum_kind: ClassVar[str] = "lower bound"

    def loss(self, theta: jax.Array, row: tuple[jax.Array, jax.Array]) -> jax.Array:
        W, v = theta[: -self.hidden].reshape(self.hidden, -1), theta[-self.hidden :]
        output = dot(v, jnp.tanh(dot(W, row[0])))
        return (output - row[1]) ** 2 / 2 + self.rho / 4 * jnp.sum(theta**2) ** 2

    def start(self) -> jax.Array:
        """Small, and different for each unit, because equal units would stay equal."""
        size = self.hidden * (np.shape(self.data[0])[1] + 1)
        return 0.5 * jnp.cos(jnp.arange(1.0, size + 1))

    def range(self, theta: jax.Array, radius: Any) -> tuple[jax.Array, jax.Array]:
        x, y = self._rows(theta)
        R, Y, r2 = longest(x), jnp.max(jnp.abs(y)), jnp.sum(theta**2)
        W, v = theta[: -self.hidden].reshape(self.hidden, -1), jnp.abs(theta[-self.hidden :])
        units = jnp.linalg.norm(W, axis=1)

        def slope(T: jax.Array) -> jax.Array:
            """P."""
            return jnp.sqrt(jnp.sum(jnp.maximum(R**2 * v**2, T**2 + (R * v * (1 - T**2)) ** 2)))

        T, far = jnp.tanh(R * units), jnp.tanh(R * (units + radius))
        spread = (jnp.sum(v * T) + Y) * slope(T)
        output = jnp.sum(v * far) + radius * jnp.linalg.norm(far)
        c = TANH2 * R**2 * (jnp.max(v) + radius)
        of_network = (slope(far) + R * radius) ** 2 + (output + Y) * (c + jnp.hypot(c, 2 * R)) / 2
        of_regulariser = self.rho * (3 * r2 + radius * (3 * jnp.sqrt(r2) + radius))
        return raised(theta, spread), raised(theta, radius * (of_network + of_regulariser))

    def smoothness(self, sense: str) -> tuple[float, float]:
        R, Y, _ = self._data_bounds()

        def hessian(r: Vector) -> Vector:
            p = r + 1 / self.L1
            c = TANH2 * R**2 * p
            of_network = (c + np.hypot(c, 2 * R)) / 2
            return (R**2 + 3 * self.rho) * p**2 + (self._output(p) + Y) * of_network

        return largest_excess(hessian, self._gradient, self.L1, self._reach()), self.L1

    def deviation(self, sense: str) -> tuple[float, float]:
        R, Y, Y2 = self._data_bounds()
        if sense == "almost-sure":
            size = largest_excess(
                lambda r: (2 * self._output(r) + Y + Y2) * R * r, self._gradient, self.sigma1, self._reach()
            )
            return size, self.sigma1
        square = largest_excess(
            lambda r: ((self._output(r) + Y2) * R * r) ** 2,
            lambda a, b: np.maximum(self._gradient(a, b), 0) ** 2,
            self.sigma1**2,
            self._reach(),
        )
        return square**0.5, self.sigma1

    def _gradient(self, a: Vector, b: Vector) -> Vector:
        R, _, Y2 = self._data_bounds()
        m = np.minimum(USECH * self.hidden**0.5 * b, R * b**2 / 2)
        return np.asarray(self.rho * a**3 - (Y2 + m) ** 2 / (4 * a))

    def _output(self, r: Vector) -> Vector:
        R, _, _ = self._data_bounds()
        return np.asarray(np.minimum(self.hidden**0.5 * r, R * r**2 / 2))

    def _reach(self) -> float:
        R, _, _ = self._data_bounds()
        return float(max(2 * self.hidden**0.5 / R, 1.0))

    def _data_bounds(self) -> tuple[float, float, float]:
        """R, Y and Y2."""
        x, y = self.data
        return float(np.max(np.linalg.norm(x, axis=1))), float(np.max(np.abs(y))), float(np.mean(y**2) ** 0.5)


def tanh_network(
    n: int = 100,
    inputs: int = 2,
    hidden: int = 3,
    rho: float = 0.5,
    L1: float = 6.0,
    sigma1: float = 2.5,
    seed: int = 0,
) -> TanhNetwork:
    """Inputs on the unit circle (sphere), targets in [-1, 1] from a planted unit; L1 and sigma1 are free."""
    name = "tanh-network"
    inputs, rng = whole(name, "inputs", inputs), generator(name, seed)
    x = sphere_rows(rng, whole(name, "n", n), inputs)
    y = np.tanh(x @ (3 * sphere_rows(rng, 1, inputs)[0]))
    rho = number(name, "rho", rho, POSITIVE)  # its part in the lower bound is computed here
    L1, sigma1 = positive(name, "L1", L1), positive(name, "sigma1", sigma1)
    return TanhNetwork((x, y), rho, L1, sigma1, network_bound(x, y, rho), whole(name, "hidden", hidden))


def network_bound(x: Matrix, y: Vector, rho: float) -> float:
    """A number below F at every theta, for any number of hidden units; see TanhNetwork."""
    planted = x.T @ y
    along = x @ planted / max(float(np.linalg.norm(planted)), 1e-300)

    def bound(p: Vector) -> float:
        size = np.abs(p)
        S = float(np.sqrt(np.mean(size) * np.linalg.eigvalsh((x.T * size) @ x / len(x))[-1])) / 2
        S += float(np.linalg.norm(p @ x)) / (2 * len(x))
        return max(float(np.mean(p * y)), 0.0) ** 2 / max(2 * float(np.mean(p**2)) + S**2 / rho, 1e-300)

    return max(bound(y - c * along) for c in np.linspace(0, 1.5, 151)) * (1 - 1e-9)
