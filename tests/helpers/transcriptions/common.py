"""What every transcription is driven by: an oracle with given samples and a meter, and the path it leaves.

Nothing is drawn here. The caller fills tables with samples, so that another implementation can be fed the same ones;
row t - 1 of a table belongs to step t >= 1. In a finite sum a sample is the number of a component, 0 <= i < n.

    samples   the samples of a step              large    those of a big batch: the first one, or a restart
    second    a set independent of `samples`     coins    one number in [0, 1) per step
    picks     one number in [0, 1) per step      sketch   one Gaussian test matrix per step
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Array = np.ndarray


class Oracle:
    """Gradients of single samples; `asked` counts every one of them, also when the same one is asked again."""

    def __init__(self, grad: Callable[[Array, Any], Array], *, n: int | None = None, **tables: Sequence[Any]) -> None:
        self._grad, self._n, self._tables, self.asked = grad, n, tables, 0

    def grad(self, x: Array, sample: Any) -> Array:
        self.asked += 1
        return np.asarray(self._grad(x, sample), dtype=np.float64)

    def mean(self, x: Array, batch: Sequence[Any]) -> Array:
        """g(x; batch): len(batch) sample gradients."""
        return np.mean([self.grad(x, sample) for sample in batch], axis=0)

    def row(self, name: str, t: int) -> Any:
        """What table `name` holds for step t."""
        if name not in self._tables or not 1 <= t <= len(self._tables[name]):
            raise ValueError(f"Oracle: step must have a row in the table {name!r}; got t={t}")
        return self._tables[name][t - 1]

    def batch(self, name: str, t: int, n: int) -> list[Any]:
        """The first n entries of that row."""
        row = self.row(name, t)
        if len(row) < n:
            raise ValueError(f"Oracle: n must be at most {len(row)} in the table {name!r} at step {t}; got n={n}")
        return list(row[:n])

    def samples(self, t: int, n: int) -> list[Any]:
        return self.batch("samples", t, n)

    def large(self, t: int, n: int) -> list[Any]:
        return self.batch("large", t, n)

    def second(self, t: int, n: int) -> list[Any]:
        return self.batch("second", t, n)

    def coin(self, t: int) -> float:
        return float(self.row("coins", t))

    def pick(self, t: int, n: int) -> int:
        """A number in 0 .. n - 1, uniform if the table is."""
        return int(float(self.row("picks", t)) * n)

    def sketch(self, t: int) -> Array:
        return np.asarray(self.row("sketch", t), dtype=np.float64)

    @property
    def n(self) -> int:
        """How many components the finite sum has."""
        if self._n is None:
            raise ValueError("Oracle: n must be given for a method that needs a finite sum; got n=None")
        return self._n

    def index(self, t: int, n: int) -> list[int]:
        """The first n component numbers of step t."""
        return [int(i) for i in self.samples(t, n)]

    def full_grad(self, x: Array) -> Array:
        """grad F(x) of a finite sum: n sample gradients."""
        return self.mean(x, range(self.n))

    def refreshed(self, t: int, x: Array, size: int | None) -> Array:
        """The gradient of a restart: over `size` samples of the big batch, or over the whole finite sum if None."""
        return self.full_grad(x) if size is None else self.mean(x, self.large(t, size))


@dataclass
class Path:
    """x holds x_1 .. x_{T+1}, m the estimates m_1 .. m_T, cost the sample gradients asked up to each step.

    x are the points at which gradients are asked; `points` are those that are handed out, if they are others. `bar` is
    what the method itself says of the error of m_T.
    """

    x: list[Array]
    m: list[Array] = field(default_factory=list)
    cost: list[int] = field(default_factory=list)
    averages: list[Array] | None = None
    bar: float = np.nan

    @property
    def points(self) -> list[Array]:
        """Handed out at steps 1 .. T and after the last one."""
        return self.x if self.averages is None else self.averages

    @classmethod
    def start(cls, x1: Array) -> Path:
        return cls([np.array(x1, dtype=np.float64)])

    def step(self, oracle: Oracle, m: Array, x: Array) -> None:
        """Step t found m_t and went to x_{t+1}."""
        self.m.append(m)
        self.x.append(x)
        self.cost.append(oracle.asked)


def norm(v: Array) -> float:
    """Euclidean, also of a matrix (Frobenius)."""
    return float(np.sqrt(np.sum(v * v)))


def unit(v: Array) -> Array:
    """v / ||v||, and 0 if v = 0: stay."""
    size = norm(v)
    return v / size if size > 0 else np.zeros_like(v)


def over(numerator: float, denominator: float) -> float:
    """c / 0 = infinity, for the entries of a minimum."""
    return numerator / denominator if denominator > 0 else np.inf


def ratio(top: Array, bottom: Array) -> Array:
    """Coordinate-wise, and 0 / 0 = 0."""
    return np.divide(top, bottom, out=np.zeros_like(top), where=bottom > 0)
