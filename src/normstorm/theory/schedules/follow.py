"""The certificate for any schedule: it follows a run step by step and has a bound at every t.

    certificate = ScheduleCertificate(constants, delta=0.01, lam=[1, 10], w=0.3)
    certificate.move(eta)                    # step 1 was taken, with this length
    certificate.choose(alpha, K, k, w)       # for step 2, before its samples are drawn
    certificate.move(eta)                    # step 2 was taken
    certificate.smallest                     # min over s <= 2 of ||grad F(x_s)|| is at most this

`alpha`, `K`, `k` and `w` of a step must be known before its samples, `eta` may depend on them. `lam`, `delta`, the
shares, the first w, the first K and p1 are fixed before the run. Numbers or arrays: an array is many runs at once.

The budget eta_t + beta_{t+1} w_{t+1} <= w_t is checked at every step; a constant w meets it if eta_t <= w alpha_{t+1}.

Source: docs/theory/any-schedule.md, the theorem for any schedule.
Departures: results are moved to the safe side (docs/theory/rounding.md, sums along a run).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from normstorm._shared.validate import OPEN_UNIT, finite_array, number, refuse

from ..certificates.case import TOTAL_RAISED, at_most_one
from ..constants import Constants

Array = npt.NDArray[np.float64]
PER_TERM = 1e-15  # what one more term of a sum may lose, relative to the sum
TOLERANCE = 1e-12  # of the budget, in relative terms; TOTAL_RAISED pays for it
WHO = "ScheduleCertificate"
WHOLE = (">= 1, whole", lambda a: (a >= 1) & (a == np.floor(a)))


class ScheduleCertificate:
    """Bounds for instances lam_1, ..., lam_J, instance j with the failure probability delta shares_j.

    weights     sum over s <= t of (A_s)_+, one an instance
    average     of the average of ||grad F(x_s)||, s <= t, with the weights (A_s)_+ of the same instance
    smallest    of min over s <= t of ||grad F(x_s)||: the least of these
    gap         of F(x_{t+1}) - F*
    """

    def __init__(
        self, constants: Constants, *, delta: float, lam: Any, w: Any, K: Any = 1, shares: Any = None, p1: Any = 0.0
    ) -> None:
        if not isinstance(constants, Constants):
            refuse(WHO, "constants", "a normstorm.Constants", constants)
        self.constants = constants
        K = _numbers("K", K, *WHOLE)
        self.lam = np.atleast_1d(_numbers("lam", lam, "> 0", lambda a: a > 0))
        J = len(self.lam)
        given = np.full(J, 1 / J) if shares is None else _numbers("shares", shares, "> 0", lambda a: a > 0)
        if given.shape != (J,) or np.sum(given) > 1 + TOLERANCE:
            refuse(WHO, "shares", f"{J} numbers > 0 whose sum is at most 1", shares)
        self.log_term = -np.log(number(WHO, "delta", delta, OPEN_UNIT)) - np.log(given)
        self.w = _numbers("w", w, "> 0", lambda a: a > 0)
        self.t = 0
        self.P0, self.P1 = _numbers("p1", p1, ">= 0", lambda a: a >= 0), np.zeros(())
        self.noise = (0.0, 0.0, 0.0, 0.0) if constants.is_deterministic else _pairs(constants)
        # Non-negative parts of Delta*_t, each an instance wide.
        self.parts = {
            "gap": np.full(1, constants.gap),
            "curvature": np.zeros(1),
            "first gradient": 2 * first_error(constants, self.w, self.P0, self.lam, K),
            "confidence": np.zeros(J) if constants.is_deterministic else 2 * self.log_term / self.lam,
            "noise": 2 * _column(self.P0),
            "drift": np.zeros(1),
            "growth": np.zeros(J),
        }
        self.length = np.zeros(())
        self.G = np.asarray(constants.first_gradient)
        self.growing = np.zeros(J)
        self.before = np.zeros(J)
        self.eta: Array | None = None

    def move(self, eta: Any) -> None:
        """Step t was taken with eta_t >= 0, eta_t L1 <= 1, which may depend on its samples."""
        if self.eta is not None:
            raise ValueError(f"{WHO}: choose must be called between two moves; got move after step {self.t}")
        c = self.constants
        eta = _numbers("eta", eta, ">= 0 with eta L1 <= 1 and eta <= w", lambda a: (a >= 0) & at_most_one(a, c.L1))
        if not np.all(eta <= self.w * (1 + TOLERANCE)):
            refuse(WHO, "eta", "at most w", eta, f", w={self.w}")
        self.t += 1
        self.eta = eta
        self.parts["curvature"] = self.parts["curvature"] + _column(eta * eta * (c.L0 / 2))
        root = np.sqrt(np.maximum((1 - eta / self.w) * (1 + eta / self.w), 0.0))
        self.kept = _column(eta * (1 - eta * (c.L1 / 2))) - 2 * self.growing
        last = self._lowered(self.kept, self.P1 * np.maximum(0.5 - root, 0.0), np.zeros(()))
        cost = _product(np.maximum(-last, 0.0), _column(self.G))
        gross = sum(self.parts.values()) + cost
        margin = 1 + TOTAL_RAISED + PER_TERM * self.t
        self.total = np.maximum(gross * margin - 2 * _column(self.P0 * root) * (1 - TOTAL_RAISED), 0.0)
        self.weights = self.before + np.maximum(last, 0.0)
        with np.errstate(divide="ignore", invalid="ignore"):
            average = self.total / (self.weights * (1 - PER_TERM * self.t)) * (1 + TOTAL_RAISED)
        self.average = np.where(self.weights > 0, average, np.inf)
        self.smallest = np.min(self.average, axis=-1)
        self.gap = np.min(self.total, axis=-1)

    def choose(self, alpha: Any, K: Any = 1, k: Any = None, w: Any = None) -> None:
        """Weight, batches and w of step t + 1, from what is known after step t; k = K and the same w if not given."""
        if self.eta is None:
            raise ValueError(f"{WHO}: move must be called before choose; got choose before step {self.t + 1}")
        c, eta = self.constants, self.eta
        alpha = _numbers("alpha", alpha, "in (0, 1]", lambda a: (a > 0) & (a <= 1))
        K = _numbers("K", K, *WHOLE)
        k = K if k is None else _numbers("k", k, "in [1, K], whole", lambda a: WHOLE[1](a) & (a <= K))
        new = self.w if w is None else _numbers("w", w, "> 0", lambda a: a > 0)
        spent = alpha * new + (self.w - new)
        if not np.all((spent > 0) & (eta <= spent * (1 + TOLERANCE))):
            refuse(WHO, "alpha", "so large that eta + (1 - alpha) w <= the w before", alpha, f", eta={eta}")
        forgotten = np.minimum(spent / self.w, 1.0)  # 1 - beta'
        kappa = np.sqrt(forgotten / (2 - forgotten))
        q = np.sqrt((1 - forgotten) * (3 - forgotten) / (forgotten * (2 - forgotten)))
        L0, L1, sigma0, sigma1 = self.noise
        B0, B1 = (_norm(alpha, K, k, eta * L, s) for L, s in ((L0, sigma0), (L1, sigma1)))
        a0, a1 = (_norm(alpha, K, k, 2 * eta * L, s) for L, s in ((L0, sigma0), (L1, sigma1)))
        P0, P1 = q * new * B0, q * new * B1
        # Step t is closed: what its gradient pays is now known.
        change = np.abs(P1 - self.P1) if self.t > 1 else np.zeros(())
        A = self._lowered(self.kept, P1 * eta * (c.L1 / 2) + change / 2, P1 + self.P1)
        self.before = self.before + np.maximum(A, 0.0)
        self._add("growth", _product(np.maximum(-A, 0.0), _column(self.G)))
        if self.t == 1:
            self._add("drift", _column(P1 * c.first_gradient))
        # What step t + 1 adds whatever its gradient, and what per unit of it.
        self._add("noise", 2 * _column(kappa * new * B0 + np.maximum(P0 - self.P0, 0.0)))
        self._add("drift", _column(P1 * eta * c.L0))
        self._add("confidence", self.lam * _column((new * a0) ** 2))
        self.length = self.length + eta
        sure = sure_gradient(c, self.length * (1 + PER_TERM * self.t))
        self.G = np.minimum(largest_gradient(c, self.gap), sure)
        square = _product(_column((new * a1) ** 2), _column(self.G))
        self.growing = _column(kappa * new * B1) + self.lam / 2 * (2 * _column(new * new * a0 * a1) + square)
        self.P0, self.P1, self.w, self.eta = P0, P1, new, None

    def _add(self, name: str, amount: Array) -> None:
        self.parts[name] = self.parts[name] + amount

    def _lowered(self, kept: Array, paid: Array, cancelled: Array) -> Array:
        """kept - 2 paid, lowered by what rounding may have added."""
        assert self.eta is not None
        size = _column(self.eta + 2 * paid) + 2 * self.growing
        return np.asarray(kept - 2 * _column(paid) - TOTAL_RAISED * size - 10 * PER_TERM * _column(cancelled))


def first_error(constants: Constants, w: Array, p1: Array, lam: Array, K: Array) -> Array:
    """J - p1, where J bounds Phi_1 in the smallest of three forms: surely, by bounded differences, by its range."""
    n = w * (constants.sigma0 + constants.sigma1 * constants.first_gradient)
    square, p = _column(n * n), _column(p1)
    shared = square / _column(K)
    surely, in_mean = _above(square, p), _above(shared, p)
    return np.asarray(np.minimum(surely, in_mean + lam / 2 * np.minimum(shared, surely * surely / 4)))


def largest_gradient(constants: Constants, gap: Array) -> Array:
    """||grad F(x)|| where F(x) - F* is at most this (docs/theory/setting.md)."""
    gap = np.maximum(gap, 0.0)
    linear = constants.L1 * gap
    return np.asarray(linear + np.sqrt(linear * linear + 2 * constants.L0 * gap))


def sure_gradient(constants: Constants, length: Array) -> Array:
    """||grad F|| at the end of a path of this length whose steps are at most 1/L1."""
    c, g = constants, constants.first_gradient
    if c.L1 == 0:
        return np.asarray(g + c.L0 * length) * (1 + TOTAL_RAISED)
    with np.errstate(over="ignore"):
        return np.asarray(g + (g + c.L0 / c.L1) * np.expm1(c.L1 * length)) * (1 + TOTAL_RAISED)


def _pairs(c: Constants) -> tuple[float, float, float, float]:
    return c.L0, c.L1, c.sigma0, c.sigma1


def _norm(alpha: Array, K: Array, k: Array, z: Array, n: float) -> Array:
    bz, an = (1 - alpha) * z, alpha * n
    return np.asarray(np.sqrt(bz * bz / k + (2 * bz + an) * an / K))


def _above(square: Array, p: Array) -> Array:
    """sqrt(square + p^2) - p without cancellation."""
    bottom = np.sqrt(square + p * p) + p
    return np.where(bottom > 0, square / np.where(bottom > 0, bottom, 1.0), 0.0)


def _product(a: Array, G: Array) -> Array:
    """a G, and 0 where a = 0 even if G is infinite."""
    return np.where(a > 0, a * np.where(a > 0, G, 1.0), 0.0)


def _column(a: Array) -> Array:
    """A number a run beside the instances, which are the last axis."""
    return np.asarray(a)[..., None]


def _numbers(name: str, value: Any, words: str, holds: Any) -> Array:
    array = finite_array(value)
    if array is None or not np.all(holds(array)):
        refuse(WHO, name, f"numbers {words}", value)
    return array
