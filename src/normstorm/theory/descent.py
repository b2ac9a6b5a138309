"""Gradient descent with exact gradients under (L0, L1): how many passes over a finite sum reach a target, for sure.

    x_{t+1} = x_t - grad F(x_t) / (L0 + L1 g_t),   g_t = ||grad F(x_t)||,
    F(x_{t+1}) <= F(x_t) - g_t^2 / (2 (L0 + L1 g_t))

so some t <= T has g_t <= eps as soon as T >= 2 gap (L0 + L1 eps)/eps^2. Every gradient is a pass over all rows, and is
its own certificate. Proof: docs/theory/race.md, exact descent.
"""

from __future__ import annotations

import math

from normstorm._shared.validate import POSITIVE, number

from .constants import Constants


def descent_passes(constants: Constants, target: float) -> int:
    """Exact gradients after which one of norm at most `target` has been seen. F is as smooth as 3B says, by Jensen."""
    target = number("descent_passes", "target", target, POSITIVE)
    smooth = constants.in_mean_square
    asked = 2 * constants.gap * (smooth.L0 + smooth.L1 * target) / target**2
    return max(1, math.ceil(asked * (1 + 1e-9)))
