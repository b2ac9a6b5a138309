"""Algorithms side by side at equal sample gradients.

**What is measured.** The average of ||grad F(x_t)|| over the iterates so far, each counted as often as its step asks
sample gradients, as a function of the sample gradients asked so far. A run *reaches* a target at the cost from which on
its average stays at or below it until the budget is spent. And what a user takes home: ||grad F|| and F at the last
point and at the one with the smallest estimate (`ends`). A run that diverges, or does not reach a target, counts as
infinite in every quantile.

For a finite sum grad F costs as much as all its components, so there the average is taken over the recorded iterates,
each with the weight of what was asked since the one before; elsewhere it is exact, over all steps.

**Who runs.** For every algorithm: its default (`methods`), every setting that a theorem gives (`theorems`), and with
tuning the best of these and of a search with the same number of settings for everybody (`search`), chosen by the median
over seeds of its own, once for every goal. A seed's samples at step t are the same for every algorithm that draws the
same number of them. What a problem cannot serve is reported with the reason.

**Who wins.** Only an algorithm whose interval lies below those of all others; else those that cannot be told from the
best are named together. Settings that end above F(x_1) do not compete.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from functools import cached_property
from threading import Event
from typing import Any

import jax
import numpy as np

from normstorm.engine.execution import platform, width_class
from normstorm.engine.run import cores, run
from normstorm.problems.protocol import Problem

from .ends import Ends, distances, ends, measuring
from .methods import METHODS, Scales, build, constants, scales
from .paths import Paths, paths
from .quantiles import Estimate, estimate
from .request import CompareRequest
from .search import ROUNDS, Choice, Grid, Scores, chosen_again, medians
from .theorems import theorems

RECORDS = 128
WIDTH = 32  # seeds of a batch on a CPU, in searches and comparisons alike, so that they share a compiled program
FIELD = 1.05  # and a little more than what the middle one of the algorithms has there
EASE = (2.0, 1.25)  # targets if none are given: at most so many times the best median at the budget
DEFAULT, THEOREM, TUNED = "default", "theorem", "tuned"
AVERAGE, LAST, BEST = "average", "last", "best"
ENDS = (AVERAGE, LAST, BEST)  # goals at the budget, beside targets: the average, and gradient norms at two points
UNKNOWN = Estimate(np.inf, np.inf, np.inf)
ROUNDING = 1e-9  # of F(x_1): a run that stays where it is does not end above it
Goal = float | str
Settings = dict[str, Any]
Progress = Callable[[str, str, int, int], None]  # problem_spec, what is done, of how many


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
        """Sample gradients of all runs, searches included."""
        runs = sum(row.measured.cost for row in self.rows if row.measured is not None)
        return runs + sum(self.searches.values())

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


def board(
    request: CompareRequest,
    problem_spec: str,
    problem: Problem,
    *,
    threads: int | None = None,
    progress: Progress | None = None,
) -> Board:
    """Everything about one problem."""
    if not problem.is_exact:
        raise ValueError(f"compare: problem must know grad F, which is what is measured; got {problem_spec!r}")
    known = scales(problem, request.budget)
    bench = Bench(request, problem_spec, problem, threads or cores(), progress)
    reasons = {name: bench.refusal(name, known) for name in request.algorithms}
    able = [name for name, reason in reasons.items() if reason is None]
    rows = [
        Row(problem_spec, name, DEFAULT, DEFAULT, reason=reason)
        for name, reason in reasons.items()
        if reason is not None
    ]
    named = {name: [n for n in _named(name, problem, known) if bench.affords(name, n[2])] for name in able}
    measured = bench.measure("runs", {n: [s for _, _, s in named[n]] for n in able}, bench.seeds)
    for name in able:
        for (kind, label, _), one in zip(named[name], measured[name], strict=True):
            rows.append(Row(problem_spec, name, kind, label, one))
    if request.tune:
        theory = {n: [s for kind, _, s in named[n] if kind == THEOREM] for n in able}
        grids, targets = bench.search(known, theory)
        rows += bench.tuned(grids, targets)
    else:
        targets = request.targets or _targets(list(measured.values()), known, bench.start_value)
    order = {name: i for i, name in enumerate(request.algorithms)}
    ordered = tuple(sorted(rows, key=lambda r: order[r.algorithm]))
    told = constants(problem).to_dict(), asdict(known)
    return Board(problem_spec, known.size is None, bench.start_value, request.budget, targets, *told, ordered)


def _named(name: str, problem: Problem, known: Scales) -> list[tuple[str, str, Settings]]:
    """Kind, label and numbers of the settings that need no search."""
    proven = [(THEOREM, t.label, t.settings) for t in theorems(name, problem, known.budget)]
    return [(DEFAULT, DEFAULT, METHODS[name].default(known)), *proven]


def _targets(found: Sequence[Sequence[MethodRun]], known: Scales, start_value: float) -> tuple[float, ...]:
    """Round numbers a little above multiples of the best median at the budget, as far as they lie below the start.

    And one that about half of the algorithms reach: those near the best tell only the few best from each other.
    `found` has all settings of each algorithm; those that end above F(x_1) do not count. A target that the start
    already meets says only what a first step costs; there is none if everybody diverged.
    """
    kept = [[m for m in each if not ends_above(m, start_value)] for each in found]
    averages = [[estimate(m.paths.final(known.budget), 0.5).value for m in each] for each in kept]
    finals = sorted(min(each, default=np.inf) for each in averages)
    if not finals or not 0 < finals[0] < np.inf:
        return ()
    wanted = [1.005 * ease * finals[0] for ease in EASE]
    wanted.append(max(wanted[-1], FIELD * finals[(len(finals) - 1) // 2]))
    rounded = {float(f"{target:.2g}") for target in wanted}
    return tuple(sorted((target for target in rounded if target < known.grad_norm), reverse=True))


@dataclass(frozen=True)
class Bench:
    """Where settings of one problem are run, one thread an algorithm."""

    request: CompareRequest
    problem_spec: str
    problem: Problem
    threads: int
    progress: Progress | None

    @property
    def seeds(self) -> range:
        return range(self.request.first_seed, self.request.first_seed + self.request.seeds)

    @property
    def tuning_seeds(self) -> range:
        return range(self.seeds.stop, self.seeds.stop + self.request.tune_seeds)

    @property
    def size(self) -> int | None:
        return getattr(self.problem, "size", None)

    @cached_property
    def start_value(self) -> float:
        """F(x_1), and a little more for rounding."""
        with jax.enable_x64(True):
            value = float(self.problem.value(self.problem.start()))
        return value + ROUNDING * abs(value)

    @cached_property
    def width(self) -> int | None:
        """Seeds of a batch: fewer than WIDTH if x is large, and as the engine likes on a GPU."""
        if platform() != "cpu":
            return None
        numbers = sum(int(np.size(leaf)) for leaf in jax.tree.leaves(self.problem.start()))
        return min(WIDTH, width_class(WIDTH, numbers, self.size or 1, 8 * numbers))

    @cached_property
    def _measure_ends(self) -> Callable[[Any], tuple[Any, Any]]:
        return measuring(self.problem)

    def refusal(self, name: str, known: Scales) -> str | None:
        """Why the algorithm cannot run here, within the budget."""
        algorithm = build(name, METHODS[name].default(known))
        reason: str | None = algorithm.refusal(self.problem, self.problem.start())
        if reason is None:
            try:
                algorithm.steps(self.request.budget, self.size)
            except ValueError as error:
                return str(error)
        return reason

    def affords(self, name: str, settings: Settings) -> bool:
        """Whether the budget pays the first step."""
        return build(name, settings).cost(1, self.size) <= self.request.budget

    def measure(self, what: str, settings: dict[str, list[Settings]], seeds: range) -> dict[str, list[MethodRun]]:
        """Every setting once for every seed, in double precision.

        The algorithms take turns, so that one program is seldom compiled by two threads.
        """
        longest = max(map(len, settings.values()), default=0)
        turns = [(name, s[i]) for i in range(longest) for name, s in settings.items() if i < len(s)]
        found: dict[str, list[MethodRun]] = {name: [] for name in settings}
        stop = Event()
        with ThreadPoolExecutor(self.threads) as pool:
            try:
                results = pool.map(lambda turn: self._one(turn[0], turn[1], seeds, stop), turns)
                for done, ((name, _), one) in enumerate(zip(turns, results, strict=True), 1):
                    found[name].append(one)
                    if self.progress is not None:
                        self.progress(self.problem_spec, what, done, len(turns))
            except BaseException:  # the pool would else finish everything before an interruption is heard
                stop.set()
                pool.shutdown(cancel_futures=True)
                raise
        return found

    def _one(self, name: str, settings: Settings, seeds: range, stop: Event) -> MethodRun:
        algorithm = build(name, settings)
        steps = algorithm.steps(self.request.budget, self.size)
        exact = self.size is None

        def heed(done: int, steps: int) -> None:
            if stop.is_set():
                raise CancelledError

        with jax.enable_x64(True):
            x = self.problem.start()
            kept: dict[str, Any] = {"records": RECORDS, "candidates": 1, "average": exact, "width": self.width}
            trace = run(self.problem, algorithm, x, steps, seeds, threads=1, progress=heed, **kept)
            last, best = ends(self._measure_ends, trace)
        diverged = int(np.count_nonzero(trace.diverged_at))
        far = distances(x, trace)
        return MethodRun(settings, steps, diverged, int(trace.cost.sum()), paths(trace), last, best, far)

    def search(self, known: Scales, theory: dict[str, list[Settings]]) -> tuple[dict[str, Grid], tuple[float, ...]]:
        """Everybody's grid, with settings of theorems beside it, extended until the best of every goal lies inside."""
        grids = {
            name: Grid(METHODS[name], known, lambda s, name=name: self.affords(name, s))  # type: ignore[misc]
            for name in theory
        }
        todo = {name: grid.begin(theory[name]) for name, grid in grids.items()}
        for _ in range(1 + ROUNDS):
            for name, runs in self.measure("search", todo, self.tuning_seeds).items():
                grids[name].runs.extend(runs)
            found = [grid.runs for grid in grids.values()]
            targets = self.request.targets or _targets(found, known, self.start_value)
            goals: tuple[Goal, ...] = (*targets, *ENDS)
            todo = {
                n: grid.extend([int(self.scores(grid, g).best(self.start_value)) for g in goals])
                for n, grid in grids.items()
            }
            if not any(todo.values()):
                break
        for name, left in todo.items():
            grids[name].forget(len(left))
        return grids, targets

    def scores(self, grid: Grid, goal: Goal) -> Scores:
        for i, one in enumerate(grid.runs):
            for g in (goal, AVERAGE):
                if (i, g) not in grid.scored:
                    grid.scored[i, g] = seed_scores(one, g, self.request.budget)
        wanted, average = (np.array([grid.scored[i, g] for i in range(len(grid.runs))]) for g in (goal, AVERAGE))
        return Scores(wanted, average, np.array([one.last.value for one in grid.runs]))

    def tuned(self, grids: dict[str, Grid], targets: Sequence[float]) -> list[Row]:
        """The best setting of every algorithm for every goal, run with the seeds of the comparison."""
        goals: tuple[Goal, ...] = (*targets, *ENDS)
        start = self.start_value
        scores = {name: {goal: self.scores(grid, goal) for goal in goals} for name, grid in grids.items()}
        picks: dict[str, dict[int, list[Goal]]] = {name: {} for name in grids}
        for name, tables in scores.items():
            for goal, table in tables.items():
                picks[name].setdefault(int(table.best(start)), []).append(goal)
        again = self.measure("tuned", {n: [grids[n].settings[i] for i in own] for n, own in picks.items()}, self.seeds)
        rows = []
        for name, own in picks.items():
            grid, runs = grids[name], dict(zip(own, again[name], strict=True))
            refused = int(scores[name][AVERAGE].refused(start).sum())
            searched = sum(run.cost for run in grid.runs)
            for i, goal_list in own.items():
                choices = {g: self._choice(scores[name][g], grid, runs, g) for g in goal_list}
                label, counts = _label(goal_list), (searched, len(grid.runs), refused)
                rows.append(
                    Row(self.problem_spec, name, TUNED, label, runs[i], None, tuple(goal_list), *counts, choices)
                )
        return rows

    def _choice(self, table: Scores, grid: Grid, again: dict[int, MethodRun], goal: Goal) -> Choice:
        pools = [seed_scores(again.get(i, run), goal, self.request.budget) for i, run in enumerate(grid.runs)]
        edge = grid.edges(int(table.best(self.start_value)))
        return chosen_again(table, pools, grid.settings, self.start_value, edge)


GOAL_WORDS = {AVERAGE: "the budget", LAST: "the last point", BEST: "the best point"}


def _label(goals: Sequence[Goal]) -> str:
    return "tuned for " + ", ".join(GOAL_WORDS[goal] if isinstance(goal, str) else f"{goal:g}" for goal in goals)
