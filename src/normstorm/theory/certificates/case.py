"""What every certificate shares: the case it is asked for, the bound it returns, and how a proof is closed.

All arrays broadcast against each other, so that one call evaluates a whole grid of parameters; one number is the
array of shape (). Everything is written in alpha = 1 - beta, never through 1 - beta or 1 - beta^2 as differences.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from normstorm._shared.validate import OPEN_UNIT, finite_array, number, refuse

from ..constants import Constants

Array = npt.NDArray[np.float64]
Parts = dict[str, Array]

# How far results are moved in the safe direction (docs/theory/rounding.md).
TOTAL_RAISED = 1e-11
DESCENT_LOWERED = 1e-13
# Squares of smaller or larger constants would leave the range of floating point.
SMALLEST = 1e-100

MEANINGS = {
    "gap": "distance to the minimum, F(x1) - F*, spread over the run",
    "curvature": "what a step of length eta can lose to curvature (L0)",
    "first gradient": "noise of the first gradient, forgotten at rate alpha",
    "noise": "standing error of the estimator: fresh noise and gradient differences",
    "drift": "changes of the noise level along the path",
    "confidence": "price of holding with the stated probability",
    "growth": "noise and curvature that grow with the gradient",
    "start": "gradient norm of the first point",
    "travel": "what the whole path can add to it",
}


@dataclass(frozen=True)
class Case:
    """Constants, parameters and failure probability for which a bound is asked."""

    constants: Constants
    T: Array
    alpha: Array
    eta: Array
    K: Array
    k: Array
    delta: float | None = None

    @property
    def mean(self) -> Constants:
        """What holds in mean square, and of F: sizes of errors and descent use these, ranges `constants`."""
        return self.constants.in_mean_square

    @cached_property
    def beta(self) -> Array:
        return 1 - self.alpha

    @cached_property
    def spread(self) -> Array:
        """sqrt(1 - beta^2)."""
        return np.sqrt(self.alpha * (1 + self.beta))

    @cached_property
    def log_inverse_delta(self) -> float:
        assert self.delta is not None
        return float(-np.log(self.delta))

    def forgotten(self, steps: Array) -> Array:
        """1 - beta^steps."""
        exponent = np.where(steps == 0, 0.0, steps * np.log1p(-self.alpha))
        return -np.expm1(exponent)

    def norm(self, z: Array | float, n: Array | float) -> Array:
        """The seminorm sqrt(v(z, n)), v(z, n) = beta^2 z^2/k + 2 beta alpha z n/K + alpha^2 n^2/K."""
        bz, an = self.beta * z, self.alpha * n
        return np.sqrt(bz * bz / self.k + (2 * bz + an) * an / self.K)

    @cached_property
    def radius(self) -> tuple[Array, Array]:
        """(A0, A1): ||D_t|| <= A0 + A1 g_t surely."""
        c = self.constants
        return (
            2 * self.beta * self.eta * c.L0 + self.alpha * c.sigma0,
            2 * self.beta * self.eta * c.L1 + self.alpha * c.sigma1,
        )

    @cached_property
    def deviation(self) -> tuple[Array, Array]:
        """(B0, B1): the conditional L2 norm of D_t is at most B0 + B1 g_t."""
        c = self.mean
        return self.norm(self.eta * c.L0, c.sigma0), self.norm(self.eta * c.L1, c.sigma1)

    @cached_property
    def proxy(self) -> tuple[Array, Array]:
        """(a0, a1): the root of the sum of squared radii of D_t's pieces is at most a0 + a1 g_t."""
        c = self.constants
        return self.norm(2 * self.eta * c.L0, c.sigma0), self.norm(2 * self.eta * c.L1, c.sigma1)

    @property
    def first_noise(self) -> float:
        """n1 >= ||grad f(x1) - grad F(x1)|| surely."""
        return self.constants.sigma0 + self.constants.sigma1 * self.constants.first_gradient

    def first_square(self, g: float) -> Array:
        """The mean square of the first gradient's error at gradient norm g: by 4B if that is given too, else by 4A."""
        c = self.mean
        slope = c.sigma1 * g
        noise = c.sigma0 + slope if self.constants.mean_square is None else np.hypot(c.sigma0, slope)
        return np.asarray(noise * noise / self.K)

    def gradient_bound(self, Delta: Array) -> Array:
        c = self.mean
        linear = c.L1 * Delta
        return linear + np.sqrt(linear * linear + 2 * c.L0 * Delta)

    def descent_parts(self) -> Parts:
        """The two terms that every certificate has: Delta_1 and eta^2 T L0/2."""
        c = self.mean
        return {
            "gap": np.asarray(c.gap, dtype=float),
            "curvature": self.eta * self.eta * self.T * (c.L0 / 2),
        }


