"""A two-layer tanh network made certifiable by a quartic regulariser."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from normstorm.problems.base import STATIC, Certified, FiniteSum, count, dot, positive, pytree
from normstorm.problems.lemmas import Vector, from_hessian, largest_excess
from normstorm.problems.linear import Matrix, sphere_rows

TANH2 = 4 / (3 * 3**0.5)  # max |tanh''|
USECH = 0.447744  # above max u sech^2 u = 0.4477432...


@pytree
@dataclass(frozen=True, eq=False)
class TanhNetwork(FiniteSum, Certified):
    """f_i = (N_i - y_i)^2/2 + (rho/4) ||theta||^4, N_i = v'tanh(W x_i), theta = (W, v) flattened. F* >= 0.

    h hidden units, ||x_i|| <= R, |y_i| <= Y, r = ||theta||, so ||W||^2 + ||v||^2 = r^2.
    **The network.** |tanh u| <= min(1, |u|) gives ||tanh(W x)|| <= min(sqrt h, R ||W||), so |N| <= n(r) = min(sqrt h
    r, R r^2/2), and ||grad N||^2 = ||tanh(W x)||^2 + ||v sech^2(W x)||^2 ||x||^2 <= R^2 r^2. The Hessian of N has the
    blocks vv: 0, vW: diag(sech^2) times x', of norm <= R, WW: v_j tanh''(.) xx' for each unit, of norm <= (4/(3 sqrt
    3)) R^2 r. So ||H_N|| <= R + .77 R^2 r.
    **Smoothness.** ||H_i|| <= R^2 r^2 + (n(r) + Y)(R + .77 R^2 r) + 3 rho r^2, which grows at most like r^2 once
    r >= 2 sqrt(h)/R, where n is linear.
    **Gradient from below.** <grad N, theta> = N + q with q = sum_j v_j u_j sech^2(u_j), |q| <= k sqrt h r, k = max u
    sech^2 u. With e = N - y: e (N + q) = e^2 + e (y + q) >= -(y + q)^2/4. So ||grad F|| >= <grad F, theta>/r >= B(r)
    = rho r^3 - (Y + k sqrt h r)^2/(4 r), and B(q r) >= q^3 B(r) where B(r) >= 0. On a cell [a, b] it is at least rho
    a^3 - (Y + k sqrt h b)^2/(4 a). The radial lemma gives l0 for the chosen l1, then the Hessian lemma; one bound
    serves 3A, 3B and Definition 1.
    **Noise.** The regulariser cancels. ||e_i grad N_i|| <= E(r) = (n(r) + Y) R r, which grows at most like r^2 from
    the same r on. So 4A: 2 E(r) <= sigma0 + sigma1 ||grad F||, and 4B from E(r)^2 <= sigma0^2 + sigma1^2 B(r)^2, by
    the radial lemma for the chosen sigma1. Without the regulariser there are no global constants (see `negative.py`).
    """

    data: tuple[Matrix, Matrix]
    rho: float
    l1: float
    sigma1: float
    hidden: int = field(metadata=STATIC)
    name: ClassVar[str] = "tanh-network"
    infimum: ClassVar[float] = 0.0
    infimum_kind: ClassVar[str] = "lower bound"

    def loss(self, theta: jax.Array, row: tuple[jax.Array, jax.Array]) -> jax.Array:
        W, v = theta[: -self.hidden].reshape(self.hidden, -1), theta[-self.hidden :]
        output = dot(v, jnp.tanh(dot(W, row[0])))
        return (output - row[1]) ** 2 / 2 + self.rho / 4 * jnp.sum(theta**2) ** 2

    def start(self) -> jax.Array:
        """Small, and different for each unit, because equal units would stay equal."""
        size = self.hidden * (np.shape(self.data[0])[1] + 1)
        return 0.5 * jnp.cos(jnp.arange(1.0, size + 1))

    def smoothness(self, sense: str) -> tuple[float, float]:
        R, Y = self._data_bounds()

        def hessian(r: Vector) -> Vector:
            return R**2 * r**2 + (self._output(r) + Y) * (R + TANH2 * R**2 * r) + 3 * self.rho * r**2

        return from_hessian(largest_excess(hessian, self._gradient, self.l1, self._reach()), self.l1)

    def deviation(self, sense: str) -> tuple[float, float]:
        R, Y = self._data_bounds()

        def size(r: Vector) -> Vector:
            return (self._output(r) + Y) * R * r

        if sense == "almost-sure":
            return largest_excess(lambda r: 2 * size(r), self._gradient, self.sigma1, self._reach()), self.sigma1
        square = largest_excess(
            lambda r: size(r) ** 2,
            lambda a, b: np.maximum(self._gradient(a, b), 0) ** 2,
            self.sigma1**2,
            self._reach(),
        )
        return square**0.5, self.sigma1

    def _gradient(self, a: Vector, b: Vector) -> Vector:
        _, Y = self._data_bounds()
        return np.asarray(self.rho * a**3 - (Y + USECH * self.hidden**0.5 * b) ** 2 / (4 * a))

    def _output(self, r: Vector) -> Vector:
        R, _ = self._data_bounds()
        return np.asarray(np.minimum(self.hidden**0.5 * r, R * r**2 / 2))

    def _reach(self) -> float:
        R, _ = self._data_bounds()
        return float(max(2 * self.hidden**0.5 / R, 1.0))

    def _data_bounds(self) -> tuple[float, float]:
        inputs, targets = self.data
        return float(np.max(np.linalg.norm(inputs, axis=1))), float(np.max(np.abs(targets)))


def tanh_network(
    n: int = 100,
    inputs: int = 2,
    hidden: int = 3,
    rho: float = 0.5,
    l1: float = 6.0,
    sigma1: float = 2.0,
    seed: int = 0,
) -> TanhNetwork:
    """Inputs on the unit circle (sphere), targets in [-1, 1] from a planted network of one unit."""
    name = "tanh-network"
    rng = np.random.default_rng(seed)
    x = sphere_rows(rng, count(name, "n", n), count(name, "inputs", inputs))
    y = np.tanh(x @ (3 * sphere_rows(rng, 1, inputs)[0]))
    for parameter, number in (("rho", rho), ("l1", l1), ("sigma1", sigma1)):
        positive(name, parameter, number)
    return TanhNetwork((x, y), rho, l1, sigma1, count(name, "hidden", hidden))
