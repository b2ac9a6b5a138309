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

from normstorm._shared.jax_internals import apart
from normstorm._shared.validate import ABOVE_ZERO, parameter, whole
from normstorm.random import numbers

from .base import STATIC, Certified, dot, margin, pytree, raised

PART = ABOVE_ZERO._replace(words="in (0, 1]")
PHI = math.sqrt(2 * math.pi * math.e)  # sup Phi
FLAT = (9 - 33**0.5) / 4, (9 + 33**0.5) / 4  # s where Psi'' is extreme
PSI2 = max(8 * math.e * abs(2 * s**3 - 3 * s**2) * math.exp(-s) for s in FLAT)
PEAK = math.sqrt(54 / math.e)  # sup Psi'
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
    **Range**, for less than the price of a gradient. There are two samples: they differ by h/p, so spread = ||h||/(2 p)
    (0 if p = 1), exact but where Psi is below 1e-18. Its one coordinate comes after the last k with |x_k| >= 1/2, or is
    the first. On the way to y each coordinate of U'x keeps its size within [low, high] = |.| -+ radius. There Psi <=
    Psi(high), Phi' <= Phi'(low), Phi <= sqrt(2 pi e) min(1/2 + high/sqrt(2 pi), 1) and |Phi''| <= min(high Phi'(low),
    1). Psi' grows until s = 3/2 and |Psi''| until their first extreme s: if high lies before it, they are largest
    there. Else Psi' <= 4 u^-3 Psi(high) and |Psi''| <= 8 s^2 |2 s - 3| Psi(high), u and s at low, where |2 s - 3| is
    the larger one of both ends; and both are at most their peaks. Gershgorin's circles with these numbers bound the
    Hessian of F. Row i of the Jacobian of h counts if q_i dF/dx_i can be other than 0 on the way (low_k < 1/2 for all
    k >= i, and high_{i-1} > 1/2 or i = 1), and grad q_i if some high_k > 1/4, k >= i. change = radius (||H_F|| + m Lh)
    with these two.
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
        h = _revealed(jnp.abs(y)) + margin(x) * (GATED * size + LARGEST)
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


def _revealed(size: jax.Array) -> jax.Array:
    """||h|| for |y_i|: that of the coordinate after the last one that is not below 1/2, see Chain."""
    i = jnp.arange(size.size)
    last = jnp.max(jnp.where(size >= 0.5, i, -1))
    beyond = jnp.where(i > last, size, 0)
    climbed = jnp.sqrt(jnp.sum(jnp.maximum(4 * beyond - 1, 0) ** 2))  # nothing beyond is 1/2 or more
    reached, here = (jnp.sum(jnp.where(i == place, size, 0)) for place in (last, last + 1))
    s = jnp.where(last < 0, 1, jnp.maximum(2 * reached - 1, 0.15) ** -2)
    h = math.sqrt(math.e) * jnp.exp(1 - s - here**2 / 2) * jnp.maximum(1 - climbed, 0)
    return jnp.where(last < size.size - 1, h, 0)


def _steepest(low: jax.Array, high: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Bounds of ||H_F|| and of the Jacobian of h where |y_i| lies in [low_i, high_i]; see Chain."""

    def parts(low: jax.Array, high: jax.Array) -> tuple[jax.Array, ...]:
        """Psi, Psi', |Psi''| and Phi'; u from .15 on, below which Psi and its slopes are below 1e-12."""
        near, far = (1 / jnp.maximum(2 * t - 1, 0.15) for t in (low, high))
        least = far * far
        psi, slower = jnp.exp(1 - least), jnp.where(least >= 1.5, far, near)
        s = jnp.where(least >= FLAT[1], far, near) ** 2
        bend = 8 * s * s * jnp.maximum(2 * s - 3, 3 - 2 * least) * psi
        return psi, jnp.minimum(4 * slower**3 * psi, PEAK), jnp.minimum(bend, PSI2), _phi(low)

    psi, slope, bend, phi = apart(parts, low, high)
    phi_slope = jnp.minimum(high * phi, 1)
    beside = slope[:-1] * phi[1:]
    below = psi[:-1] * phi_slope[1:] + beside  # of row i + 1, what x_i does to it
    above = PHI * bend[:-1] * jnp.minimum(0.5 + high[1:] / math.sqrt(2 * math.pi), 1) + beside
    ends = jnp.maximum(phi_slope[0] + above[0], below[-1])
    curve = jnp.max(below[:-1] + above[1:], initial=0.0)
    i = jnp.arange(low.size)
    last, moves = (jnp.max(jnp.where(which, i, -1)) for which in (low >= 0.5, high > 0.25))
    steep = phi_slope + jnp.where(i <= moves, 4 * phi, 0)
    open_ = (i[1:] > last) & (high[:-1] > 0.5)
    rows = jnp.where(open_, beside**2 + (psi[:-1] * steep[1:]) ** 2, 0)
    return jnp.maximum(curve, ends), jnp.sqrt(jnp.maximum(jnp.max(rows), jnp.where(last < 0, steep[0] ** 2, 0)))


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