@dataclass(frozen=True)
class Bound:
    """A proven bound of the mean of ||grad F(x_t)|| over t <= T, or infinity.

    value = (sum of parts) x scale, rounded up. `descent` is the A of the proofs: the share of each step's descent
    that is left after the noise and curvature that grow with the gradient are paid for. `error` and `slope` are P and
    Q of the bound's event: sum ||eps_t|| <= P + Q sum g_t on it (docs/theory/observed.md); None where a proof has none.
    """

    value: Array
    parts: Parts
    scale: Array
    descent: Array
    error: Array | None = None
    slope: Array | None = None

    def __float__(self) -> float:
        return float(self.value)

    def terms(self) -> dict[str, float]:
        """Each part's share of the value (one number only)."""
        return {name: float(part * self.scale) for name, part in self.parts.items()}


def make_case(
    constants: Constants,
    T: Any,
    alpha: Any,
    eta: Any,
    K: Any = 1,
    k: Any = 1,
    delta: float | None = None,
) -> Case:
    given = {"T": T, "alpha": alpha, "eta": eta, "K": K, "k": k}
    arrays = {name: finite_numbers(name, value) for name, value in given.items()}
    T, alpha, eta, K, k = arrays.values()
    if not isinstance(constants, Constants):
        refuse("bound", "constants", "a normstorm.Constants", constants)
    try:
        np.broadcast_shapes(*(a.shape for a in arrays.values()))
    except ValueError:
        shapes = ", ".join(f"{name}: {array.shape}" for name, array in arrays.items())
        raise ValueError(f"bound: T, alpha, eta, K, k must have shapes that fit together; got {shapes}") from None
    for name, allowed, ok in (
        ("T", "an integer >= 1", (T >= 1) & (np.floor(T) == T)),
        ("alpha", "a number in (0, 1]", (alpha > 0) & (alpha <= 1)),
        ("eta", "a number > 0", eta > 0),
        ("K", "an integer >= 1", (K >= 1) & (np.floor(K) == K)),
        ("k", "an integer in [1, K]", (k >= 1) & (k <= K) & (k == np.floor(k))),
    ):
        if not np.all(ok):
            raise ValueError(f"bound: {name} must be {allowed}; got {name}={given[name]}")
    if delta is not None:
        delta = number("bound", "delta", delta, OPEN_UNIT)
    for name in ("L0", "L1", "sigma0", "sigma1", "gap"):
        value = getattr(constants, name)
        if value != 0 and not SMALLEST <= value <= 1 / SMALLEST:
            raise ValueError(
                f"bound: {name} must be 0 or in [{SMALLEST:g}, {1 / SMALLEST:g}], in other units if need be; "
                f"got {name}={value}"
            )
    return Case(constants, T, alpha, eta, K, k, delta)


def finite_numbers(name: str, value: Any) -> Array:
    """An argument of `bound` as an array of finite numbers."""
    array = finite_array(value)
    if array is None:
        refuse("bound", name, "a finite number, or an array of them", value)
    return array


def close_linear(case: Case, error: Parts, Q0: Array, Q1: Array | float = 0.0) -> Bound:
    """From sum ||eps_t|| <= P + (Q0 + Q1 G) sum g_t, P the sum of `error`, to a bound of the mean of g_t.

    Delta = Delta_1 + eta^2 T L0/2 + 2 eta P bounds every F(x_t) - F*, so G = gradient_bound(Delta); the mean is at
    most Delta/(A eta T) with A = 1 - eta L1/2 - 2 (Q0 + Q1 G) (docs/theory/setting.md, closing lemmas).
    """
    parts = case.descent_parts()
    for name, part in error.items():
        parts[name] = 2 * case.eta * part
    Delta = _total(parts) * (1 + TOTAL_RAISED)
    Q = Q0 + Q1 * case.gradient_bound(Delta)
    return _divide(case, parts, Delta, 1 - case.eta * (case.mean.L1 / 2) - 2 * Q, _total(error), Q)


