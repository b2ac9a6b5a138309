"""Where the algorithms of a comparison run: defaults, settings of theorems, searches, and what was tuned."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from threading import Event
from typing import Any

import jax
import numpy as np

from normstorm.algorithms.core import Algorithm
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
from .lanes import room, run_lanes
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
    wanted = {n: [s for _, _, s in named[n]] for n in able}
    if request.tune:
        theory = {n: [s for kind, _, s in named[n] if kind == THEOREM] for n in able}
        grids, targets = bench.search(known, theory)
        picked = bench.picks(grids, targets)
        for name, own in picked.items():
            wanted[name] += [s for i in own if (s := grids[name].settings[i]) not in wanted[name]]
    measured = bench.measure("runs", wanted, bench.seeds)
    for name in able:
        for (kind, label, _), one in zip(named[name], measured[name], strict=False):
            rows.append(Row(problem_spec, name, kind, label, one))
    if request.tune:
        rows += bench.tuned(grids, picked, measured)
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
        groups = {name: self._groups(name, own) for name, own in settings.items()}
        longest, total = max(map(len, groups.values()), default=0), sum(map(len, settings.values()))
        turns = [(name, own[i]) for i in range(longest) for name, own in groups.items() if i < len(own)]
        found: dict[str, dict[int, MethodRun]] = {name: {} for name in settings}
        stop, done = Event(), 0
        with ThreadPoolExecutor(self.threads) as pool:
            try:
                results = pool.map(lambda t: self._some(t[0], [settings[t[0]][i] for i in t[1]], seeds, stop), turns)
                for (name, group), runs in zip(turns, results, strict=True):
                    found[name].update(zip(group, runs, strict=True))
                    done += len(group)
                    if self.progress is not None:
                        self.progress(self.problem_spec, what, done, total)
            except BaseException:  # the pool would else finish everything before an interruption is heard
                stop.set()
                pool.shutdown(cancel_futures=True)
                raise
        return {name: [own[i] for i in range(len(own))] for name, own in found.items()}

    def _groups(self, name: str, settings: Sequence[Settings]) -> list[list[int]]:
        """Places of the settings that are run together: those that differ in numbers alone, if a search is to come."""
        if not self.request.tune:
            return [[i] for i in range(len(settings))]
        own: dict[Any, list[int]] = {}
        for i, one in enumerate(settings):
            own.setdefault(self._kind(name, one), []).append(i)
        for kind, same in own.items():
            if kind not in self._lanes:
                most = self._room(name, settings[same[0]])
                self._lanes[kind] = math.ceil(len(same) / math.ceil(len(same) / most)) if most > 1 else 0
        cut = [(same, self._lanes[kind] or 1) for kind, same in own.items()]
        return [same[i : i + lanes] for same, lanes in cut for i in range(0, len(same), lanes)]

    @cached_property
    def _lanes(self) -> dict[Any, int]:
        """How many settings of a kind go side by side: as many as the first ones were, so that one program serves.

        0 if there is no room for two.
        """
        return {}

    def _room(self, name: str, settings: Settings) -> int:
        with jax.enable_x64(True):
            return room(self.problem, build(name, settings), self.problem.start(), **self._kept)

    def _kind(self, name: str, settings: Settings) -> Any:
        """What settings that differ in numbers alone have in common."""
        algorithm = build(name, settings)
        return name, jax.tree.structure(algorithm), self._steps(algorithm)

    def _steps(self, algorithm: Algorithm) -> int:
        return algorithm.steps(self.request.budget, self.size)

    def _some(self, name: str, settings: Sequence[Settings], seeds: range, stop: Event) -> list[MethodRun]:
        """Side by side if there is room for that, else one after the other."""
        algorithms = [build(name, one) for one in settings]
        varies, lanes = _varies(algorithms[0]), self._lanes.get(self._kind(name, settings[0]), 0)
        if not (lanes or varies):
            return [self._one(name, one, seeds, stop) for one in settings]

        # What costs are a matter of the run: some seeds are asked first.
        end = partial(_spending, budget=self.request.budget, seeds=WIDTH) if varies else None
        with jax.enable_x64(True):
            kept = {**self._kept, "progress": partial(_heed, stop), "lanes": lanes or 1, "end": end}
            x, steps = self.problem.start(), self._steps(algorithms[0])
            traces = run_lanes(self.problem, algorithms, x, steps, seeds, **kept)
            return [self._measured(*pair) for pair in zip(settings, traces, strict=True)]

    @property
    def _kept(self) -> dict[str, Any]:
        return {"records": RECORDS, "candidates": 1, "average": self.size is None, "width": self.width}

    def _one(self, name: str, settings: Settings, seeds: range, stop: Event) -> MethodRun:
        algorithm = build(name, settings)
        with jax.enable_x64(True):
            kept = {**self._kept, "threads": 1, "progress": partial(_heed, stop)}
            trace = run(self.problem, algorithm, self.problem.start(), self._steps(algorithm), seeds, **kept)
            return self._measured(settings, trace)

    def _measured(self, settings: Settings, trace: Trace) -> MethodRun:
        last, best = ends(self._measure_ends, trace)
        diverged, far = int(np.count_nonzero(trace.diverged_at)), distances(self.problem.start(), trace)
        return MethodRun(settings, trace.steps, diverged, int(trace.cost.sum()), paths(trace), last, best, far)

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
            todo = {n: self._filled(n, g, g.extend(self._centres(g, goals))) for n, g in grids.items()}
            if not any(todo.values()):
                break
        for name, left in todo.items():
            grids[name].forget(len(left))
        return grids, targets

    def _centres(self, grid: Grid, goals: Sequence[Goal]) -> list[int]:
        """For every goal the best setting, and the best one that has a place, if that of a theorem is better."""
        placed = np.array([i for i, place in enumerate(grid.places) if place is not None], int)
        found = []
        for goal in goals:
            scores = self.scores(grid, goal)
            found += [int(scores.best(self.start_value)), int(placed[scores.of(placed).best(self.start_value)])]
        return found

    def _filled(self, name: str, grid: Grid, added: list[Settings]) -> list[Settings]:
        """With neighbours of theirs, as many as go side by side with them and would else be empty lanes."""
        kinds = [self._kind(name, one) for one in added]
        free = {kind: -kinds.count(kind) % (self._lanes.get(kind) or 1) for kind in kinds}

        def wanted(settings: Settings) -> bool:
            kind = self._kind(name, settings)
            fits = free.get(kind, 0) > 0
            free[kind] = free.get(kind, 0) - fits
            return fits

        return [*added, *grid.beyond(len(added), wanted)]

    def scores(self, grid: Grid, goal: Goal) -> Scores:
        for i, one in enumerate(grid.runs):
            for g in (goal, AVERAGE):
                if (i, g) not in grid.scored:
                    grid.scored[i, g] = seed_scores(one, g, self.request.budget)
        wanted, average = (np.array([grid.scored[i, g] for i in range(len(grid.runs))]) for g in (goal, AVERAGE))
        return Scores(wanted, average, np.array([one.last.value for one in grid.runs]))

    def picks(self, grids: dict[str, Grid], targets: Sequence[float]) -> dict[str, dict[int, list[Goal]]]:
        """The best settings of every algorithm, by their places in its grid, and the goals that each is best for."""
        found: dict[str, dict[int, list[Goal]]] = {name: {} for name in grids}
        for name, grid in grids.items():
            goals: tuple[Goal, ...] = (*targets, *ENDS)
            for goal in goals:
                found[name].setdefault(int(self.scores(grid, goal).best(self.start_value)), []).append(goal)
        return found

    def tuned(
        self, grids: dict[str, Grid], picked: dict[str, dict[int, list[Goal]]], measured: dict[str, list[MethodRun]]
    ) -> list[Row]:
        """Rows of the settings that were picked, from their runs with the seeds of the comparison."""
        rows = []
        for name, own in picked.items():
            grid = grids[name]
            runs = {i: one for i in own for one in measured[name] if one.settings == grid.settings[i]}
            refused = int(self.scores(grid, AVERAGE).refused(self.start_value).sum())
            searched = sum(run.cost for run in grid.runs)
            for i, goals in own.items():
                choices = {g: self._choice(self.scores(grid, g), grid, runs, g) for g in goals}
                label, counts = _label(goals), (searched, len(grid.runs), refused)
                rows.append(Row(self.problem_spec, name, TUNED, label, runs[i], None, tuple(goals), *counts, choices))
        return rows

    def _choice(self, table: Scores, grid: Grid, again: dict[int, MethodRun], goal: Goal) -> Choice:
        pools = [seed_scores(again.get(i, run), goal, self.request.budget) for i, run in enumerate(grid.runs)]
        edge = grid.edges(int(table.best(self.start_value)))
        return chosen_again(table, pools, grid.settings, self.start_value, edge)


GOAL_WORDS = {AVERAGE: "the budget", LAST: "the last point", BEST: "the best point"}


def _varies(algorithm: Algorithm) -> bool:
    """Whether what a step costs is decided on the way."""
    return getattr(algorithm.estimator, "least", None) is not None


def _heed(stop: Event, done: int, steps: int) -> None:
    if stop.is_set():
        raise CancelledError


def _spending(trace: Trace, budget: int, seeds: int) -> int:
    """Steps that spend the budget in the median of the first seeds, if later ones cost what the second half did."""
    alive = trace.diverged_at[:seeds] == 0
    if trace.steps == 1 or not alive.any():  # a single step says nothing of what the next would cost
        return trace.steps
    spent = np.median(trace.record_cost[:seeds][alive].astype(np.float64), axis=0)
    half = np.interp(trace.steps / 2, trace.record_steps, spent)
    return trace.steps + int(max(0.0, budget - spent[-1]) / (spent[-1] - half) * trace.steps / 2)


def _label(goals: Sequence[Goal]) -> str:
    return "tuned for " + ", ".join(GOAL_WORDS[goal] if isinstance(goal, str) else f"{goal:g}" for goal in goals)
