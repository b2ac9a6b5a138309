"""What an estimate of the gradient is worth: its error from noise, drift and curvature noise, at equal cost.

All lengths are Euclidean and belong to batches of K samples. Momentum on K + k samples a step averages noise, and lags
behind a gradient that moves by drift tau^h in tau steps:

    e_momentum^2 = (1 - beta)/(1 + beta) noise^2 K/(K + k) + drift^2 (beta/(1 - beta))^(2h)

The lag is exact for a gradient that moves steadily (h = 1). Two points on K samples, k of them twice, do not lag; every
step adds what the samples disagree about in the difference:

    e_two^2 = ((1 - beta)^2 noise^2 + beta^2 curvature^2 K/k) / (1 - beta^2)

Both cost K + k sample gradients a step. Each gets the beta that suits it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

BETAS = tuple(1 - alpha for alpha in (1, 0.5, 0.3, 0.2, 0.1, 0.05, 0.03, 0.02, 0.01, 0.005, 0.003, 0.002, 0.001))


@dataclass(frozen=True)
class Forecast:
    """The best of both at equal cost."""

    momentum_beta: float
    momentum_error: float
    beta: float
    k: int
    error: float

    @property
    def ratio(self) -> float:
        """Error of two points over error of momentum; below 1, two points know the gradient better."""
        if self.momentum_error > 0:
            return self.error / self.momentum_error
        return math.inf if self.error > 0 else 1.0

    def gain(self, gradient: float) -> float:
        """Progress per step to first order, two points over momentum: cosines of their angles to a gradient so long."""
        return math.hypot(gradient, self.momentum_error) / max(math.hypot(gradient, self.error), 1e-300)


def momentum_error(beta: float, noise: float, drift: float, exponent: float, share: float = 1.0) -> float:
    """`share`: samples that noise belongs to, over samples of a step."""
    lag = drift * (beta / (1 - beta)) ** exponent if beta > 0 else 0.0
    return math.hypot(math.sqrt((1 - beta) / (1 + beta) * share) * noise, lag)


def two_point_error(beta: float, noise: float, curvature_noise: float, share: float = 1.0) -> float:
    """`share`: K / k."""
    return math.hypot((1 - beta) * noise, beta * math.sqrt(share) * curvature_noise) / math.sqrt(1 - beta**2)


def forecast(
    K: int, noise: float, drift: float, exponent: float, curvature_noise: float, k: int | None = None
) -> Forecast:
    """The k with the best ratio, unless it is given, and for each method the beta with the smallest error."""
    candidates = []
    sizes = sorted({K, *(2**i for i in range(K.bit_length()) if 2**i <= K)}) if k is None else [k]
    for k in sizes:
        share = K / (K + k)
        one = min((momentum_error(beta, noise, drift, exponent, share), beta) for beta in BETAS)
        two = min((two_point_error(beta, noise, curvature_noise, K / k), beta) for beta in BETAS)
        candidates.append(Forecast(one[1], one[0], two[1], k, two[0]))
    return min(candidates, key=lambda found: found.ratio)
