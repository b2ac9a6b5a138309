"""The catalogue of proven bounds: one function per certificate, each a number that was rounded up, or infinity.

`bound(name, constants, T=..., alpha=..., eta=...)` evaluates one for given parameters; numbers or arrays. The proofs
are in docs/theory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..constants import Constants
from .case import MEANINGS, Array, Bound, Case, finite_numbers, make_case
from .expectation import expectation, expectation_adaptive
from .lyapunov import adaptive, adaptive_convex, adaptive_tangent, lyapunov
from .paper import paper, paper_expectation
from .suprema import from_start, sure, union, ville, ville2

__all__ = ["CATALOGUE", "MEANINGS", "Bound", "Case", "Certificate", "bound", "make_case"]

HIGH_PROBABILITY = "high probability"
EXPECTATION = "expectation"


@dataclass(frozen=True)
class Certificate:
    """A proven bound. `free` names the parameter that the proof leaves open: lam, share, or none."""

    name: str
    kind: str
    function: Callable[..., Bound]
    free: str | None = None

    def __call__(self, case: Case, free: Array | None = None) -> Bound:
        with np.errstate(all="ignore"):
            return self.function(case) if self.free is None else self.function(case, free)

    def natural_free(self, case: Case) -> Array:
        """The scale on which the free parameter is searched."""
        if self.free != "lam":
            return np.ones(())
        a0, a1 = case.proxy
        level = a0 + a1 * case.constants.first_gradient
        noise = np.where(level > 0, level, 1.0)
        return np.sqrt(2 * case.log_inverse_delta / np.maximum(case.T - 1, 1)) / noise


CATALOGUE = {
    certificate.name: certificate
    for certificate in (
        Certificate("paper", HIGH_PROBABILITY, paper),
        Certificate("union", HIGH_PROBABILITY, union),
        Certificate("ville", HIGH_PROBABILITY, ville, "share"),
        Certificate("ville2", HIGH_PROBABILITY, ville2, "share"),
        Certificate("lyapunov", HIGH_PROBABILITY, lyapunov, "lam"),
        Certificate("adaptive", HIGH_PROBABILITY, adaptive, "lam"),
        Certificate("adaptive_tangent", HIGH_PROBABILITY, adaptive_tangent, "lam"),
        Certificate("adaptive_convex", HIGH_PROBABILITY, adaptive_convex, "lam"),
        Certificate("sure", HIGH_PROBABILITY, sure),
        Certificate("start", HIGH_PROBABILITY, from_start),
        Certificate("paper_expectation", EXPECTATION, paper_expectation),
        Certificate("expectation", EXPECTATION, expectation),
        Certificate("expectation_adaptive", EXPECTATION, expectation_adaptive),
        Certificate("start_expectation", EXPECTATION, from_start),
    )
}


def free_value(certificate: Certificate, case: Case, log_ratio: Array) -> Array:
    """The free parameter at exp(log_ratio) times its natural scale; a share below 1e-12 of delta is none at all."""
    value = certificate.natural_free(case) * np.exp(log_ratio)
    if certificate.free == "share":
        value = np.where(value < 1e-12, 0.0, np.minimum(value, 0.999))
    return value


def bound(
    name: str,
    constants: Constants,
    *,
    T: Any,
    alpha: Any,
    eta: Any,
    K: Any = 1,
    k: Any = 1,
    delta: float | None = None,
    free: Any = None,
) -> Bound:
    """The certificate `name` for these parameters; delta is the failure probability (high probability only).

    `free` fixes the proof's open parameter (lam or share); None takes the best one, which is legitimate because it
    is chosen before the run.
    """
    if not isinstance(name, str) or name not in CATALOGUE:
        raise ValueError(f"bound: certificate must be one of {', '.join(CATALOGUE)}; got {name!r}")
    certificate = CATALOGUE[name]
    if certificate.kind == HIGH_PROBABILITY and delta is None:
        raise ValueError(f"bound: delta must be a number in (0, 1) for certificate {name}; got delta=None")
    case = make_case(constants, T, alpha, eta, K, k, delta)
    if certificate.free is None:
        if free is not None:
            raise ValueError(f"bound: free must be None for certificate {name}; got free={free!r}")
        return certificate(case)
    if free is not None:
        value = finite_numbers("free", free)
        if not np.all(value > 0 if certificate.free == "lam" else (value >= 0) & (value < 1)):
            kind = "lam, a number > 0" if certificate.free == "lam" else "share, a number in [0, 1)"
            raise ValueError(f"bound: free must be {kind}, for certificate {name}; got free={free!r}")
        return certificate(case, value)
    return certificate(case, _best_free(certificate, case))


def _best_free(certificate: Certificate, case: Case) -> Array:
    """Three nested grids in the logarithm of the free parameter, for every element of the case."""
    shape = np.broadcast_shapes(*(np.shape(a) for a in (case.T, case.alpha, case.eta, case.K, case.k)))
    T, alpha, eta, K, k = (np.broadcast_to(a, shape)[..., None] for a in (case.T, case.alpha, case.eta, case.K, case.k))
    spread = Case(case.constants, T, alpha, eta, K, k, case.delta)
    centre, width = np.full((*shape, 1), -13.0 if certificate.free == "share" else -2.0), 15.0
    for _ in range(3):
        log_ratio = centre + np.linspace(-width, width, 121)
        values = certificate(spread, free_value(certificate, spread, log_ratio)).value
        centre = np.take_along_axis(log_ratio, np.argmin(values, axis=-1)[..., None], axis=-1)
        width /= 40
    return free_value(certificate, case, centre[..., 0])
