"""Algorithms side by side at equal sample gradients.

**What is measured.** The average of ||grad F(x_t)|| over the iterates so far, as a function of the sample gradients
asked so far: that is what the theory of this field bounds, and what a uniformly random iterate has in expectation. A
run *reaches* a target at the cost from which on its average stays at or below it until the budget is spent. A run that
diverges, or does not reach a target, counts as infinite in every quantile.

For a finite sum grad F costs as much as all its components, so there the average is taken over the recorded iterates,
each with the weight of the steps since the one before; elsewhere it is exact, over all steps.

**Who runs.** For every algorithm: its default (`methods`), every setting that a theorem gives (`theorems`), and with
tuning the best of one and the same small search, chosen by the median over seeds of its own, once for the budget and
once for every target. A seed's samples at step t are the same for every algorithm that draws the same number of them.
What a problem cannot serve is reported with the reason.

**Who wins.** Only an algorithm whose interval lies below those of all others; else those that cannot be told from the
best are named together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from threading import Event
from typing import Any

import jax
import numpy as np

from normstorm.engine.run import cores, run
from normstorm.problems.protocol import Problem

from .methods import METHODS, Scales, build, constants, scales
from .paths import Paths, paths
from .quantiles import Estimate, estimate
from .request import CompareRequest
from .theorems import theorems

RECORDS = 128
FIELD = 1.05  # and a little more than what the middle one of the algorithms has there
SLACK = 1.1  # where the cost of a step is a matter of luck, so many times the steps that are expected to fit
EASE = (4.0, 2.0, 1.25)  # targets if none are given: at most so many times the best median at the budget
DEFAULT, THEOREM, TUNED = "default", "theorem", "tuned"
Settings = dict[str, Any]
Progress = Callable[[str, str, int, int], None]  # problem_spec, what is done, of how many


@dataclass(frozen=True)
class MethodRun:
    """What came out of one setting; `cost` is that of all seeds."""

    settings: Settings
    steps: int
    diverged: int
    cost: int
    paths: Paths = field(repr=False)


@dataclass(frozen=True)
class Row:
    """One algorithm with one setting on one problem, or the reason why it cannot run there.

    goals     what a tuned setting is the best for: targets, and None for the budget
    searched  sample gradients that the search for it asked
    """

    problem_spec: str
    algorithm: str
    kind: str
    label: str
    measured: MethodRun | None = None
    reason: str | None = None
    goals: tuple[float | None, ...] = ()
    searched: int = 0


@dataclass(frozen=True)
class Verdict:
    """The winner of a contest, or those that cannot be told from the best; nobody if nobody's median is finite."""

    winner: Row | None
    tied: tuple[Row, ...]


@dataclass(frozen=True)
class Board:
    """All rows of one problem. `exact`: whether averages are over all steps."""

    problem_spec: str
    exact: bool
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
    def hardest(self) -> float | None:
        """The smallest target that somebody's median reaches."""
        reached = (g for g in self.targets if any(np.isfinite(seen.value) for _, seen in self.contest(g)))
        return min(reached, default=None)

    def contest(self, goal: float | None) -> list[tuple[Row, Estimate]]:
        """One row an algorithm, with what it needs for the target (or reaches with the budget, if the goal is None).

        The row tuned for this goal; if nothing was tuned the default.
        """
        tuned = [r for r in self.rows if r.kind == TUNED and goal in r.goals]
        chosen = tuned or [r for r in self.rows if r.kind == DEFAULT and r.measured is not None]
        return [(row, self.seen(row, goal)) for row in chosen]

    def seen(self, row: Row, goal: float | None, probability: float = 0.5) -> Estimate:
        """A quantile over the seeds of the sample gradients to the target, or of the average at the budget."""
        assert row.measured is not None
        return estimate(seed_scores(row.measured, goal, self.budget), probability)

    def reached(self, row: Row, goal: float) -> float:
        """The share of the seeds that reach the target."""
        assert row.measured is not None
        return float(np.mean(np.isfinite(seed_scores(row.measured, goal, self.budget))))

    def verdict(self, goal: float | None) -> Verdict:
        contest = self.contest(goal)
        finite = [pair for pair in contest if np.isfinite(pair[1].value)]
        if not finite:
            return Verdict(None, ())
        best, least = min(finite, key=lambda pair: pair[1].value)
        close = tuple(row for row, seen in contest if row is not best and not least.apart(seen))
        return Verdict(best, ()) if not close and np.isfinite(least.high) else Verdict(None, (best, *close))


