"""A short run beside the real one, and what is measured on the way."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .oracle import Gradient, GradientOracle
from .sketch import Sketch


@dataclass(frozen=True)
class Products:
    """Inner products, one row a measurement, of g, its last two changes and its change over the window.

    own    on one batch: means of squares, noise included
    cross  of two independent batches: unbiased for what the full gradient does
    """

    own: np.ndarray
    cross: np.ndarray


class Watch:
    """Gradients of two fresh batches at x_{t-window}, x_{t-2}, x_{t-1} and x_t, taken as the walk comes by.

    Called after every step. No point and no gradient is kept, only sketches; the first window is left to settle.
    """

    def __init__(self, oracle: GradientOracle, window: int, steps: int, seed: int) -> None:
        self.oracle, self.window, self.steps = oracle, window, steps
        self.sketch = Sketch(seed)
        self.pair: list[tuple[Any, int]] = []
        self.seen: list[list[Tensor]] = [[], []]
        self.own: list[np.ndarray] = []
        self.cross: list[np.ndarray] = []

    def __call__(self, t: int) -> None:
        if self.pair and -t % self.window < 3:
            self._look()
        if t % self.window == 0:
            if self.pair:
                self._multiply()
            going_on = t + self.window <= self.steps
            self.pair = [(self.oracle.batches(), int(torch.randint(2**31, ()))) for _ in range(2)] if going_on else []
            self.seen = [[], []]
            if going_on:
                self._look()

    def _look(self) -> None:
        for seen, (batch, seed) in zip(self.seen, self.pair, strict=True):
            seen.append(self.sketch(self.oracle.gradient(batch, seed)))

    def _multiply(self) -> None:
        pair = [torch.stack([now, now - last, last - before, now - past]) for past, before, last, now in self.seen]
        cross = (pair[0] @ pair[1].T).cpu().numpy()
        self.own.append(np.mean([(part @ part.T).cpu().numpy() for part in pair], axis=0))
        self.cross.append((cross + cross.T) / 2)

    def measured(self) -> Probe:
        return from_products(np.mean(self.own, axis=0), np.mean(self.cross, axis=0), self.window)

    @property
    def products(self) -> Products:
        return Products(np.array(self.own), np.array(self.cross))


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


def rounding(oracle: GradientOracle, start: Gradient) -> float | None:
    """||D - D'|| / ||D'||: the difference of gradients from here to the start as the user computes it, and in double
    precision; the model is at the start afterwards.

    With dropout off: double precision draws other masks. None where the loss has no double precision or
    turns out to be another function there, and where the weights do not move.
    """
    oracle.model.eval()
    batch, sketch, mine, exact = oracle.batches(), Sketch(0), [], []
    for back in (False, True):
        if back:
            oracle.move(start)
        mine.append(sketch(oracle.gradient(batch, 0)))
        found = _in_double(oracle, batch, sketch)
        if found is None:
            return None
        exact.append(found)
    if float((mine[1] - exact[1]).square().sum()) > 0.01 * float(exact[1].square().sum()):
        return None
    D, E = mine[1] - mine[0], exact[1] - exact[0]
    size = float(E.norm())
    return float((D - E).norm()) / size if size > 0 else None


def _in_double(oracle: GradientOracle, batch: Any, sketch: Sketch) -> Tensor | None:
    tensors = [*oracle.model.parameters(), *oracle.model.buffers()]
    kept = [t.data for t in tensors]
    try:
        for t in tensors:
            t.data = _double(t.data)
        return sketch(oracle.gradient(_double_batch(batch), 0))
    except (RuntimeError, TypeError, NotImplementedError):
        return None
    finally:
        for t, data in zip(tensors, kept, strict=True):
            t.data = data


def _double(t: Any) -> Any:
    return t.double() if isinstance(t, Tensor) and t.is_floating_point() else t


def _double_batch(batch: Any) -> Any:
    if isinstance(batch, dict):
        return {name: _double(t) for name, t in batch.items()}
    return [_double(t) for t in batch] if isinstance(batch, tuple | list) else _double(batch)
