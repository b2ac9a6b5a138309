"""Adaptivity: what is left of the bounds when L1 or the noise goes to zero."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from normstorm.problems import synthetic
from normstorm.problems.noise import fourier
from normstorm.theory.constants import Constants
from normstorm.theory.planner.planner import plan

from ..studies import slopes
from .base import Chart, Claim, Rule, Seen, averages, largest, line, paper_rule

BASE, SMALL = Constants(L0=1, L1=1, sigma0=1, sigma1=0.1, gap=1, grad_norm=1), 1e-8
FAR = (10**6, 10**8, 10**10, 10**12)
HORIZONS = (3_162, 10_000, 31_623, 100_000, 316_228)
DELTA = 0.01
GUARANTEES = (("high probability", 1 - DELTA), ("expectation", None))


def adaptivity(horizons: Sequence[int] = HORIZONS, seeds: int = 4) -> Seen:
    rows = [_row(kind, confidence, rule) for kind, confidence in GUARANTEES for rule in ("paper", "sharp")]
    points = []
    for size in (1.0, 0.1, 0.0):
        problem = synthetic.exp_quad(noise=(fourier(0.5 * size, 20.0),) if size else ())
        found = averages(problem, paper_rule(problem), horizons, seeds)
        points += line(f"exp-quad, noise x {size:g}", horizons, found.mean(axis=1))
    figures = {
        "L1_limit": largest(row["limit L1 to 0, off by"] for row in rows),
        "noise_limit": largest(row["limit noise to 0, off by"] for row in rows),
        "slope_off_without_L1": largest(abs(row["slope, L1 = 0"] - row["predicted, L1 = 0"]) for row in rows),
        "slope_off_without_noise": largest(abs(row["slope, no noise"] - row["predicted, no noise"]) for row in rows),
        "observed_without_noise": slopes.slope(horizons, found.mean(axis=1)),
    }
    return Seen(figures, rows, Chart("horizon T", "average gradient norm", points))


def _row(kind: str, confidence: float | None, rule: str) -> dict[str, Any]:
    """One bound at both limits, and its slopes there beside those of the theory."""

    def bounds(known: Constants) -> list[float]:
        return [plan(known, horizon=T, confidence=confidence, rule=rule).bound for T in FAR]

    plain, still = replace(BASE, L1=0.0), replace(BASE, sigma0=0.0, sigma1=0.0)
    quiet = replace(BASE, sigma0=SMALL, sigma1=0.1 * SMALL)
    at_plain, at_still = bounds(plain), bounds(still)
    log = [math.log(4 * T / DELTA) if confidence and rule == "paper" else 1.0 for T in FAR]
    return {
        "bound": f"{rule}, {kind}",
        "limit L1 to 0, off by": abs(bounds(replace(BASE, L1=SMALL))[0] / at_plain[0] - 1),
        "limit noise to 0, off by": abs(bounds(quiet)[0] / at_still[0] - 1),
        "slope, L1 = 0": slopes.slope(FAR, at_plain),
        "predicted, L1 = 0": slopes.slope(FAR, [(g / T) ** (1 / 3) for g, T in zip(log, FAR, strict=True)]),
        "slope, no noise": slopes.slope(FAR, at_still),
        "predicted, no noise": slopes.slope(FAR, [(g**0.5 / T) ** 0.5 for g, T in zip(log, FAR, strict=True)]),
    }


ADAPTIVITY = Claim(
    "adaptivity",
    "The bounds adapt to L1 and to the noise",
    "Section 1.1 and the discussions after both theorems",
    "The bounds hold for L1 = 0, where they are the classical T^(-1/3), and without noise they become the "
    "deterministic T^(-1/2); nothing has to be divided by L1.",
    adaptivity,
    (
        Rule(
            "bounds at L1 = 10^-8, T = 10^6 agree with those at L1 = 0 to a relative 10^-6",
            lambda f: f["L1_limit"] <= 1e-6,
        ),
        Rule(
            "bounds at a noise of 10^-8 agree with those without noise to a relative 10^-4",
            lambda f: f["noise_limit"] <= 1e-4,
        ),
        Rule(
            "with L1 = 0 every bound falls like T^(-1/3), the paper's in high probability like "
            "(log(4T/delta)/T)^(1/3): slopes from T = 10^6 to 10^12 within 0.01",
            lambda f: f["slope_off_without_L1"] <= 0.01,
        ),
        Rule(
            "without noise every bound falls like T^(-1/2), the paper's in high probability with a factor "
            "log(4T/delta)^(1/4): slopes within 0.01",
            lambda f: f["slope_off_without_noise"] <= 0.01,
        ),
        Rule(
            "observed without noise on exp-quad, L1 > 0: slope within 0.05 of -1/2",
            lambda f: abs(f["observed_without_noise"] + 0.5) <= 0.05,
        ),
    ),
)
