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
    """Blocks of samples at a point against the noise that is assumed of it: `beyond` of those `compared` contradict it.

    By the inequality of watch.py all samples lie in a ball of radius rho = (sigma0 + sigma1 ||g||)/(1 - sigma1 r)
    around grad F(x), which is within r rho of the mean g of the samples so far, up to a probability of ALARM for each
    block. So one is within (1 + r) rho of g, and two are within the diameter 2 rho of each other.
    """

    def __init__(self, noise: SampleRange) -> None:
        self.noise, self.beyond, self.compared, self.count = noise, 0, 0, 0
        self.total = self.first = np.zeros(())

    def __call__(self, rows: Array) -> None:
        self.first = self.first if self.count else rows[0]
        self.total, self.count = self.total + rows.sum(axis=0), self.count + len(rows)
        noise, r = self.noise, math.sqrt(2 * math.log(2 / ALARM) / self.count)
        mean, rho = self.total / self.count, math.inf
        if noise.sigma1 * r < 1:
            rho = (noise.sigma0 + noise.sigma1 * float(np.linalg.norm(mean))) / (1 - noise.sigma1 * r)
        diameter = 2 * min(noise.spread, rho)
        if diameter < math.inf:
            slack = ROUNDING * float(np.max(np.linalg.norm(rows, axis=1)))
            far = np.linalg.norm(rows - mean, axis=1) > min(diameter, (1 + r) * rho) + slack
            apart = np.linalg.norm(rows - self.first, axis=1) > diameter + 2 * slack
            self.beyond, self.compared = self.beyond + int(np.sum(far | apart)), self.compared + len(rows)
