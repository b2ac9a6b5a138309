"""Distributionally robust regression: the mean of the worst reweighting of the rows, in its joint dual form.

With z = (x, eta), a divergence whose conjugate psi* is convex, differentiable and non-decreasing with psi*(t) >= t, and
a penalty lam > 0,

    f(z, i) = lam psi*(t_i) + G eta,   t_i = (l_i(x) - G eta)/lam,   w_i = psi*'(t_i) >= 0.

l_i is G-Lipschitz with a Ls-Lipschitz gradient and values in [0, 1); psi*' is M-Lipschitz. The multiplier is measured
in units of G, so that both blocks have one scale: grad f = (w grad l, G (1 - w)). Minimising over eta gives sup_Q
[E_Q l - lam D(Q)] (Jin, Zhang, Wang, Wang: "Non-convex distributionally robust optimization", 2021, for the form).

The loss is Geman and McClure's, l = r^2/(1 + r^2) with r = a'x - b and ||a|| <= 1: l' = 2 r/(1 + r^2)^2 is largest at
r = 1/sqrt 3, G = 9/(8 sqrt 3); l'' = (2 - 6 r^2)/(1 + r^2)^3 lies in [-1/2, 2], Ls = 2.

**Lower bound.** psi*(t) >= t gives f >= l, so F >= E l. With phi(t) = t/(1 + t), which is concave with phi(0) = 0 and
hence subadditive, the losses of a group of rows add up to sum phi(r_i^2) >= phi(sum r_i^2) >= phi(q), where q is the
least sum of squares that any x reaches on this group. Deal the rows out to groups, row i to group i mod m, and add up:
F >= (1/n) sum phi(q_j) for every m. We take the best m.

**Two facts.** (i) |dF/d eta| = G |1 - E w|, so E w <= 1 + g_eta/G, where g_eta and g_x are the lengths of the blocks of
grad F. (ii) Values of l differ by less than D = 1 and have a standard deviation of at most 1/2; w is an M/lam-Lipschitz
function of l, so |w_i - E w| <= v = M/lam and sd(w) <= v/2.

**Smoothness, for all pairs.** w grad l - w' grad l' = w (grad l - grad l') + (w - w') grad l', and |w - w'| <= (M
G/lam)(||x - x'|| + |eta - eta'|) <= sqrt 2 (M G/lam) ||z - z'||. The x-block is at most w Ls ||z - z'|| + G |w - w'|
and the eta-block G |w - w'|, so together at most (w Ls + 2 G^2 M/lam) ||z - z'||, with w at the anchor z. No radius
and no factor 1/ln 2 is needed.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from normstorm._shared.validate import OPEN_UNIT, POSITIVE, number, whole

from .base import Certified, FiniteSum, dot, pytree
from .linear import Matrix, generator, sphere_rows

G = 9 / (8 * math.sqrt(3))
LS = 2.0


@pytree
@dataclass(frozen=True, eq=False)
class ChiSquareDRO(FiniteSum, Certified):
    """psi(t) = (t - 1)^2: psi*(t) = max(t/2 + 1, 0)^2 - 1, w = max(t/2 + 1, 0), M = 1/2.

    **Smoothness.** Put fact (i) into w <= E w + v (3A), sqrt(E w^2) <= E w + sd(w) (3B), E w (Definition 1):
    L0 = Ls (1 + v) + 2 G^2 M/lam, with v/2 (3B) or 0 (Definition 1) in the place of v, and L1 = Ls/G.
    **4A.** The noise is (w grad l - grad_x F, -G (w - E w)), at most hypot(w G + g_x, G v), and
    w G <= G (1 + v) + g_eta. By Minkowski's inequality in the plane it is at most G hypot(1 + v, v) + g_x + g_eta:
    sigma0 = G hypot(1 + v, v), sigma1 = sqrt 2.
    **4B.** E||noise||^2 <= G^2 E w^2 - g_x^2 + G^2 Var w <= G^2 (E w)^2 + 2 G^2 (v/2)^2 and
    G^2 (E w)^2 <= (G + g_eta)^2 <= 2 G^2 + 2 g_eta^2: sigma0^2 = 2 G^2 + G^2 v^2/2, sigma1^2 = 2.
    """

    data: tuple[Matrix, Matrix]
    lam: float
    multiplier: float
    infimum: float
    name: ClassVar[str] = "dro-chi2"
    infimum_kind: ClassVar[str] = "lower bound"

    def loss(self, z: jax.Array, row: tuple[jax.Array, jax.Array]) -> jax.Array:
        r2 = (dot(row[0], z[:-1]) - row[1]) ** 2
        return self.lam * self.conjugate((r2 / (1 + r2) - G * z[-1]) / self.lam) + G * z[-1]

    def conjugate(self, t: jax.Array) -> jax.Array:
        return jnp.maximum(t / 2 + 1, 0) ** 2 - 1

    def start(self) -> jax.Array:
        return jnp.zeros(np.shape(self.data[0])[1] + 1).at[-1].set(self.multiplier)

    def objective_smoothness(self) -> tuple[float, float]:
        return LS + G**2 / self.lam, LS / G

    def smoothness(self, sense: str) -> tuple[float, float]:
        return LS * (1 + self._spread(sense)) + G**2 / self.lam, LS / G

    def deviation(self, sense: str) -> tuple[float, float]:
        v = self._spread(sense)
        if sense == "almost-sure":
            return G * math.hypot(1 + v, v), math.sqrt(2)
        return G * math.sqrt(2 + 2 * v**2), math.sqrt(2)

    def _spread(self, sense: str) -> float:
        return (1.0 if sense == "almost-sure" else 0.5) * 0.5 / self.lam


@pytree
@dataclass(frozen=True, eq=False)
class SmoothedCVaR(ChiSquareDRO):
    """psi*(t) = log(1 - al + al e^t)/al, 0 < al < 1: w = e^t/(1 - al + al e^t) in (0, 1/al), M = 1/(4 al).

    M: with q = al w in (0, 1), w' = q (1 - q)/al. psi*(t) >= t: the difference vanishes at 0 with slope 0 and psi* is
    convex. **Smoothness.** w < 1/al: L0 = Ls/al + 2 G^2 M/lam, L1 = 0, in every sense.
    **Noise**, sigma1 = 0. Both w grad l and its mean are shorter than G/al, and w lies in an interval of length 1/al:
    the noise is at most hypot(2, 1) G/al (4A). The variance of a vector in a ball of radius G/al is at most its
    square, that of a number in an interval of length G/al a quarter of it: sigma0^2 = (5/4) G^2/al^2 (4B).
    """

    al: float
    name: ClassVar[str] = "dro-cvar"

    def conjugate(self, t: jax.Array) -> jax.Array:
        return jnp.logaddexp(jnp.log1p(-self.al), jnp.log(self.al) + t) / self.al

    def objective_smoothness(self) -> tuple[float, float]:
        return self.smoothness("mean-square")

    def smoothness(self, sense: str) -> tuple[float, float]:
        return LS / self.al + G**2 / (2 * self.al * self.lam), 0.0

    def deviation(self, sense: str) -> tuple[float, float]:
        return G * math.sqrt(5 if sense == "almost-sure" else 1.25) / self.al, 0.0


@pytree
@dataclass(frozen=True, eq=False)
class DiabetesDRO(ChiSquareDRO):
    """ChiSquareDRO on the diabetes data that ship with scikit-learn: 442 patients, 10 measurements."""

    name: ClassVar[str] = "dro-regression"


def dro_chi2(n: int = 200, dim: int = 5, lam: float = 0.5, seed: int = 0) -> ChiSquareDRO:
    """Unit rows, targets from a planted model, a tenth of them far off."""
    rows, lam = _rows("dro-chi2", n, dim, seed), number("dro-chi2", "lam", lam, POSITIVE)
    return ChiSquareDRO(rows, lam, best_multiplier(rows[1], lam, chi2_weight), lower_bound(*rows))


def dro_cvar(n: int = 200, dim: int = 5, lam: float = 0.5, al: float = 0.2, seed: int = 0) -> SmoothedCVaR:
    """The data of `dro_chi2`."""
    lam, al = number("dro-cvar", "lam", lam, POSITIVE), number("dro-cvar", "al", al, OPEN_UNIT)
    rows = _rows("dro-cvar", n, dim, seed)
    multiplier = best_multiplier(rows[1], lam, lambda t: 1 / (al + (1 - al) * np.exp(-t)))
    return SmoothedCVaR(rows, lam, multiplier, lower_bound(*rows), al)


def dro_regression(lam: float = 0.5) -> DiabetesDRO:
    """Measurements and target standardised, then each row of measurements divided by its length."""
    lam = number("dro-regression", "lam", lam, POSITIVE)
    try:
        datasets = importlib.import_module("sklearn.datasets")
    except ImportError:
        raise ValueError(
            "dro-regression: scikit-learn must be installed, its diabetes data are the problem; got no such package"
        ) from None
    a, b = datasets.load_diabetes(return_X_y=True, scaled=False)
    a, b = (a - a.mean(axis=0)) / a.std(axis=0), (b - b.mean()) / b.std()
    rows = (a / np.linalg.norm(a, axis=1, keepdims=True) * (1 - 1e-12), b)
    return DiabetesDRO(rows, lam, best_multiplier(b, lam, chi2_weight), lower_bound(*rows))


def lower_bound(a: Matrix, b: Matrix) -> float:
    """A number below the mean loss at every x; see the head of this file."""
    n, dim = a.shape

    def bound(groups: int) -> float:
        parts = ((a[j::groups], b[j::groups]) for j in range(groups))
        # Less what rounding can have added to the smallest sum of squares.
        least = [np.sum((y - x @ np.linalg.lstsq(x, y)[0]) ** 2) - 1e-12 * np.sum(y**2) for x, y in parts]
        q = np.maximum(least, 0)
        return float(np.sum(q / (1 + q)) / n)

    # A group of at most dim rows can be fitted exactly and adds nothing.
    return max(map(bound, range(1, max(n // (dim + 1), 1) + 1))) * (1 - 1e-9)


def best_multiplier(targets: Matrix, lam: float, weight: Callable[[Matrix], Matrix]) -> float:
    """The eta that minimises F at x = 0: there E w = 1, and E w does not increase with eta."""
    values = targets**2 / (1 + targets**2)
    low, high = float(values.min()), float(values.max())
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if np.mean(weight((values - middle) / lam)) > 1 else (low, middle)
    return low / G


def chi2_weight(t: Matrix) -> Matrix:
    return np.maximum(t / 2 + 1, 0)


def _rows(name: str, n: int, dim: int, seed: int) -> tuple[Matrix, Matrix]:
    n, dim, rng = whole(name, "n", n), whole(name, "dim", dim), generator(name, seed)
    a = sphere_rows(rng, n, dim) * (1 - 1e-12)
    b = a @ (3 * sphere_rows(rng, 1, dim)[0]) + 0.3 * rng.standard_normal(n)
    b[: n // 10] += 3.0
    return a, b
