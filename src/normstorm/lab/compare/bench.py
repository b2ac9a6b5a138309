"""Where the algorithms of a comparison run: defaults, settings of theorems, searches, and what was tuned."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from threading import Event
from typing import Any

import jax
import numpy as np

from normstorm.engine.execution import platform, width_class
from normstorm.engine.results import Trace
from normstorm.engine.run import cores, run
from normstorm.problems.protocol import Problem

from .board import (
    AVERAGE,
    BEST,
    DEFAULT,
    ENDS,
    LAST,
    THEOREM,
    TUNED,
    Board,
    Goal,
    MethodRun,
    Row,
    Settings,
    ends_above,
    seed_scores,
)
from .ends import distances, ends, measuring
from .methods import METHODS, Scales, build, constants, scales
from .paths import paths
from .quantiles import estimate
from .request import CompareRequest
from .search import ROUNDS, Choice, Grid, Scores, chosen_again
from .theorems import theorems

RECORDS = 128
WIDTH = 32  # seeds of a batch on a CPU, in searches and comparisons alike, so that they share a compiled program
FIELD = 1.05  # and a little more than what the middle one of the algorithms has there
EASE = (2.0, 1.25)  # targets if none are given: at most so many times the best median at the budget
ROUNDING = 1e-9  # of F(x_1): a run that stays where it is does not end above it
Progress = Callable[[str, str, int, int], None]  # problem_spec, what is done, of how many


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
        rows += bench.tuned(grids, targets, measured)
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
            go: Callable[..., Trace] = partial(run, self.problem, algorithm, x, threads=1, progress=heed, **kept)
            varies = getattr(algorithm.estimator, "least", None) is not None
            trace = go(steps, seeds[:WIDTH] if varies else seeds)
            if varies:  # its cost is a matter of the run, of which some seeds are asked first
                steps = _spending(trace, self.request.budget)
                same = steps == trace.steps and len(seeds) <= WIDTH
                trace = trace if same else go(steps, seeds)
            last, best = ends(self._measure_ends, trace)
        diverged = int(np.count_nonzero(trace.diverged_at))
        far = distances(x, trace)
        return MethodRun(settings, steps, diverged, int(trace.cost.sum()), paths(trace), last, best, far)

    def search(self, known: Scales, theory: dict[str, list[Settings]]) -> tuple[dict[str, Grid], tuple[float, ...]]:
        """Everybody's grid, with settings of theorems beside it, extended until the best of every goal lies inside."""
        grids = {name: Grid(METHODS[name], known, partial(self.affords, name)) for name in theory}
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

    def tuned(
        self, grids: dict[str, Grid], targets: Sequence[float], measured: dict[str, list[MethodRun]]
    ) -> list[Row]:
        """The best setting of every algorithm for every goal, run with the seeds of the comparison if it was not."""
        goals: tuple[Goal, ...] = (*targets, *ENDS)
        start = self.start_value
        scores = {name: {goal: self.scores(grid, goal) for goal in goals} for name, grid in grids.items()}
        picks: dict[str, dict[int, list[Goal]]] = {name: {} for name in grids}
        for name, tables in scores.items():
            for goal, table in tables.items():
                picks[name].setdefault(int(table.best(start)), []).append(goal)
        ran = {
            n: {i: one for i in own for one in measured[n] if one.settings == grids[n].settings[i]}
            for n, own in picks.items()
        }
        todo = {n: [i for i in own if i not in ran[n]] for n, own in picks.items()}
        again = self.measure("tuned", {n: [grids[n].settings[i] for i in todo[n]] for n in picks}, self.seeds)
        rows = []
        for name, own in picks.items():
            grid, runs = grids[name], ran[name] | dict(zip(todo[name], again[name], strict=True))
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


def _spending(trace: Trace, budget: int) -> int:
    """Steps that spend the budget in the median, if later ones cost what those of the second half did."""
    alive = trace.diverged_at == 0
    if not alive.any():
        return trace.steps
    spent = np.median(trace.record_cost[alive].astype(np.float64), axis=0)
    half = np.interp(trace.steps / 2, trace.record_steps, spent)
    return trace.steps + int(max(0.0, budget - spent[-1]) / (spent[-1] - half) * trace.steps / 2)


def _label(goals: Sequence[Goal]) -> str:
    return "tuned for " + ", ".join(GOAL_WORDS[goal] if isinstance(goal, str) else f"{goal:g}" for goal in goals)
