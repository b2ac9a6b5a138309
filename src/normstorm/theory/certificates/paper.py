"""The explicit bounds inside the paper's proofs, for every (alpha, eta) that meets the proofs' constraints.

Source: Liu, Jagabathula, Zhou, "Near-Optimal Non-Convex Stochastic Optimization under Generalized Smoothness",
appendix: Delta = 4M + 8 L0 N^2 in high probability, the line before step (a) in expectation (docs/theory/paper.md).
Departures: none.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from .case import TOTAL_RAISED, Bound, Case, Parts
from .suprema import union


def paper(case: Case) -> Bound:
    """2 (4M + 8 L0 N^2)/(eta T); the batch does not enter."""
    c = case.constants
    log_term = case.log_inverse_delta + np.log(4 * case.T)
    growth = np.sqrt(log_term / case.alpha)
    shrink = np.sqrt(log_term * case.alpha)
    eta, T = case.eta, case.T
    N = 16 * eta**2 * T * c.L1 * growth + 8 * eta * T * c.sigma1 * shrink
    parts = {
        "gap": np.asarray(8 * c.gap),
        "curvature": 8 * 16.5 * eta**2 * T * c.L0 * growth,
        "first gradient": 8 * 2 * eta * case.first_noise / case.alpha,
        "noise": 8 * 8 * eta * T * c.sigma0 * shrink,
        "growth": 16 * c.L0 * N**2,
    }
    # The paper's own eta sits on one of these; TOTAL_RAISED pays for the tolerance (docs/theory/rounding.md).
    tolerance = 1 + 1e-12
    admissible = (
        (32 * eta**2 * T * c.L1**2 * growth <= 0.25 * tolerance)
        & (16 * eta * T * c.sigma1 * c.L1 * shrink <= 0.25 * tolerance)
        & (eta * c.L1 <= 1)
    )
    # `union` bounds the same errors on the same event, and never by more.
    errors = union(case)
    return replace(_average(case, parts, admissible), error=errors.error, slope=errors.slope)


def paper_expectation(case: Case) -> Bound:
    """2 Delta_1/(eta T) + (1 + 4 sqrt 2/sqrt(k alpha)) eta L0 + 4 n1/(alpha sqrt(K) T) + 4 sqrt(alpha/K) sigma0."""
    c = case.mean
    eta, T, alpha = case.eta, case.T, case.alpha
    parts = {
        "gap": np.asarray(2 * c.gap),
        "curvature": (1 + 4 * np.sqrt(2 / (case.k * alpha))) * eta**2 * T * c.L0,
        "first gradient": 4 * eta * (c.sigma0 + c.sigma1 * c.first_gradient) / (alpha * np.sqrt(case.K)),
        "noise": 4 * eta * T * c.sigma0 * np.sqrt(alpha / case.K),
    }
    tolerance = 1 + 1e-12
    short_enough = 2 * (4 * np.sqrt(2 / case.k) + alpha) * c.L1 * eta <= alpha * tolerance
    admissible = short_enough & (64 * c.sigma1 * c.sigma1 <= case.K)
    return _average(case, parts, admissible)


def _average(case: Case, parts: Parts, admissible: np.ndarray) -> Bound:
    scale = 1 / (case.eta * case.T)
    total = sum(parts.values(), start=np.zeros(()))
    value = np.where(admissible, total * scale * (1 + TOTAL_RAISED), np.inf)
    return Bound(value, parts, scale, np.full(value.shape, 0.5))
