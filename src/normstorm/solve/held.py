"""Samples of a certificate against the noise that it assumes, which its problem's author has stated."""

from __future__ import annotations

import math

import numpy as np

from normstorm.theory.sequential_test import SampleRange

from .fresh import Array

ALARM = 1e-9  # probability of a contradiction that is none
ROUNDING = 1e-6  # of a gradient's length: what rounding of gradients and secants may have changed
NO_CLAIM = SampleRange(math.inf, 0.0)


class Held:
    """Blocks of samples at a point against the noise that is assumed of it: `beyond` are those that contradict it.

    By the inequality of watch.py a sample is within (1 + r) (sigma0 + sigma1 ||g||)/(1 - sigma1 r) of the mean g of its
    block, up to a probability of ALARM for each block; and where all lie in a ball, within its diameter.
    """

    def __init__(self, noise: SampleRange) -> None:
        self.noise, self.beyond = noise, 0

    def __call__(self, rows: Array) -> None:
        noise, r = self.noise, math.sqrt(2 * math.log(2 / ALARM) / len(rows))
        mean = rows.mean(axis=0)
        allowed = 2 * noise.spread
        if noise.sigma1 * r < 1:
            rho = (noise.sigma0 + noise.sigma1 * float(np.linalg.norm(mean))) / (1 - noise.sigma1 * r)
            allowed = min(allowed, rho * (1 + r))
        if allowed < math.inf:
            lengths = float(np.max(np.linalg.norm(rows, axis=1)))
            self.beyond += int(np.sum(np.linalg.norm(rows - mean, axis=1) > allowed + ROUNDING * lengths))
