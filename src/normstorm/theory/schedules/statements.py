"""Bounds of two other rules: steps that know no constant, and clipped steps.

Source: docs/theory/any-schedule.md, the sections on steps without constants and on clipped steps.
Departures: none; results are rounded up (docs/theory/rounding.md).
"""

from __future__ import annotations

import math

import numpy as np

from normstorm._shared.validate import OPEN_UNIT, POSITIVE, UP_TO_HALF, number, refuse, whole

from ..certificates import CATALOGUE
from ..certificates.case import DESCENT_LOWERED, TOTAL_RAISED, Array, Case, at_most_one, make_case, smallest_fixed_point
from ..certificates.lyapunov import linear_error
from ..constants import Constants
from ..plan import round_up


def agnostic_coefficients(*, eta: float, alpha: float, T: int, delta: float) -> dict[str, float]:
    """What gap, L0 and sigma0 are multiplied by in the bound of `agnostic_storm` after T steps.

    eta_t = eta t^(-2/3), alpha_{t+1} = alpha t^(-2/3). With L1 = sigma1 = 0 and with probability at least 1 - delta,
    for all T at once, the average of ||grad F(x_t)|| with weights t^(-2/3) is at most the sum of the products.
    """
    who = "agnostic_coefficients"
    eta, alpha = number(who, "eta", eta, POSITIVE), number(who, "alpha", alpha, UP_TO_HALF)
    T, delta = whole(who, "T", T, 1, 10**18), number(who, "delta", delta, OPEN_UNIT)
    w, root, ell = eta / alpha, math.sqrt(alpha), math.sqrt(-math.log(delta))
    standing = 2.46 * w * root + 1.64 * eta * root * (1 + math.log(T))
    per = 1 / (3 * eta * math.expm1(math.log1p(T) / 3)) * (1 + TOTAL_RAISED)
    return {
        "gap": per,
        "L0": (1.81 * eta * eta + w * standing + 10.74 * ell * eta * w) * per,
        "sigma0": (2 * w + standing + 5.37 * ell * eta) * per,
    }


def agnostic_bound(constants: Constants, *, eta: float, alpha: float, T: int, delta: float) -> float:
    """The bound of `agnostic_storm` for a problem with these constants, of which the algorithm knows none."""
    if not constants.is_plain:
        refuse("agnostic_bound", "constants", "such that L1 = sigma1 = 0", constants)
    found = agnostic_coefficients(eta=eta, alpha=alpha, T=T, delta=delta)
    total = math.fsum(found[name] * getattr(constants, name) for name in found)
    return total * (1 + TOTAL_RAISED)


def agnostic_guarantee(*, eta: float, alpha: float, T: int, delta: float) -> str:
    """The guarantee in one sentence, with the constants that it would need left as letters."""
    found = agnostic_coefficients(eta=eta, alpha=alpha, T=T, delta=delta)
    terms = " + ".join(f"{round_up(value)} {name}" for name, value in found.items())
    return (
        f"With probability at least {1 - delta!r}, the average of ||grad F(x_t)|| over t = 1..{T} with weights "
        f"t^(-2/3) is at most {terms}, if assumptions 1, 2, 3A and 4A hold with L1 = sigma1 = 0; the last iterate is "
        "promised nothing."
    )


def clipped_bound(
    constants: Constants,
    *,
    T: int,
    alpha: float,
    eta: float,
    threshold: float,
    K: int = 1,
    k: int | None = None,
    delta: float,
    lam: float | None = None,
) -> float:
    """Of the mean of ||grad F(x_t)|| over t <= T for `clipped_storm`, or infinity; `lam` None takes the best one.

    The errors are bounded as in the certificate `adaptive`, of which `lam` is the free parameter.
    """
    who = "clipped_bound"
    T, tau = whole(who, "T", T), number(who, "threshold", threshold, POSITIVE)
    case = make_case(constants, T, alpha, eta, K, K if k is None else k, delta)
    if lam is not None:
        return float(_clipped(case, np.asarray(number(who, "lam", lam, POSITIVE)), tau))
    natural, centre, width = CATALOGUE["adaptive"].natural_free(case), 0.0, 12.0
    for _ in range(3):
        grid = centre + np.linspace(-width, width, 97)
        centre, width = float(grid[int(np.argmin(_clipped(case, natural * np.exp(grid), tau)))]), width / 30
    return float(_clipped(case, natural * math.exp(centre), tau))


def _clipped(case: Case, lam: Array, tau: float) -> Array:
    c, eta, T = case.constants, case.eta, case.T
    with np.errstate(all="ignore"):
        error, Q0, Q1 = linear_error(case, lam)
        P = sum(error.values(), start=np.zeros(()))
        # Psi(Delta) = base + slope G(Delta) <= Delta is checked at the Delta that is used.
        base = c.gap + eta * eta * T * (c.L0 / 2) + 3 * eta * (P + Q0 * T * (tau / 4))
        slope = 3 * eta * Q1 * T * (tau / 4)
        Delta = smallest_fixed_point(c, base, slope) * np.where(slope > 0, 1 + 1e-6, 1 + 1e-10)
        G = case.gradient_bound(Delta)
        psi = (base + slope * G) * (1 + TOTAL_RAISED)
        kept = 1 - eta * (c.L1 / 2) - 3 * (Q0 + Q1 * G) - DESCENT_LOWERED
        proven = (psi <= Delta) & (kept > 0) & at_most_one(eta, c.L1)
        mean = psi / (np.where(proven, kept, 1.0) * eta * T) * (1 + TOTAL_RAISED)
        value = np.where(mean >= tau / 4, mean + tau / 4, np.sqrt(tau * mean)) * (1 + TOTAL_RAISED)
        return np.where(proven & np.isfinite(value), value, np.inf)