def seed_scores(measured: MethodRun, goal: float | None, budget: int) -> np.ndarray:
    """For every seed, what is to be small: sample gradients to the goal, or the average at the budget if it is None."""
    return measured.paths.final(budget) if goal is None else measured.paths.reaches(goal, budget)


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
    targets = request.targets
    if request.tune:
        grids = {n: [s for s in METHODS[n].grid(known) if bench.affords(n, s)] for n in able}
        found = bench.measure("search", grids, bench.tuning_seeds)
        targets = targets or _targets(list(found.values()), known)
        rows += bench.tuned(found, targets)
    targets = targets or _targets(list(measured.values()), known)
    order = {name: i for i, name in enumerate(request.algorithms)}
    ordered = tuple(sorted(rows, key=lambda r: order[r.algorithm]))
    exact = known.size is None
    return Board(problem_spec, exact, request.budget, targets, constants(problem).to_dict(), asdict(known), ordered)


def _named(name: str, problem: Problem, known: Scales) -> list[tuple[str, str, Settings]]:
    """Kind, label and numbers of the settings that need no search."""
    proven = [(THEOREM, t.label, t.settings) for t in theorems(name, problem, known.budget)]
    return [(DEFAULT, DEFAULT, METHODS[name].default(known)), *proven]


def _targets(found: Sequence[Sequence[MethodRun]], known: Scales) -> tuple[float, ...]:
    """Round numbers a little above multiples of the best median at the budget, as far as they lie below the start.

    And one that about half of the algorithms reach: those near the best tell only the few best from each other.
    `found` has all settings of each algorithm. A target that the start already meets says only what a first step costs;
    there is none if everybody diverged.
    """
    medians = [[estimate(m.paths.final(known.budget), 0.5).value for m in each] for each in found]
    finals = sorted(min(each, default=np.inf) for each in medians)
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
        if not isinstance(algorithm.cost(steps, self.size), int):
            steps = int(np.ceil(SLACK * steps))
        exact = self.size is None

        def heed(done: int, steps: int) -> None:
            if stop.is_set():
                raise CancelledError

        with jax.enable_x64(True):
            x = self.problem.start()
            trace = run(
                self.problem, algorithm, x, steps, seeds, records=RECORDS, average=exact, threads=1, progress=heed
            )
        diverged = int(np.count_nonzero(trace.diverged_at))
        return MethodRun(settings, steps, diverged, int(trace.cost.sum()), paths(trace))

    def tuned(self, found: dict[str, list[MethodRun]], targets: Sequence[float]) -> list[Row]:
        """The best setting of every algorithm for every goal, run with the seeds of the comparison."""
        chosen = {name: _choose(tried, (None, *targets), self.request.budget) for name, tried in found.items()}
        again = self.measure("tuned", {n: [s for s, _ in picks] for n, picks in chosen.items()}, self.seeds)
        return [
            Row(self.problem_spec, name, TUNED, _label(goals), measured, None, goals, sum(m.cost for m in found[name]))
            for name, picks in chosen.items()
            for (_, goals), measured in zip(picks, again[name], strict=True)
        ]


def _choose(
    tried: Sequence[MethodRun], goals: Sequence[float | None], budget: int
) -> list[tuple[Settings, tuple[float | None, ...]]]:
    """Settings with the goals that they are the best for: the smallest median, then the smallest average at the end."""
    finals = [estimate(m.paths.final(budget), 0.5).value for m in tried]
    best: dict[int, list[float | None]] = {}
    for goal in goals:
        medians = [estimate(seed_scores(m, goal, budget), 0.5).value for m in tried]
        best.setdefault(min(range(len(tried)), key=lambda i: (medians[i], finals[i])), []).append(goal)
    return [(tried[i].settings, tuple(found)) for i, found in best.items()]


def _label(goals: Sequence[float | None]) -> str:
    return "tuned for " + ", ".join("the budget" if goal is None else f"{goal:g}" for goal in goals)
