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
F >= (1/n) sum phi(q_j) for every m. We take the best m; for the diabetes data `moments` has a better one.

**Two facts.** (i) |dF/d eta| = G |1 - E w|, so E w <= 1 + g_eta/G, where g_eta and g_x are the lengths of the blocks of
grad F. (ii) Values of l differ by less than D = 1 and have a standard deviation of at most 1/2; w is an M/lam-Lipschitz
function of l, so |w_i - E w| <= v = M/lam and sd(w) <= v/2.

**Smoothness, for all pairs.** w grad l - w' grad l' = w (grad l - grad l') + (w - w') grad l', and |w - w'| <= (M
G/lam)(||x - x'|| + |eta - eta'|) <= sqrt 2 (M G/lam) ||z - z'||. The x-block is at most w Ls ||z - z'|| + G |w - w'|
and the eta-block G |w - w'|, so together at most (w Ls + 2 G^2 M/lam) ||z - z'||, with w at the anchor z. No radius
and no factor 1/ln 2 is needed.

**Range**, from eta alone. Write u = l in [0, 1): |l'| = L(u) = 2 sqrt(u) (1 - u)^(3/2), largest at u = 1/4, and l'' =
(2 - 8 u)(1 - u)^2, which falls up to u = 1/2 and is at least -1/2 behind u = 1/4; w increases with u. Cut [0, 1] into
cells; on each, w and L lie between known numbers. spread: around (0, G (1 - c)) with c in the middle of all w, a
gradient has at most the length hypot(w L, G |w - c|). change: on the way eta moves by at most d = radius, t by G d/lam.
The Hessian is k (l' a, -G)(l' a, -G)' + w l'' aa' (in x) with k = psi*''(t)/lam, in the plane of a and eta a matrix
whose largest eigenvalue is at most that of the rows (k L^2 + w max(l'', 0), k L G), (k L G, k G^2), entries that are
not negative and bounded on the cell; the least is at least -w max(-l'', 0) >= -w/2. So change is d times the largest of
these, and also at most d (w Ls + 2 G^2 M/lam) as above, with the largest w at z itself.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from normstorm._shared.validate import OPEN_UNIT, POSITIVE, number, whole

from .base import Certified, FiniteSum, dot, margin, pytree, raised
from .linear import Matrix, generator, sphere_rows
from .moments import moment_bound

G = 9 / (8 * math.sqrt(3))
LS = 2.0
ALL_GROUPS = 64
CELLS = 8  # even, so that u = 1/4 is an edge


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

    def weight(self, t: jax.Array) -> jax.Array:
        """w."""
        return jnp.maximum(t / 2 + 1, 0)

    def steepest(self, low: jax.Array, high: jax.Array) -> jax.Array:
        """The largest psi*'' where w is between these numbers."""
        return jnp.full_like(high, 0.5)

    def range(self, z: jax.Array, radius: Any) -> tuple[jax.Array, jax.Array]:
        u = (jnp.arange(CELLS + 1, dtype=z.dtype) / CELLS) ** 2
        slope, bend = 2 * jnp.sqrt(u) * (1 - u) ** 1.5, jnp.maximum(2 - 8 * u, 0) * (1 - u) ** 2
        t, lost = (u - G * z[-1]) / self.lam, margin(z) * (1 + G * jnp.abs(z[-1])) / self.lam
        L = jnp.maximum(slope[:-1], slope[1:])

        def weights(shift: jax.Array) -> tuple[jax.Array, jax.Array]:
            return self.weight(t[:-1] - shift), self.weight(t[1:] + shift)

        low, high = weights(lost)
        middle = (low[0] + high[-1]) / 2
        spread = jnp.sqrt(jnp.max((high * L) ** 2 + (G * jnp.maximum(high - middle, middle - low)) ** 2))
        everywhere = (
            high[-1] * LS + 2 * G**2 * self.steepest(jnp.zeros_like(t[0]), jnp.full_like(t[0], jnp.inf)) / self.lam
        )
        low, high = weights(lost + G * radius / self.lam)
        k = self.steepest(low, high) / self.lam
        of_x, of_eta = k * L**2 + high * bend[:-1], k * G**2
        largest = (of_x + of_eta) / 2 + jnp.sqrt(((of_x - of_eta) / 2) ** 2 + (k * L * G) ** 2)
        nearby = jnp.max(jnp.maximum(largest, jnp.where(u[1:] > 0.25, high / 2, 0)))
        return raised(z, spread), raised(z, radius * jnp.minimum(nearby, everywhere))

    def start(self) -> jax.Array:
        return jnp.asarray(np.append(np.zeros(np.shape(self.data[0])[1]), self.multiplier))

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
    **Range.** psi*'' = w (1 - al w), largest where w is nearest to 1/(2 al).
    """

    al: float
    name: ClassVar[str] = "dro-cvar"

    def conjugate(self, t: jax.Array) -> jax.Array:
        return jnp.logaddexp(jnp.log1p(-self.al), jnp.log(self.al) + t) / self.al

    def weight(self, t: jax.Array) -> jax.Array:
        return 1 / (self.al + (1 - self.al) * jnp.exp(-t))

    def steepest(self, low: jax.Array, high: jax.Array) -> jax.Array:
        w = jnp.clip(1 / (2 * self.al), low, high)
        return w * (1 - self.al * w)

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
    a, b = _diabetes()
    a, b = (a - a.mean(axis=0)) / a.std(axis=0), (b - b.mean()) / b.std()
    rows = (a / np.linalg.norm(a, axis=1, keepdims=True) * (1 - 1e-12), b)
    least = max(lower_bound(*rows), moment_bound(*rows))
    return DiabetesDRO(rows, lam, best_multiplier(b, lam, chi2_weight), least)


def _diabetes() -> tuple[Matrix, Matrix]:
    """Measurements and targets from scikit-learn's own files: to import its loader takes longer than all the rest."""
    found = importlib.util.find_spec("sklearn")
    if found is None or not found.submodule_search_locations:
        raise ValueError(
            "dro-regression: scikit-learn must be installed, its diabetes data are the problem; got no such package"
        )
    folder = Path(found.submodule_search_locations[0]) / "datasets" / "data"
    try:
        a, b = (np.loadtxt(folder / f"diabetes_{name}.csv.gz") for name in ("data_raw", "target"))
        return a, b
    except OSError:  # another version keeps them elsewhere
        a, b = importlib.import_module("sklearn.datasets").load_diabetes(return_X_y=True, scaled=False)
        return a, b


def lower_bound(a: Matrix, b: Matrix) -> float:
    """A number below the mean loss at every x; see the head of this file."""
    n, dim = a.shape

    def bound(groups: int) -> float:
        parts = ((a[j::groups], b[j::groups]) for j in range(groups))
        # Less what rounding can have added to the smallest sum of squares.
        least = [np.sum((y - x @ np.linalg.lstsq(x, y)[0]) ** 2) - 1e-12 * np.sum(y**2) for x, y in parts]
        q = np.maximum(least, 0)
        return float(np.sum(q / (1 + q)) / n)

    # A group of at most dim rows can be fitted exactly and adds nothing. All numbers of groups, if they are few.
    most = max(n // (dim + 1), 1)
    numbers = range(1, most + 1) if most <= ALL_GROUPS else sorted({*np.geomspace(1, most, 8).astype(int).tolist()})
    return max(map(bound, numbers)) * (1 - 1e-9)


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
