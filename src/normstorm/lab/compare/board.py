"""Algorithms side by side at equal sample gradients.

**What is measured.** The average of ||grad F(x_t)|| over the iterates so far, each counted as often as its step asks
sample gradients, as a function of the sample gradients asked so far. A run *reaches* a target at the cost from which on
its average stays at or below it until the budget is spent. And what a user takes home: ||grad F|| and F at the last
point and at the one with the smallest estimate (`ends`). A run that diverges, or does not reach a target, counts as
infinite in every quantile.

For a finite sum grad F costs as much as all its components, so there the average is taken over the recorded iterates,
each with the weight of what was asked since the one before; elsewhere it is exact, over all steps.

**Who runs.** For every algorithm: its default (`methods`), every setting that a theorem gives (`theorems`), and with
tuning the best of these and of a search that begins with the same number of settings for everybody (`search`), chosen
by the median over seeds of its own, once for every goal. A seed's samples at step t are the same for every algorithm
that draws the same number of them. What a problem cannot serve is reported with the reason.

**Who wins.** Only an algorithm whose interval lies below those of all others; else those that cannot be told from the
best are named together. Settings that end above F(x_1) do not compete.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .ends import Ends
from .paths import Paths
from .quantiles import Estimate, estimate
from .search import Choice, medians

DEFAULT, THEOREM, TUNED = "default", "theorem", "tuned"
AVERAGE, LAST, BEST = "average", "last", "best"
ENDS = (AVERAGE, LAST, BEST)  # goals at the budget, beside targets: the average, and gradient norms at two points
UNKNOWN = Estimate(np.inf, np.inf, np.inf)
Goal = float | str
Settings = dict[str, Any]


@dataclass(frozen=True)
class MethodRun:
    """What came out of one setting; `cost` is that of all seeds, `distance` from x_1 to each seed's last point."""

    settings: Settings
    steps: int
    diverged: int
    cost: int
    paths: Paths = field(repr=False)
    last: Ends = field(repr=False)
    best: Ends = field(repr=False)
    distance: np.ndarray = field(repr=False)


@dataclass(frozen=True)
class Row:
    """One algorithm with one setting on one problem, or the reason why it cannot run there.

    goals     what a tuned setting is the best for: targets, AVERAGE, LAST and BEST
    searched  sample gradients that the search for it asked;   tried   its settings;   refused   those that end too high
    choices   for each of its goals how sure the choice is
    """

    problem_spec: str
    algorithm: str
    kind: str
    label: str
    measured: MethodRun | None = None
    reason: str | None = None
    goals: tuple[Goal, ...] = ()
    searched: int = 0
    tried: int = 0
    refused: int = 0
    choices: dict[Goal, Choice] = field(default_factory=dict)


@dataclass(frozen=True)
class Verdict:
    """The winner of a contest, or those that cannot be told from the best; nobody if nobody's median is finite."""

    winner: Row | None
    tied: tuple[Row, ...]


@dataclass(frozen=True)
class Board:
    """All rows of one problem. `exact`: whether averages are over all steps; `start_value` is F(x_1)."""

    problem_spec: str
    exact: bool
    start_value: float
    budget: int
    targets: tuple[float, ...]
    constants: dict[str, Any]
    scales: dict[str, Any]
    rows: tuple[Row, ...]

    @property
    def searches(self) -> dict[str, int]:
        """Sample gradients of every algorithm's search."""
        return {row.algorithm: row.searched for row in self.rows if row.searched}

    @property
    def asked(self) -> int:
        """Sample gradients of all runs, searches included; rows may share a run."""
        runs = {id(row.measured): row.measured.cost for row in self.rows if row.measured is not None}
        return sum(runs.values()) + sum(self.searches.values())

    @property
    def goals(self) -> tuple[Goal, ...]:
        return (*self.targets, *ENDS)

    @property
    def tuned(self) -> bool:
        return any(row.kind == TUNED for row in self.rows)

    @property
    def searched_settings(self) -> tuple[int, int]:
        """Settings that all searches tried, and those of them that were refused."""
        each = {row.algorithm: (row.tried, row.refused) for row in self.rows if row.kind == TUNED}
        return sum(tried for tried, _ in each.values()), sum(refused for _, refused in each.values())

    @property
    def hardest(self) -> float | None:
        """The smallest target that somebody's median reaches."""
        reached = (g for g in self.targets if any(np.isfinite(seen.value) for _, seen in self.contest(g)))
        return min(reached, default=None)

    def astray(self, row: Row) -> bool:
        """Whether the median of its seeds ends above F(x_1)."""
        return row.measured is not None and ends_above(row.measured, self.start_value)

    def contest(self, goal: Goal) -> list[tuple[Row, Estimate]]:
        """One row an algorithm, with what is to be small; infinite for one that goes astray, which does not compete.

        The row tuned for this goal; if nothing was tuned the best of the default and the settings of theorems.
        """
        if self.tuned:
            chosen = [r for r in self.rows if r.kind == TUNED and goal in r.goals]
        else:
            own: dict[str, list[Row]] = {}
            for row in self.rows:
                if row.measured is not None:
                    own.setdefault(row.algorithm, []).append(row)
            chosen = [min(rows, key=lambda r: self._order(r, goal)) for rows in own.values()]
        return [(row, self._contested(row, goal)) for row in chosen]

    def _contested(self, row: Row, goal: Goal) -> Estimate:
        return UNKNOWN if self.astray(row) else self.seen(row, goal)

    def _order(self, row: Row, goal: Goal) -> tuple[float, float]:
        return self._contested(row, goal).value, self.seen(row, AVERAGE).value

    def seen(self, row: Row, goal: Goal, probability: float = 0.5) -> Estimate:
        """A quantile over the seeds of what is to be small; the interval of a median counts the choice of a setting."""
        assert row.measured is not None
        found = estimate(seed_scores(row.measured, goal, self.budget), probability)
        choice = row.choices.get(goal)
        if choice is None or probability != 0.5:
            return found
        return Estimate(found.value, min(found.low, choice.low), max(found.high, choice.high))

    def value_seen(self, row: Row, point: str) -> Estimate:
        """The median over the seeds of F at the last point, or at the one with the smallest estimate."""
        assert row.measured is not None
        return estimate(_end(row.measured, point).value, 0.5, least=-np.inf)

    def reached(self, row: Row, goal: float) -> float:
        """The share of the seeds that reach the target."""
        assert row.measured is not None
        return float(np.mean(np.isfinite(seed_scores(row.measured, goal, self.budget))))

    def verdict(self, goal: Goal) -> Verdict:
        contest = self.contest(goal)
        finite = [pair for pair in contest if np.isfinite(pair[1].value)]
        if not finite:
            return Verdict(None, ())
        best, least = min(finite, key=lambda pair: pair[1].value)
        close = tuple(row for row, seen in contest if row is not best and not least.apart(seen))
        return Verdict(best, ()) if not close and np.isfinite(least.high) else Verdict(None, (best, *close))


def seed_scores(measured: MethodRun, goal: Goal, budget: int) -> np.ndarray:
    """For every seed, what is to be small: sample gradients to a target, the average, or ||grad F|| at a point."""
    if isinstance(goal, str):
        return measured.paths.final(budget) if goal == AVERAGE else _end(measured, goal).grad_norm
    return measured.paths.reaches(goal, budget)


def _end(measured: MethodRun, point: str) -> Ends:
    return measured.last if point == LAST else measured.best


def ends_above(measured: MethodRun, level: float) -> bool:
    """Whether the median of F at the last point is larger."""
    return bool(medians(measured.last.value) > level)
