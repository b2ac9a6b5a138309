"""A test of a point that may be watched: ||grad F(x)|| is bounded after every block of fresh samples, for all at once.

With G = ||grad F(x)||, weights lam_i, centres c_i and ranges r_i >= ||g_i - c_i|| that are known before sample i, and

    psi(x) = -log(1 - x) - x,   a = sum lam_i g_i,   Lam = sum lam_i,
    M = sum psi(lam_i r_i)/r_i^2 (g_i - c_i)(g_i - c_i)'

`top`    G Lam <= max over unit u of <a, u> + u'Mu, plus log(1/delta)
`pairs`  A G^2 - B G <= U, from the scalar products <g_i, a_{i-1}> of every sample with those before it; it avoids the
         length of the noise in ||a||, which pays in large dimensions

The first block is a pilot: it bounds G once (with a sixteenth of delta), decides between `top` alone and both, and
gives the moments from which the first weights are chosen. Statements and proofs: docs/theory/fresh-samples.md.

Source: the inequality of Fan, Grama and Liu, "Exponential inequalities for martingales with applications" (2015), in
the form of a betting score; Ville's inequality. Departures: one unknown direction in place of many; centres and ranges
that shrink with the bound itself.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from .fresh_samples import Summary, upper_bound
from .scatter import Array, Scatter

Method = Literal["top", "pairs"]
PILOT, PILOT_SHARE = 256, 1 / 16  # samples, and part of delta
MARGIN = 1e-9  # by which every bound is raised, relatively
LOST = 1e-11  # of the sum of |terms|: more than a sum of up to 10^8 terms in blocks can lose
PAYS = 0.9  # pairs are used if they are expected to need less than this part of the samples
CUT = 0.8
PROOFS: dict[Method, int] = {"top": 1, "pairs": 2}  # how many share delta


def psi(x: Array | float) -> Array:
    """-log(1 - x) - x, at least."""
    x = np.asarray(x, float)
    series = x * x * (0.5 + x * (1 / 3 + x * (1 / 4 + x * (1 / 5 + x * 0.2))))  # for x <= 0.1 the rest is smaller
    return np.where(x < 1e-2, series, -np.log1p(-np.minimum(x, 0.99)) - x) * (1 + 1e-12)


# What forecasts are made of: numbers of samples, lam r, and mu rho at the last sample with its mean over all samples.
COUNTS = np.geomspace(32, 1e10, 200)[:, None]
STEPS = np.geomspace(1e-3, CUT, 40)
PSI = psi(STEPS)
LAST = 4 * STEPS
TIMES = np.sqrt((np.arange(24) + 0.5) / 24)
SHAPE = np.minimum(LAST[:, None] * TIMES, CUT)
PSI_SHAPE, AREA = psi(SHAPE).mean(axis=1), (SHAPE * TIMES).mean(axis=1)


@dataclass(frozen=True)
class SampleRange:
    """How far a sample gradient at x can be from grad F(x): sigma0 + sigma1 G; all lie in a ball of radius spread."""

    sigma0: float
    sigma1: float
    spread: float = math.inf

    def radius(self, G: float) -> float:
        return min(self.sigma0 + self.sigma1 * G, self.spread)


@dataclass(frozen=True)
class Moments:
    """What was seen so far: the mean; trace and top eigenvalue of the covariance C, and the trace of C^2."""

    mean: Array
    trace: float
    top: float
    square: float

    def drift(self, samples: int) -> float:
        """What of the length of the mean cannot be noise."""
        return math.sqrt(max(float(self.mean @ self.mean) - 2 * self.trace / samples, 0.0))


def pilot_size(noise: SampleRange, delta: float) -> int:
    """Enough samples for a first bound of G where the noise may grow with G."""
    if noise.spread < math.inf or noise.sigma1 == 0:
        return PILOT
    return max(PILOT, math.ceil(8 * math.log(2 / (PILOT_SHARE * delta)) * noise.sigma1**2))


class PointTest:
    """`pilot`, then `add` block after block; `bound` holds with probability 1 - delta for all blocks at once.

    method   top, or pairs beside it; None: the pilot decides by the expected number of samples
    """

    def __init__(
        self, dimension: int, target: float, delta: float, noise: SampleRange, method: Method | None = None
    ) -> None:
        self.target, self.delta, self.noise, self.method = target, delta, noise, method
        self.bound = math.inf
        self.samples = 0
        self._level = 0.0
        self._scatter = Scatter(dimension)
        self._a = np.zeros(dimension)
        self._Lam = self._lost = self._weight = 0.0
        self._sum, self._squares = np.zeros(dimension), 0.0
        self._A = self._B = self._U = self._pending = 0.0
        self._counted = 0
        self._seen: Moments | None = None

    def pilot(self, rows: Array) -> None:
        """The first block. It has no part in the sums; what follows from it is known before the second one."""
        n = len(rows)
        mean = rows.mean(axis=0)
        spread = Scatter(rows.shape[1])
        spread.add(rows - mean, 1 / (n - 1))
        top = spread.top()
        length = float(np.linalg.norm(mean)) + LOST * float(np.max(np.linalg.norm(rows, axis=1)))
        summary, noise = Summary(n, length, spread.trace, (), top), self.noise
        share = self.delta * PILOT_SHARE
        self.bound = _raised(upper_bound(summary, noise.sigma0, noise.sigma1, share, "almost-sure", noise.spread))
        self.samples, self._sum, self._squares = n, rows.sum(axis=0), (n - 1) * spread.trace
        self._seen = _moments(mean, spread.trace, top, spread.square(), n)
        left = self.delta * (1 - PILOT_SHARE)
        if self.method is None:
            single, both = (self._forecast(method, math.log(n / left)) for method, n in PROOFS.items())
            self.method = "pairs" if both < PAYS * single else "top"
        self._level = math.log(PROOFS[self.method] / left)

    @property
    def mean_norm(self) -> float:
        """The length of the mean of all samples."""
        return math.nan if self._seen is None else float(np.linalg.norm(self._seen.mean))

    def hopeless(self, factor: float) -> bool:
        """To go on is idle: the mean is above the target by so many root mean squares of its noise, or has no range."""
        if not math.isfinite(self.noise.radius(self.bound)):
            return True
        noise = 0.0 if self._seen is None else math.sqrt(self._seen.trace / self.samples)
        return self.mean_norm > self.target + factor * noise

    def forecast(self) -> float:
        """About how many samples the target will take in all; infinite if it is out of reach."""
        assert self.method is not None
        return self.samples if self.bound <= self.target else self._forecast(self.method, self._level)

    def idle(self, patience: float) -> bool:
        """To go on is not worth it: by what was seen it takes so many times the samples of a gradient that is zero."""
        assert self.method is not None
        calm = self._forecast(self.method, self._level, calm=True)
        return self.samples >= calm and self.forecast() > patience * calm

    def add(self, rows: Array) -> float:
        """Another block; everything that is chosen here is chosen before it is looked at."""
        seen, n = self._seen, len(rows)
        assert seen is not None
        centre, r = self._centre(seen)
        lam, mu = self._weights(seen, r) if math.isfinite(r) else (0.0, 0.0)
        if lam > 0:
            if self.method == "pairs":
                self._add_pairs(rows, centre, r, lam, mu)
            self._a = self._a + lam * rows.sum(axis=0)
            self._lost += LOST * lam * float(np.sum(np.linalg.norm(rows, axis=1)))
            self._Lam += lam * n
            weight = float(psi(lam * r)) / r**2
            self._scatter.add(rows - centre, weight)
            self._weight += weight * n
            self._update()
        self._learn(rows)
        return self.bound

    def _centre(self, seen: Moments) -> tuple[Array, float]:
        """Centre and range of the next block: the mean of the past lies among the samples, 0 is within G of grad F."""
        length, floor = float(np.linalg.norm(seen.mean)), MARGIN * self.target
        around_mean = 2 * self.noise.radius(self.bound) * (1 + MARGIN) + LOST * length
        around_zero = (self.noise.sigma0 + (1 + self.noise.sigma1) * self.bound) * (1 + MARGIN)
        if around_zero < around_mean and length**2 <= max(seen.top / 4, 4 * seen.trace / self.samples):
            return np.zeros_like(seen.mean), max(around_zero, floor)
        return seen.mean, max(around_mean, floor)

    def _weights(self, seen: Moments, r: float) -> tuple[float, float]:
        """lam and mu of the next block, for the number of samples at which the target is expected."""
        target = max(self.target - seen.drift(self.samples) / 2, self.target / 3)
        if self.method != "pairs":
            return _single(seen, r, self._level, target)[1] / r, 0.0
        n, x, y = _double(seen, r, self._level, target)
        return x / r, y / (x * math.sqrt(n * max(seen.trace, np.finfo(float).tiny)))

    def _forecast(self, method: Method, level: float, calm: bool = False) -> float:
        assert self._seen is not None
        radius = self.noise.radius(self.target)
        r = max(min(2 * radius, self.noise.sigma0 + (1 + self.noise.sigma1) * self.target), MARGIN * self.target)
        target = self.target - (0 if calm else self._seen.drift(self.samples))
        return (_double if method == "pairs" else _single)(self._seen, r, level, target)[0] if target > 0 else math.inf

    def _add_pairs(self, rows: Array, centre: Array, r: float, lam: float, mu: float) -> None:
        """Every sample with the weighted sum of those before it, in this block and in all earlier ones."""
        before = self._a + lam * (np.cumsum(rows, axis=0) - rows)
        r_i = r * np.linalg.norm(before, axis=1) * (1 + MARGIN)
        x = np.minimum(mu * r_i, CUT)
        mu_i = np.divide(x, r_i, out=np.zeros_like(x), where=r_i > 0)
        along = np.sum((rows - centre) * before, axis=1)
        squares = np.divide(along, r_i, out=np.zeros_like(x), where=r_i > 0) ** 2
        terms = mu_i * np.sum(rows * before, axis=1)
        lost = LOST * float(x @ (1 + np.linalg.norm(rows, axis=1) / r))
        self._A += float(mu_i @ (self._Lam + lam * np.arange(len(rows))))
        self._U += float(np.sum(terms)) + float(psi(x) @ squares) + lost
        self._pending += float(np.sum(mu_i))

    def _update(self) -> None:
        if self.method == "pairs":
            # All of v_{i-1} since the last look are at most the present one: M only grows.
            self._B += self._pending * (self._scatter.top() + self._level)
            self._pending = 0.0
        self.bound = min(self.bound, _raised(self._by_top()), _raised(self._by_pairs()))

    def _by_top(self) -> float:
        return (self._scatter.largest(self._a) + self._lost + self._level) / self._Lam

    def _by_pairs(self) -> float:
        A, B, U = self._A * (1 - MARGIN), self._B, max(self._U + self._level, 0.0)
        return (B + math.sqrt(B**2 + 4 * A * U)) / (2 * A) if A > 0 else math.inf

    def _learn(self, rows: Array) -> None:
        """Moments for the choice of later weights; nothing rests on them."""
        n, new = len(rows), rows.sum(axis=0)
        gap = new / n - self._sum / self.samples
        self._squares += float(np.sum((rows - new / n) ** 2)) + float(gap @ gap) * n * self.samples / (n + self.samples)
        self._sum, self.samples, self._counted = self._sum + new, self.samples + n, self._counted + n
        trace = self._squares / (self.samples - 1)
        if self._weight > 0:
            top, square = self._scatter.top() / self._weight, self._scatter.square() / self._weight**2
            self._seen = _moments(self._sum / self.samples, trace, top, square, self._counted)


def _moments(mean: Array, trace: float, top: float, square: float, n: int) -> Moments:
    """Top eigenvalue and square as they would be after infinitely many samples, if noise alone has raised them."""
    top = max(math.sqrt(top) - math.sqrt(trace / n), math.sqrt(trace / len(mean))) ** 2
    return Moments(mean, trace, top, max(square - trace**2 / n, trace**2 / len(mean)))


def _single(seen: Moments, r: float, level: float, target: float) -> tuple[float, float]:
    """Expected number of samples until `top` reaches the target without drift, and the best lam r for it."""
    length = np.sqrt(seen.trace / COUNTS)
    top = (math.sqrt(seen.top) + length) ** 2
    bound = length + top * (PSI / (r * STEPS)) + level * r / (COUNTS * STEPS)
    i = _first(bound.min(axis=1) <= target)
    return float(COUNTS[i, 0]), float(STEPS[bound[i].argmin()])


def _double(seen: Moments, r: float, level: float, target: float) -> tuple[float, float, float]:
    """The same for `pairs`, with the best lam r and the best mu r_n for the last sample."""
    top = (math.sqrt(seen.top) + np.sqrt(seen.trace / COUNTS)) ** 2
    beta = top * (PSI / (r * STEPS)) + 2 * level * r / (COUNTS * STEPS)
    trace = max(seen.trace, np.finfo(float).tiny)
    U = COUNTS * seen.square * PSI_SHAPE / (r**2 * trace) + level
    gamma = U * r * math.sqrt(trace) / (COUNTS**1.5 * AREA)
    half = beta.min(axis=1) / 2
    i = _first(half + np.sqrt(half**2 + gamma.min(axis=1)) <= target)
    return float(COUNTS[i, 0]), float(STEPS[beta[i].argmin()]), float(LAST[gamma[i].argmin()])


def _first(reached: Array) -> int:
    return int(reached.argmax()) if reached.any() else len(reached) - 1


def _raised(bound: float) -> float:
    return bound * (1 + MARGIN) if math.isfinite(bound) else math.inf
