"""Races from one start: momentum and two points over the same number of sample gradients.

An entrant goes `steps` of two points, or as many gradients by momentum: twice the steps, or half as many with twice the
samples. Its loss is taken on the same fresh batches for everybody, around half of the way and at the end; a longer
horizon is read off the line through both over the logarithm of steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ..optimizer import NormalizedStorm
from .oracle import GradientOracle

FRESH = 64  # batches on which losses are compared
HALF, END = (0.25, 0.3, 0.35, 0.4, 0.45, 0.5), (0.5, 0.6, 0.7, 0.8, 0.9, 1.0)  # of the way: where they are taken
TWO, STEPS, BATCHES = "two points", "more steps", "larger batches"


@dataclass(frozen=True)
class Entrant:
    """A way to spend the gradients, and its losses: a row a time, a column a fresh batch; half-way and at the end."""

    way: str
    beta: float
    half: np.ndarray
    end: np.ndarray
    octaves: float

    @property
    def at_horizon(self) -> np.ndarray:
        """So many doublings later."""
        found: np.ndarray = self.end + self.octaves * (self.end - self.half)
        return found

    @property
    def restlessness(self) -> float:
        """Variance of the mean over times, as if they were independent: how far the path itself goes up and down."""
        means = self.at_horizon.mean(axis=1)
        return float(means.var(ddof=1)) / len(means)


class Judge:
    """Losses on the same batches with the same random numbers, wherever the model stands."""

    def __init__(self, oracle: GradientOracle, octaves: float) -> None:
        self.oracle, self.octaves = oracle, octaves
        self.batches = [oracle.batches() for _ in range(FRESH)]
        self.seeds = torch.randint(2**31, (FRESH,)).tolist()

    def __call__(self) -> np.ndarray:
        return np.array([self.oracle.loss_on(b, s) for b, s in zip(self.batches, self.seeds, strict=True)])


def along(judge: Judge, way: str, beta: float, steps: int, take: Callable[[int], Any]) -> Entrant:
    """`take(t)` makes the step with number t, of 1 to steps."""
    half = {round(part * steps) for part in HALF} if judge.octaves else set()  # needed for a longer horizon alone
    end = {round(part * steps) for part in END}
    seen: dict[int, np.ndarray] = {}
    for t in range(1, steps + 1):
        take(t)
        if t in half | end:
            seen[t] = judge()
    before, after = (np.array([seen[t] for t in sorted(times)]) for times in (half or end, end))
    return Entrant(way, beta, before, after, judge.octaves)


def run(oracle: GradientOracle, judge: Judge, optimizer: NormalizedStorm, way: str, beta: float, steps: int) -> Entrant:
    def take(_: int) -> None:
        if way == BATCHES:
            for _ in range(2):
                torch.autograd.backward(oracle.value(oracle.batches()) / 2)
            optimizer.step()
            optimizer.zero_grad()
        else:
            optimizer.step(oracle.loss, batch=oracle.batches())

    return along(judge, way, beta, 2 * steps if way == STEPS else steps, take)


def best(entrants: Sequence[Entrant], two_points: bool) -> Entrant:
    """Of one kind, the one with the lowest loss at the horizon."""
    return min((e for e in entrants if (e.way == TWO) == two_points), key=lambda e: float(e.at_horizon.mean()))


def lead(entrants: Sequence[Entrant]) -> tuple[float, float]:
    """Momentum's loss at the horizon less that of two points, each at its best; and its standard error."""
    other, two = best(entrants, False), best(entrants, True)
    gaps = (other.at_horizon - two.at_horizon).mean(axis=0)
    variance = gaps.var(ddof=1) / len(gaps) + other.restlessness + two.restlessness
    return float(gaps.mean()), math.sqrt(variance)
