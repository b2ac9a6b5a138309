"""The paper's two prescriptions of (alpha, eta), exactly as stated; alpha = 1 - beta.

Source: Liu, Jagabathula, Zhou, "Near-Optimal Non-Convex Stochastic Optimization under Generalized
Smoothness", the two full theorems of its appendix. A term of a minimum whose denominator is 0 is infinite and
drops out; logarithms are natural (docs/theory/paper.md).
Departures: none.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from normstorm._shared.validate import OPEN_UNIT, number, whole

from .constants import Constants

MOST_SAMPLES = 10**18


class Parameters(NamedTuple):
    """The weight of the fresh gradient, alpha = 1 - beta, and the step size eta."""

    alpha: float
    eta: float


def paper_high_probability(constants: Constants, T: int, delta: float) -> Parameters:
    """The theorem in high probability (assumptions 1, 2, 3A, 4A): any K >= 1 and any k in [1, K]."""
    c, who = constants, "paper_high_probability"
    T, delta = whole(who, "T", T), number(who, "delta", delta, OPEN_UNIT)
    log_term = math.log(4 * T / delta)
    root_log = math.sqrt(log_term)
    slope = math.sqrt(c.gap * c.L0) + c.gap * c.L1
    noise = c.sigma0 + c.sigma1 * slope
    first = c.sigma0 + c.sigma1 * _first_gradient(c)
    if c.is_deterministic:
        alpha = 1.0
    else:
        alpha = min(
            1.0,
            max(
                (_ratio(first, noise) / (T * root_log)) ** (2 / 3),
                (_ratio(slope, noise) * _ratio(slope, noise) / (T * root_log)) ** (2 / 3),
            ),
        )
    root_alpha_log = math.sqrt(alpha * log_term)
    eta = min(
        math.sqrt(_ratio(c.gap * math.sqrt(alpha), c.L0 * T * root_log)),
        _ratio(math.sqrt(c.gap), c.sigma1 * T * math.sqrt(c.L0) * root_alpha_log),
        _ratio(1.0, 64 * c.sigma1 * c.L1 * T * root_alpha_log),
        _ratio(alpha**0.25, 8 * math.sqrt(2) * c.L1 * math.sqrt(T) * log_term**0.25),
    )
    return Parameters(alpha, eta)


def paper_expectation(constants: Constants, T: int, K: int, k: int) -> Parameters:
    """The theorem in expectation (assumptions 1, 2, 3B, 4B): K >= expectation_batch(sigma1), k in [1, K]."""
    c, who = constants.in_mean_square, "paper_expectation"
    T, K = whole(who, "T", T), whole(who, "K", K)
    k = whole(who, "k", k, 1, K, "K")
    needed = expectation_batch(c.sigma1)
    if needed > K:
        raise ValueError(
            f"paper_expectation: batch must be an integer >= max(ceil(64 sigma1^2), 1) = {needed}; got batch={K}"
        )
    if c.sigma0 == 0:
        alpha = 1.0
    else:
        first = c.sigma0 + c.sigma1 * _first_gradient(c) + c.gap * c.L1 * math.sqrt(K / k)
        alpha = min(
            1.0,
            max(
                (c.gap * c.L0 / c.sigma0 / c.sigma0 * (K / (math.sqrt(k) * T))) ** (2 / 3),
                (first / c.sigma0 / T) ** (2 / 3),
            ),
        )
    eta = min(
        math.sqrt(_ratio(c.gap * min(math.sqrt(k * alpha), 1.0), T * c.L0)),
        _ratio(alpha, 2 * (4 * math.sqrt(2 / k) + alpha) * c.L1),
    )
    return Parameters(alpha, eta)


def expectation_batch(sigma1: float) -> int:
    """The smallest batch K that the paper's theorem in expectation admits."""
    needed = 64 * sigma1 * sigma1
    if not 0 <= needed <= MOST_SAMPLES:
        most = math.sqrt(MOST_SAMPLES / 64)
        raise ValueError(
            f"expectation_batch: sigma1 must be a number in [0, {most:g}], as K >= 64 sigma1^2 samples are needed; "
            f"got sigma1={sigma1!r}"
        )
    return max(math.ceil(needed), 1)


def _first_gradient(c: Constants) -> float:
    """The paper's rules use ||grad F(x1)|| as given; only an unknown one is replaced by its proven bound."""
    return c.first_gradient if c.grad_norm is None else c.grad_norm


def _ratio(numerator: float, denominator: float) -> float:
    return math.inf if denominator == 0 else numerator / denominator
