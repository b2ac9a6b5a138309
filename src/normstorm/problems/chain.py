"""The zero-chain behind the lower bounds for stochastic non-convex optimisation, with its gated oracle.

    F(x) = -Psi(1) Phi(x_1) + sum_{i=2}^n [Psi(-x_{i-1}) Phi(-x_i) - Psi(x_{i-1}) Phi(x_i)]
    Psi(t) = exp(1 - 1/(2t - 1)^2) for t > 1/2, else 0;   Phi(t) = sqrt(e) int_{-inf}^t exp(-s^2/2) ds

Source: the function of Carmon, Duchi, Hinder and Sidford and the oracle of Arjevani, Carmon, Duchi, Foster, Srebro
and Woodworth, "Lower bounds for non-convex stochastic optimization". Departures: the gate is a piecewise linear
function, not a smooth one, and all constants below are derived here; they are smaller than those of the literature.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from normstorm._shared.validate import ABOVE_ZERO, parameter, whole
from normstorm.random import numbers

from .base import STATIC, Certified, dot, margin, pytree, raised

PART = ABOVE_ZERO._replace(words="in (0, 1]")
PHI = math.sqrt(2 * math.pi * math.e)  # sup Phi
FLAT = (9 - 33**0.5) / 4, (9 + 33**0.5) / 4  # s where Psi'' is extreme
BENDS = [((1 + s**-0.5) / 2, 8 * math.e * abs(2 * s**3 - 3 * s**2) * math.exp(-s)) for s in FLAT]  # t and |Psi''| there
PEAK = (1 + 1.5**-0.5) / 2, math.sqrt(54 / math.e)  # t and Psi' where that is largest
PSI2 = max(value for _, value in BENDS)
LIPSCHITZ = math.e + PHI * PSI2 + 2 * math.sqrt(54)
LARGEST = math.exp(1.5)
GATED = math.hypot(math.sqrt(54), LARGEST * math.exp(-1 / 8) / 2 + 4 * LARGEST)


@pytree
@dataclass(frozen=True, eq=False)
class Chain(Certified):
    """The chain of length n in rotated coordinates U'x, with progress that is revealed with probability p. Start 0.

    **Factors.** 0 <= Psi < e. With u = 2t - 1 and s = 1/u^2: Psi' = 4 u^-3 e^(1-s) is largest at s = 3/2, sqrt(54/e);
    Psi'' = 8 e (2 s^3 - 3 s^2) e^-s is extreme where 2 s^2 - 9 s + 6 = 0, |Psi''| <= 32.4. 0 < Phi < sqrt(2 pi e),
    Phi' = sqrt(e) e^(-t^2/2), |Phi''| <= 1. At most one of Psi(t), Psi(-t) is not 0, and Phi' is even, so
        dF/dx_i = -Psi(|x_{i-1}|) Phi'(x_i) - Psi'(|x_i|) Phi(+-x_{i+1})      (Psi(1) for i = 1, no last term for i =
        n).
    **F*** = -sqrt(2 pi e) (1 + e (n - 1)), exact: each term is at least -sup Psi sup Phi (the first -Psi(1) sup Phi),
    and all are approached together when every x_i grows.
    **Definition 1.** The Hessian is tridiagonal: |H_ii| <= e + |Psi''| sqrt(2 pi e), |H_{i,i+1}| = |Psi'| Phi' <=
    sqrt 54. Gershgorin's circles: L0F = e + 32.4 sqrt(2 pi e) + 2 sqrt 54 < 151.3, L1 = 0.
    **Large gradients.** If |x_j| <= 1 for some j, take the first such j: |dF/dx_j| >= Psi(1) Phi'(1) = 1. So
    ||grad F|| >= 1 until all coordinates have passed 1.
    **Oracle.** The i-th coordinate of grad f(x, z) is dF/dx_i (1 + q_i(x)(z/p - 1)), z ~ Bernoulli(p), with the gate
    q_i = max(0, 1 - ||(c(|x_k|))_{k >= i}||), c(t) = min(max(4 t - 1, 0), 1). q_i = 1 if all |x_k| <= 1/4 from i on
    (then nothing beyond the progress leaks unless z = 1), q_i = 0 if some |x_k| >= 1/2. Put h_i = q_i dF/dx_i. If
    h_i(x) != 0, then |x_k| < 1/2 for all k >= i, so Psi'(|x_i|) = 0, and Psi(|x_{i-1}|) > 0, so |x_{i-1}| > 1/2 or i
    = 1. That fixes i: h has at most one coordinate that is not 0, |h_i| <= e sup Phi' = e^(3/2).
    **4A, 4B.** The noise is (z/p - 1) h: sigma1 = 0, sigma0 = e^(3/2) times m = max(1, (1 - p)/p) (4A), or times
    sqrt((1 - p)/p) (4B).
    **3A, 3B.** h is continuous and piecewise C^1, its Jacobian has one row, q grad(dF/dx_i) + dF/dx_i grad q. The
    first has the entries Psi' Phi' <= sqrt 54 at i - 1 and Psi |Phi''| <= e^(3/2) e^(-1/8)/2 at i (as |x_i| < 1/2,
    where t e^(-t^2/2) increases); the second lives on k >= i and is at most 4 e^(3/2), as q is 4-Lipschitz. So h is
    Lh-Lipschitz with Lh = hypot(sqrt 54, e^(3/2) (4 + e^(-1/8)/2)) < 21.3. L0 = L0F + m Lh (3A), L0^2 = L0F^2 + Lh^2
    (1 - p)/p (3B), as the cross term has mean zero. A rotation changes no length.
    **Range**, for about the price of a gradient. There are two samples: they differ by h/p, so spread = ||h||/(2 p) (0
    if p = 1), exact. On the way to y each coordinate of U'x keeps its size within [low, high] = |.| -+ radius. There
    Psi <= Psi(high), Phi' <= Phi'(low), Phi <= sqrt(2 pi e) min(1/2 + high/sqrt(2 pi), 1); Psi', |Psi''| and |Phi''|
    are at most their peaks, if these lie in between, and else the larger end. Gershgorin's circles with these numbers
    bound the Hessian of F. Row i of the Jacobian of h counts if q_i dF/dx_i can be other than 0 on the way (low_k < 1/2
    for all k >= i, and high_{i-1} > 1/2 or i = 1), and grad q_i if some high_k > 1/4, k >= i. change = radius (||H_F||
    + m Lh) with these two.
    """

    rotation: np.ndarray
    p: float
    length: int = field(metadata=STATIC)
    name: ClassVar[str] = "chain"
    infimum_kind: ClassVar[str] = "exact"

    @property
    def infimum(self) -> float:
        return -PHI * (1 + math.e * (self.length - 1))

    def sample(self, key: jax.Array, n: int) -> jax.Array:
        return numbers(key, 0, n)[1] < self.p

    def grad(self, x: jax.Array, batch: jax.Array) -> jax.Array:
        rotation = jnp.asarray(self.rotation, x.dtype)
        y = dot(rotation.T, x)
        surplus = jnp.mean(batch.astype(x.dtype)) / self.p - 1
        return dot(rotation, _grad(y) * (1 + gate(y) * surplus))

    def value(self, x: jax.Array) -> jax.Array:
        y = dot(jnp.asarray(self.rotation, x.dtype).T, x)
        before, here = y[:-1], y[1:]
        return -_big_phi(y[0]) + jnp.sum(_psi(-before) * _big_phi(-here) - _psi(before) * _big_phi(here))

    def full_grad(self, x: jax.Array) -> jax.Array:
        rotation = jnp.asarray(self.rotation, x.dtype)
        return dot(rotation, _grad(dot(rotation.T, x)))

    def range(self, x: jax.Array, radius: Any) -> tuple[jax.Array, jax.Array]:
        y = dot(jnp.asarray(self.rotation, x.dtype).T, x)
        size = jnp.linalg.norm(x)
        h = jnp.linalg.norm(_grad(y) * gate(y)) + margin(x) * (GATED * size + LARGEST)
        shift = radius + margin(x) * (1 + size)
        low, high = jnp.maximum(jnp.abs(y) - shift, 0), jnp.abs(y) + shift
        curve, gated = _steepest(low, high)
        odds = 1 / self.p - 1
        noisy = jnp.where(odds > 0, 1.0, 0.0)
        change = radius * (curve + noisy * jnp.maximum(1, odds) * gated)
        return raised(x, noisy.astype(x.dtype) * h / (2 * self.p)), raised(x, change)

    def start(self) -> jax.Array:
        return jnp.zeros(self.length)

    def objective_smoothness(self) -> tuple[float, float]:
        return LIPSCHITZ, 0.0

    def smoothness(self, sense: str) -> tuple[float, float]:
        scale = self._scale(sense)
        if sense == "almost-sure":
            return LIPSCHITZ + scale * GATED, 0.0
        return math.hypot(LIPSCHITZ, scale * GATED), 0.0

    def deviation(self, sense: str) -> tuple[float, float]:
        return self._scale(sense) * LARGEST, 0.0

    def _scale(self, sense: str) -> float:
        odds = (1 - self.p) / self.p
        if sense == "almost-sure":
            return max(1.0, odds) if odds > 0 else 0.0
        return math.sqrt(odds)


def gate(y: jax.Array) -> jax.Array:
    """q_i: 1 beyond the progress, 0 up to it, linear in between."""
    climbed = jnp.clip(4 * jnp.abs(y) - 1, 0, 1) ** 2
    tail = jnp.cumsum(climbed[::-1])[::-1]
    some = tail > 0  # the root of 0 has no derivative
    return jnp.maximum(1 - jnp.where(some, jnp.sqrt(jnp.where(some, tail, 1)), 0), 0)


def chain(length: int = 16, p: float = 0.1, rotate: int | None = 0) -> Chain:
    """`rotate` seeds a random rotation; None leaves the coordinates as they are."""
    length, p = whole("chain", "length", length, least=2), parameter("chain", "p", p, PART)
    if rotate is None:
        return Chain(np.eye(length), p, length)
    normal = np.random.default_rng(whole("chain", "rotate", rotate, least=0)).standard_normal((length, length))
    return Chain(np.linalg.qr(normal)[0], p, length)


def _grad(y: jax.Array) -> jax.Array:
    pushed = jnp.concatenate([jnp.ones(1, y.dtype), _psi(jnp.abs(y[:-1]))]) * _phi(y)
    pulling = _psi_slope(jnp.abs(y[:-1])) * _big_phi(jnp.sign(y[:-1]) * y[1:])
    return -pushed - jnp.concatenate([pulling, jnp.zeros(1, y.dtype)])


def _steepest(low: jax.Array, high: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Bounds of ||H_F|| and of the Jacobian of h where |y_i| lies in [low_i, high_i]; see Chain."""

    def parts(t: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array, jax.Array]:
        """Psi, Psi', |Psi''|, Phi' and |Phi''|; u from .05 on, below which Psi and its slopes are below 1e-160."""
        s = jnp.maximum(2 * t - 1, 0.05) ** -2
        psi, phi = jnp.exp(1 - s), _phi(t)
        return psi, 4 * s**1.5 * psi, 8 * s**2 * jnp.abs(2 * s - 3) * psi, phi, t * phi

    def largest(a: jax.Array, b: jax.Array, *peaks: tuple[float, float]) -> jax.Array:
        found = jnp.maximum(a, b)
        for t, value in peaks:
            found = jnp.where((low <= t) & (t <= high), jnp.maximum(found, value), found)
        return found

    (_, slope_a, bend_a, phi, phi_a), (psi, slope_b, bend_b, _, phi_b) = parts(low), parts(high)
    slope, bend = largest(slope_a, slope_b, PEAK), largest(bend_a, bend_b, *BENDS)
    phi_slope = largest(phi_a, phi_b, (1, 1))
    one, none = jnp.ones_like(low[:1]), jnp.zeros_like(low[:1])
    before = jnp.concatenate([one, psi[:-1]])
    off = jnp.concatenate([none, slope[:-1] * phi[1:], none])
    ahead = PHI * jnp.concatenate([bend[:-1] * jnp.minimum(0.5 + high[1:] / math.sqrt(2 * math.pi), 1), none])
    curve = jnp.max(before * phi_slope + ahead + off[:-1] + off[1:])
    i = jnp.arange(low.size)
    closed = (i <= jnp.max(jnp.where(low >= 0.5, i, -1))) | ((i > 0) & (jnp.concatenate([one, high[:-1]]) <= 0.5))
    moves = i <= jnp.max(jnp.where(high > 0.25, i, -1))
    row = jnp.hypot(off[:-1], before * (phi_slope + jnp.where(moves, 4 * phi, 0)))
    return curve, jnp.max(jnp.where(closed, 0, row))


def _psi(t: jax.Array) -> jax.Array:
    u = jnp.where(t > 0.5, 2 * t - 1, 1)
    return jnp.where(t > 0.5, jnp.exp(1 - u**-2), 0)


def _psi_slope(t: jax.Array) -> jax.Array:
    u = jnp.where(t > 0.5, 2 * t - 1, 1)
    return jnp.where(t > 0.5, 4 * jnp.exp(1 - u**-2 - 3 * jnp.log(u)), 0)


def _phi(t: jax.Array) -> jax.Array:
    return math.sqrt(math.e) * jnp.exp(-(t**2) / 2)


def _big_phi(t: jax.Array) -> jax.Array:
    return PHI * jax.scipy.special.ndtr(t)
