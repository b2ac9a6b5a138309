"""A short run beside the real one, and what is measured on the way."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .oracle import Gradient, GradientOracle, inner, minus


@dataclass(frozen=True)
class Products:
    """Inner products, one row a measurement, of g, its last two changes and its change over the window.

    own    on one batch: means of squares, noise included
    cross  of two independent batches: unbiased for what the full gradient does
    """

    own: np.ndarray
    cross: np.ndarray


def look(oracle: GradientOracle, points: Sequence[Gradient]) -> tuple[np.ndarray, np.ndarray]:
    """Products of one measurement on two fresh batches, at x_{t-window}, x_{t-2}, x_{t-1}, x_t; the last is here."""
    seeds = torch.randint(2**31, (2,)).tolist()
    pair = []
    for seed in seeds:
        batch = oracle.batches()
        found = []
        for point in points:
            oracle.move(point)
            found.append(oracle.gradient(batch, seed))
        pair.append([found[3], minus(found[3], found[2]), minus(found[2], found[1]), minus(found[3], found[0])])
    own = np.mean([_products(vectors, vectors) for vectors in pair], axis=0)
    cross = _products(*pair)
    return own, (cross + cross.T) / 2


def _products(a: list[Gradient], b: list[Gradient]) -> np.ndarray:
    return np.array([[inner(x, y) for y in b] for x in a])


def walk(oracle: GradientOracle, step: Callable[[Any], Any], steps: int, window: int, rest: int = 0) -> Products:
    """Take steps on fresh batches; after every `window` of them, measure.  `rest`: steps before the first window."""
    long_ago = oracle.point()
    trail = [long_ago] * 3
    own, cross = [], []
    for t in range(1, steps + 1):
        step(oracle.batches())
        trail = [oracle.point(), *trail[:2]]
        if t % window == 0:
            if t > rest:
                found = look(oracle, (long_ago, *reversed(trail)))
                own.append(found[0])
                cross.append(found[1])
            long_ago = trail[0]
    return Products(np.array(own), np.array(cross))


@dataclass(frozen=True)
class Probe:
    """Lengths from mean products; what is not positive after the noise is taken off is 0."""

    gradient: float
    noise: float
    drift: float
    window_drift: float
    exponent: float
    curvature_noise: float
    bounce: float
    change: float


def from_products(own: np.ndarray, cross: np.ndarray, window: int) -> Probe:
    """`window`: steps of the last change."""

    def root(value: float) -> float:
        return math.sqrt(max(float(value), 0.0))

    drift, wide = root(cross[1, 1]), root(cross[3, 3])
    exponent = math.log(wide / drift) / math.log(window) if drift > 0 and wide > 0 else 0.0
    both = drift * root(cross[2, 2])
    return Probe(
        gradient=root(cross[0, 0]),
        noise=root(own[0, 0] - cross[0, 0]),
        drift=drift,
        window_drift=wide,
        exponent=min(max(exponent, 0.0), 1.0),
        curvature_noise=root(own[1, 1] - cross[1, 1]),
        bounce=min(max(float(cross[1, 2]) / both, -1.0), 1.0) if both > 0 else 0.0,
        change=root(own[1, 1] / own[0, 0]) if own[0, 0] > 0 else 0.0,
    )


def lead(oracle: GradientOracle, mine: Gradient, other: Gradient, draws: int = 128) -> tuple[float, float]:
    """Loss at `other` less loss at `mine`, mean over fresh batches, and its standard error."""
    gaps = []
    for _ in range(draws):
        batch, seed, values = oracle.batches(), int(torch.randint(2**31, ())), []
        for point in (mine, other):
            oracle.move(point)
            torch.manual_seed(seed)
            values.append(float(oracle.value(batch).detach()))
        gaps.append(values[1] - values[0])
    return float(np.mean(gaps)), float(np.std(gaps, ddof=1) / draws**0.5)


def rounding(oracle: GradientOracle, here: Gradient, before: Gradient) -> float | None:
    """||D - D'|| / ||D'||: the difference of gradients as the user computes it, and in double precision.

    With dropout off: double precision draws other masks. None where the loss has no double precision or
    turns out to be another function there, and where the weights do not move.
    """
    oracle.model.eval()
    batch, seed = oracle.batches(), 0
    mine: list[Gradient] = []
    for point in (before, here):
        oracle.move(point)
        mine.append([g.double() for g in oracle.gradient(batch, seed)])
    tensors = [*oracle.model.parameters(), *oracle.model.buffers()]
    kept = [t.data for t in tensors]
    exact: list[Gradient] = []
    try:
        for t in tensors:
            t.data = _double(t.data)
        for point in (before, here):
            oracle.move(point)
            exact.append(oracle.gradient(_double_batch(batch), seed))
    except (RuntimeError, TypeError, NotImplementedError):
        return None
    finally:
        for t, data in zip(tensors, kept, strict=True):
            t.data = data
    if inner(minus(mine[1], exact[1]), minus(mine[1], exact[1])) > 0.01 * inner(exact[1], exact[1]):
        return None
    D, E = minus(mine[1], mine[0]), minus(exact[1], exact[0])
    size, lost = inner(E, E), inner(minus(D, E), minus(D, E))
    return float((lost / size) ** 0.5) if size > 0 else None


def _double(t: Any) -> Any:
    return t.double() if isinstance(t, Tensor) and t.is_floating_point() else t


def _double_batch(batch: Any) -> Any:
    if isinstance(batch, dict):
        return {name: _double(t) for name, t in batch.items()}
    return [_double(t) for t in batch] if isinstance(batch, tuple | list) else _double(batch)