def close_sup(case: Case, error: Parts, factors: Callable[[Array], Parts], constant: bool) -> Bound:
    """From sum ||eps_t|| <= P + (sum of factors(G)) (A0 + A1 G) on {g_t <= G} to a bound of the mean of g_t.

    Any Delta >= Delta_1 with Psi(Delta) = Delta_1 + eta^2 T L0/2 + 2 eta S(gradient_bound(Delta)) <= Delta is proof.
    For frozen factors the smallest such Delta is a root of a quadratic. Factors that depend on G (`constant` false)
    do so weakly: refreeze, accelerate, and check the inequality at the Delta that is used; Psi(Delta) itself is then
    the bound of eta a sum g_t.
    """
    A0, A1 = case.radius
    fixed = case.descent_parts()
    for name, part in error.items():
        fixed[name] = 2 * case.eta * part
    base = _total(fixed)

    def refrozen(Delta: Array) -> Array:
        factor = 2 * case.eta * _total(factors(case.gradient_bound(Delta)))
        return smallest_fixed_point(case.mean, base + factor * A0, factor * A1)

    Delta = np.broadcast_to(base, np.broadcast_shapes(base.shape, A0.shape))
    trial = proven = noise = np.full(Delta.shape, np.inf)
    parts = fixed
    for slack in (TOTAL_RAISED, 1e-6) if constant else (1e-6, 1e-5, 1e-3):
        once = refrozen(Delta)
        if not constant:
            if not np.all(np.isfinite(once)):
                once = np.where(np.isfinite(once), once, refrozen(1e9 * base))
            once = refrozen(_accelerated(Delta, once, refrozen(once)))
        Delta = once
        trial = np.where(np.isfinite(proven), trial, Delta * (1 + slack))
        G = case.gradient_bound(trial)
        used = factors(G)
        radius = 2 * case.eta * (A0 + A1 * G)
        noise = _total(used) * radius
        psi = base + noise
        proven = np.where(psi * (1 + DESCENT_LOWERED) <= trial, psi, np.inf)
        parts = fixed | {name: factor * radius for name, factor in used.items()}
        if np.all(np.isfinite(proven) | ~np.isfinite(Delta)):
            break
    total = _total(error) + noise / (2 * case.eta)
    return _divide(case, parts, proven, 1 - case.eta * (case.mean.L1 / 2), total, np.zeros(()))


def _accelerated(start: Array, once: Array, twice: Array) -> Array:
    """Aitken's extrapolation of a sequence; the last member where that is not a sensible number."""
    bend = (twice - once) - (once - start)
    guess = twice - (twice - once) ** 2 / np.where(bend == 0, 1.0, bend)
    sensible = np.isfinite(guess) & (guess > 0.1 * twice) & (guess < 10 * twice) & (bend != 0)
    return np.where(sensible, guess, twice)


def smallest_fixed_point(c: Constants, M: Array, N: Array) -> Array:
    """The smallest D with M + N (L1 D + sqrt(L1^2 D^2 + 2 L0 D)) = D; infinite if 2 N L1 >= 1."""
    left = 1 - 2 * N * c.L1
    middle = M * (1 - N * c.L1) + N * N * c.L0
    root = N * np.sqrt((M * c.L1) ** 2 + 2 * M * (1 - N * c.L1) * c.L0 + (N * c.L0) ** 2)
    return np.where(left > 0, (middle + root) / np.where(left > 0, left, 1.0), np.inf)


def deterministic(case: Case) -> Bound:
    """Without noise every estimate is the gradient: the descent lemma alone (docs/theory/setting.md, edge cases)."""
    return close_linear(case, {}, np.zeros(np.shape(case.alpha)))


def ratio(numerator: Array, denominator: Array) -> Array:
    """numerator / denominator, with 0/0 = 0 (both vanish together wherever this is used)."""
    return np.where(denominator > 0, numerator / np.where(denominator > 0, denominator, 1.0), 0.0)


def _total(parts: Parts) -> Array:
    total: Array = sum(parts.values(), start=np.zeros(()))
    return total


def _divide(case: Case, parts: Parts, Delta: Array, descent: Array, error: Array, slope: Array) -> Bound:
    descent = descent - DESCENT_LOWERED
    proven = (descent > 0) & at_most_one(case.eta, case.constants.L1) & np.isfinite(Delta)
    scale = 1 / (np.where(proven, descent, 1.0) * case.eta * case.T)
    value = np.where(proven, Delta * scale * (1 + TOTAL_RAISED), np.inf)
    error = np.where(proven, error * (1 + TOTAL_RAISED), np.inf)
    return Bound(np.where(np.isnan(value), np.inf, value), parts, scale, descent, error, slope)


def at_most_one(eta: Array, L1: float) -> npt.NDArray[np.bool_]:
    """eta L1 <= 1 exactly: where the rounded product is 1, the sign of what rounding cut off decides (Veltkamp)."""
    product = eta * L1
    high, L1_high = (x * 134217729.0 - (x * 134217729.0 - x) for x in (eta, np.asarray(L1)))
    low, L1_low = eta - high, L1 - L1_high
    cut = ((high * L1_high - product) + high * L1_low + low * L1_high) + low * L1_low
    return np.asarray((product < 1) | ((product == 1) & (cut <= 0)))
