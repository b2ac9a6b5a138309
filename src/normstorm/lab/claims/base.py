"""What a claim is: words with a place, a measurement, and rules with margins.

A measurement returns figures (named numbers), the rows of a table and, where it helps, the points of a chart. The
rules read the figures alone, so that anyone can see what would have failed. A rule that is not judged is a comparison
that its source does not certainly make: it is shown with its outcome and does not count.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import jax
import numpy as np
from numpy.typing import NDArray

from normstorm._shared.jsonable import jsonable
from normstorm.algorithms.catalogue import normalized_storm
from normstorm.algorithms.core import Algorithm
from normstorm.engine.results import Trace
from normstorm.engine.run import run
from normstorm.problems.protocol import Problem, Sampled

from ..studies import slopes

Figures = Mapping[str, Any]
HOLDS, FAILS, OPEN = "holds", "fails", "not judged"
DIGITS = 6


class Startable(Sampled, Protocol):
    """What a run asks of a problem; no constants of it need be proven."""

    def start(self) -> Any: ...


@dataclass(frozen=True)
class Rule:
    words: str
    test: Callable[[Figures], bool]
    judged: bool = True


@dataclass(frozen=True)
class Chart:
    """Lines through points (x, y), one for each series; scales are log or linear."""

    x: str
    y: str
    points: list[dict[str, Any]]
    scales: tuple[str, str] = ("log", "log")

    def to_dict(self) -> dict[str, Any]:
        return {"x": self.x, "y": self.y, "scales": list(self.scales), "points": self.points}


@dataclass(frozen=True)
class Seen:
    """What a measurement found. Every row has the same keys, which head its columns."""

    figures: dict[str, Any]
    rows: list[dict[str, Any]] = field(default_factory=list)
    chart: Chart | None = None


@dataclass(frozen=True)
class Finding:
    claim: Claim
    seen: Seen
    outcomes: tuple[bool, ...]
    seconds: float

    @property
    def verdict(self) -> str:
        judged = [ok for rule, ok in zip(self.claim.rules, self.outcomes, strict=True) if rule.judged]
        return OPEN if not judged else HOLDS if all(judged) else FAILS

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready; numbers that are not finite are None, others have six digits."""
        c, seen = self.claim, self.seen
        rules = zip(c.rules, self.outcomes, strict=True)
        found = {
            "name": c.name,
            "title": c.title,
            "place": c.place,
            "statement": c.statement,
            "verdict": self.verdict,
            "rules": [{"words": r.words, "judged": r.judged, "holds": ok} for r, ok in rules],
            "figures": seen.figures,
            "rows": seen.rows,
            "chart": None if seen.chart is None else seen.chart.to_dict(),
            "notes": list(c.notes),
            "seconds": round(self.seconds, 1),
        }
        plain: dict[str, Any] = jsonable(found, DIGITS)
        return plain


@dataclass(frozen=True)
class Claim:
    """`measure(**scale)` has the full scale as its defaults; `notes` say what differs from the source."""

    name: str
    title: str
    place: str
    statement: str
    measure: Callable[..., Seen]
    rules: tuple[Rule, ...]
    notes: tuple[str, ...] = ()

    def check(self, **scale: Any) -> Finding:
        started = time.monotonic()
        seen = self.measure(**scale)
        return Finding(self, seen, self.judge(seen.figures), time.monotonic() - started)

    def judge(self, figures: Figures) -> tuple[bool, ...]:
        return tuple(bool(rule.test(figures)) for rule in self.rules)


def largest(values: Iterable[Any]) -> float:
    """The maximum; not a number if one of them is none, where Python's own would overlook it."""
    return float(np.max([float(value) for value in values]))


def least(values: Iterable[Any]) -> float:
    return -largest(-value for value in values)


def run_from_start(
    problem: Startable, algorithm: Algorithm, steps: int, seeds: int | Sequence[int], **options: Any
) -> Trace:
    """A run in double precision from the problem's start, or from `start`, with as little kept as is asked for."""
    given = {"records": 1, "candidates": 1, **options}
    with jax.enable_x64(True):
        start = given.pop("start", None)
        return run(problem, algorithm, problem.start() if start is None else start, steps, seeds, **given)


def averages(
    problem: Problem, algorithm: Callable[[int], Algorithm], horizons: Sequence[int], seeds: int
) -> NDArray[np.float64]:
    """Mean over t of ||grad F(x_t)||: a row for every horizon, a column for every seed, no seed used twice."""
    rows = (
        run_from_start(problem, algorithm(T), T, range(i * seeds, (i + 1) * seeds)).mean_grad_norm
        for i, T in enumerate(horizons)
    )
    return np.array(list(rows))


def paper_rule(problem: Problem) -> Callable[[int], Algorithm]:
    """Normalized STORM by the paper's rule in expectation, for every horizon."""
    return lambda T: normalized_storm(**slopes.paper_rule(problem, T))


def line(series: str, x: Iterable[Any], y: Iterable[Any]) -> list[dict[str, Any]]:
    """The points of one line of a chart."""
    return [{"x": jsonable(a, DIGITS), "y": jsonable(b, DIGITS), "series": series} for a, b in zip(x, y, strict=True)]
