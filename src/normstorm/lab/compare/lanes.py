"""Settings of one algorithm side by side: the lanes of a batch, which all have the same seeds.

A seed's samples do not depend on the setting, so they are drawn once for all lanes, and one compiled program with
longer loops serves them all. A lane's numbers are those of the setting's own run, but for the last digits.

Lanes may end at different steps, if what a step costs is decided on the way: all go on from end to end, and each is
handed out as it is at its own. Its path is that of its own run, its records are at other steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from operator import itemgetter
from threading import Lock
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from normstorm._shared import validate
from normstorm._shared.jax_internals import compiler_options
from normstorm._shared.pytrees import Fixed, bytes_of
from normstorm.algorithms.core import Algorithm
from normstorm.engine.batches import SeedBatches
from normstorm.engine.execution import Execution, platform, prepare
from normstorm.engine.loop import Batch, ExecutionConfig, advance
from normstorm.engine.recording import MEASURED, Recorder, RecordSchedule, SavedIterates
from normstorm.engine.results import Trace
from normstorm.problems.check import as_point, check_problem

FEW = 512  # bytes of x up to which a quicker compilation pays: the search is short beside what its programs take
LANES = 4  # of a batch: with fewer, samples are drawn more often; with more, states leave the nearer memory
LONGER = 4  # times as many steps as the first part has, at most about, if an end is decided on the way
NEAR = 2**18  # bytes of the states of all lanes, or of their products with the rows of a problem
Tree = Any
# What all lanes share: the seeds, the step, and when something is written down.
AXES = Batch(None, 0, Recorder(0, 0, SavedIterates(0, None), None), None)  # type: ignore[arg-type]


@cache
def _program(config: ExecutionConfig, fixed: Fixed | None, classes: tuple[type, ...]) -> Any:
    """`engine.execution.program` for lanes."""

    def steps(problem: Any, algorithms: Algorithm, stop: Any, schedule: RecordSchedule, lanes: Batch) -> Batch:
        problem = problem if fixed is None else fixed.problem

        def lane(algorithm: Algorithm, batch: Batch) -> Batch:
            return advance(problem, algorithm, config, stop, schedule, batch)

        moved: Batch = jax.vmap(lane, (0, AXES), AXES)(algorithms, lanes)
        return moved

    return jax.jit(steps, compiler_options=compiler_options(config.wide, config.quick, whole=True))


@cache
def _compiling(*program: Any) -> Lock:
    """One for every program, or several that nobody would mix up."""
    return Lock()


def nameless(algorithm: Algorithm) -> Algorithm:
    """Algorithms of the same words have one program."""
    return replace(algorithm, name="")


def room(problem: Any, algorithm: Algorithm, x: Tree, **kept: Any) -> int:
    """Lanes of such an algorithm that fit into the nearer memory, LANES at most. A GPU has one.

    `kept` are records, candidates, average and width.
    """
    if platform() != "cpu":
        return 1
    execution = prepare(problem, algorithm, x, 1, [0], **kept)
    rows = validate.integer(getattr(problem, "size", None)) or 1
    each = execution.config.width * max(bytes_of(execution.form), 8 * rows)
    return max(1, min(LANES, NEAR // each))


@dataclass(frozen=True)
class LaneExecution(Execution):
    """An execution whose algorithm has a number for every lane; lanes beyond the settings repeat the last one."""

    settings: tuple[Algorithm, ...]
    lanes: int
    program = staticmethod(_program)

    @cached_property
    def numbers(self) -> Algorithm:
        filled = [*self.settings, *(self.settings[-1],) * (self.lanes - len(self.settings))]
        dtype = jax.tree.leaves(self.form.x)[0].dtype
        numbers: Algorithm = jax.tree.map(lambda *leaves: jnp.asarray(np.stack(leaves), dtype), *filled)
        return nameless(numbers)

    def compiled(self, batch: Batch) -> None:
        """Once: a second thread that wants the same program waits for it."""
        with _compiling(self.config, jax.tree.structure(self.numbers)):
            self.advance(0, batch)

    def begin(self, x: Tree) -> list[Batch]:
        return [_each(lambda leaf: jnp.broadcast_to(leaf, (self.lanes, *leaf.shape)), b) for b in super().begin(x)]

    def results(self, batches: list[Batch]) -> list[Trace]:
        """One for every setting."""
        kept = jax.device_get(batches)
        return [
            replace(self, algorithm=algorithm).result([_each(itemgetter(i), batch) for batch in kept])
            for i, algorithm in enumerate(self.settings)
        ]


class LaneBatches(SeedBatches):
    """Seeds of all lanes on their way."""

    execution: LaneExecution

    def __init__(self, execution: LaneExecution, x: Tree) -> None:
        self.execution, self.batches, self.threads = execution, execution.begin(x), 1
        execution.compiled(self.batches[0])

    def traces(self, stop: int, progress: Callable[[int, int], None]) -> list[Trace]:
        """Of all settings, once step `stop` is done."""
        for done in self.rounds(stop):
            progress(done, stop)
        return self.execution.results(self.batches)

    def lengthened(self, ends: Sequence[int], progress: Callable[[int, int], None]) -> list[Trace]:
        """Of every setting at its own end, which is recorded; no end lies before the steps that are done.

        Steps in between are recorded at places that do not depend on the ends of others.
        """
        before = self.execution
        dates, found = before.schedule.record_steps, dict[int, Trace]()
        free = before.records - dates.size - LANES
        between = np.rint(np.geomspace(before.steps, LONGER * before.steps, max(free, 0) + 1)).astype(np.int64)
        schedule = before.schedule._replace(record_steps=np.unique([*dates, *between, *ends]))
        for end in sorted(set(ends)):
            self.execution = replace(before, steps=end, schedule=schedule)
            own = [*dates, *between, end]
            traces = self.traces(end, progress)
            found |= {i: _recorded(traces[i], own) for i, last in enumerate(ends) if last == end}
        return [found[i] for i in range(len(ends))]


def _recorded(trace: Trace, steps: Sequence[int]) -> Trace:
    """With these of its records alone."""
    kept = np.isin(trace.record_steps, steps)
    rows = {name: getattr(trace, name)[:, kept] for name in (*MEASURED, "record_cost")}
    return replace(trace, record_steps=trace.record_steps[kept], **rows)


def _each(change: Callable[[Any], Any], batch: Batch) -> Batch:
    """Another batch: what belongs to lanes is changed, what they share is not."""
    kept, same = batch.recorder, partial(jax.tree.map, change)
    saved = SavedIterates(same(kept.saved.x), kept.saved.step)
    recorder = Recorder(same(kept.stats), same(kept.records), saved, kept.row)
    return batch._replace(state=same(batch.state), recorder=recorder)


def run_lanes(
    problem: Any,
    algorithms: Sequence[Algorithm],
    x0: Tree,
    steps: int,
    seeds: Sequence[int],
    *,
    lanes: int,
    progress: Callable[[int, int], None],
    end: Callable[[Trace], int] | None = None,
    records: int,
    **kept: Any,
) -> list[Trace]:
    """What `engine.run` returns for each of these algorithms, which differ in numbers alone; `lanes` go side by side.

    `kept` are candidates, average and width. With `end` a setting goes on after these steps, to the step that `end`
    makes of its trace.
    """
    x = as_point("run", x0, problem)
    check_problem("run", problem, x)
    first = records if end is None else records - records // 4  # the rest is for steps that are decided on the way
    plain = prepare(problem, algorithms[0], x, steps, list(seeds), records=first, chip=False, **kept)
    config = plain.config._replace(quick=bytes_of(x) <= FEW)
    fixed, found = vars(plain) | {"config": config, "records": records}, []
    for i in range(0, len(algorithms), lanes):
        batches = LaneBatches(LaneExecution(**fixed, settings=tuple(algorithms[i : i + lanes]), lanes=lanes), x)
        traces = batches.traces(steps, progress)
        found += traces if end is None else batches.lengthened([end(trace) for trace in traces], progress)
    return found
