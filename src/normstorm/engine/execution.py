"""A run's fixed part: the sizes of the compiled program, what each batch of seeds gets, and the result."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from normstorm._shared import validate
from normstorm._shared.hashing import content_hash
from normstorm._shared.jax_internals import compiler_options, loops_are_programs
from normstorm._shared.pytrees import Fixed, bytes_of, dimension
from normstorm.algorithms.core import Algorithm, State
from normstorm.problems.check import knows
from normstorm.random import THREEFRY, seed_words

from . import recording
from .gpu import kernel as on_chip
from .loop import Batch, ExecutionConfig, advance
from .recording import MEASURED, NEVER, Recorder, Records, RecordSchedule, RunningStats, SavedIterates
from .results import Pick, Trace

Tree = Any
# Seeds of a batch: the width classes. A GPU's are a little above round numbers of seeds, and made of whole warps.
WIDTHS = {"cpu": (1, 8, 32, 128, 512), "gpu": (1, 32, 256, 1024, 10_240, 102_400)}


class Limits(NamedTuple):
    """Where a machine's batches and chunks end."""

    overhead: int  # what a step costs beside its arithmetic, in numbers of x
    near: int  # bytes of a batch's x, or of its samples of a step: more would leave the core's nearest memory
    table: int  # and of its products with all rows of a problem
    chunk: int  # steps of a chunk
    room: int  # and bytes of its iterates
    products: int  # and of its points with a problem's rows


LIMITS = {
    "cpu": Limits(overhead=128, near=2**16, table=2**18, chunk=64, room=2**23, products=2**22),
    "gpu": Limits(overhead=2**21, near=2**26, table=2**62, chunk=256, room=2**31, products=2**30),
}
ALONE = 2**11  # bytes of x and of a step's samples up to which one seed on a CPU asks a chunk's exact gradients at once
REGISTER = 64  # bytes of the widest; many rows that are shorter are better gathered by narrower ones
LARGE_SAMPLES = 2**22  # bytes of a batch's samples of a step that fill a GPU

_forms: dict[Any, tuple[State, Tree, tuple[int, int] | None]] = {}  # what was found out about problem and algorithm


@cache
def program(config: ExecutionConfig, fixed: Fixed | None, classes: tuple[type, ...]) -> Any:
    """All steps of a batch, compiled once for all horizons, seeds and values of the algorithm's numbers.

    `classes` keeps those apart whose pytrees look the same to JAX.
    """

    go = on_chip.advance if config.on_chip else advance

    def steps(problem: Any, algorithm: Algorithm, stop: Any, schedule: RecordSchedule, batch: Batch) -> Batch:
        problem = problem if fixed is None else fixed.problem
        return go(problem, algorithm, config, stop, schedule, batch)

    return jax.jit(steps, compiler_options=compiler_options(config.wide, config.quick))


def platform() -> str:
    """Which limits and width classes hold on this machine."""
    return "cpu" if jax.default_backend() == "cpu" else "gpu"


def widths() -> tuple[int, ...]:
    """The width classes of this machine."""
    return WIDTHS[platform()]


def width_class(seeds: int, numbers: int, rows: int, largest: int) -> int:
    """The width of batches for so many seeds: the one that costs least, about.

    x has so many numbers, the problem so many rows, and the larger of x and a step's samples so many bytes. Rows matter
    on a GPU, too, where seeds that are not there cost as much as others.
    """
    limits = LIMITS[platform()]
    small, *others = widths()
    possible = [small, *(w for w in others if w * largest <= limits.near and 8 * w * rows <= limits.table)]
    each = numbers if platform() == "cpu" else numbers * (1 + rows // 32)
    return min(possible, key=lambda w: -(-seeds // w) * (limits.overhead + w * each))


def _looked_at(problem: Any, algorithm: Algorithm, x: Tree, key: Any) -> tuple[State, Tree, tuple[int, int] | None]:
    """The forms of the state and of one step's samples, and the costs of steps if they are known beforehand."""
    if key not in _forms:
        asked: list[Any] = []

        def steps(words: jax.Array) -> tuple[State, Tree]:
            samples = algorithm.draw(problem, jax.random.wrap_key_data(words, impl=THREEFRY))
            state, cost = algorithm.first(problem, x, samples)
            after, later = algorithm.step(problem, state, samples, 2)
            asked.extend((cost, later))
            return after, samples

        form, samples = jax.eval_shape(steps, np.zeros(2, np.uint32))
        known = all(isinstance(cost, int) for cost in asked)
        if known and max(asked) >= 2**32:
            raise ValueError(f"run: a step must ask fewer than 2**32 sample gradients; got {max(asked)}")
        _forms[key] = form, samples, (asked[0], asked[1]) if known else None
    return _forms[key]


@dataclass(frozen=True)
class Execution:
    """Everything that is fixed before the first step."""

    problem: Any
    algorithm: Algorithm
    config: ExecutionConfig
    form: State
    steps: int
    seeds: list[int]
    schedule: RecordSchedule
    picks: np.ndarray
    chosen: np.ndarray
    records: int
    candidates: int
    fixed: Fixed | None
    program = staticmethod(program)

    @property
    def numbers(self) -> Algorithm:
        return self.algorithm

    @property
    def problem_name(self) -> str:
        return str(getattr(self.problem, "name", type(self.problem).__name__))

    def begin(self, x: Tree) -> list[Batch]:
        """All batches with their seeds at x, before step 1."""
        W, n, dtype = self.config.width, len(self.seeds), jax.tree.leaves(x)[0].dtype

        def everywhere(value: Any, *before: int) -> Any:
            return np.broadcast_to(np.asarray(value), (*before, W, *np.shape(value)))

        start, step, count, rows = jax.tree.map(everywhere, x), np.int32(0), np.uint32(0), self.records + 1
        state = jax.tree.map(lambda leaf: everywhere(np.zeros(leaf.shape, leaf.dtype)), self.form)._replace(x=start)
        infinite = everywhere(dtype.type(np.inf))
        counted, first = (everywhere(count),) * 2, (infinite, everywhere(step), start)
        sums = everywhere(np.zeros(3, dtype))
        stats: Any = RunningStats(sums, sums, infinite, *counted, everywhere(step), start, *first)
        records: Any = Records(everywhere(dtype.type(np.nan), rows, len(MEASURED)), everywhere(count, rows, 2))
        saved = jax.tree.map(lambda leaf: everywhere(np.zeros_like(leaf), self.candidates), x)
        seeds = -(-n // W) * W
        words, steps = np.zeros((seeds, 2), np.uint32), np.full((self.candidates, seeds), NEVER, np.int32)
        words[:n], steps[: self.picks.shape[1], :n] = seed_words(self.seeds), self.picks.T
        own = [(words[i : i + W], steps[:, i : i + W]) for i in range(0, seeds, W)]
        (state, stats, records, saved, zero), own = jax.device_put(((state, stats, records, saved, step), own))
        return [Batch(w, state, Recorder(stats, records, SavedIterates(saved, s), zero), zero) for w, s in own]

    @property
    def padded(self) -> RecordSchedule:
        """The schedule with as many recorded steps for every T, ended by some that never come."""
        dates = self.schedule.record_steps
        filled = np.pad(dates, (0, self.records + 1 - dates.size), constant_values=NEVER)
        return RecordSchedule(filled.astype(np.int32), ())

    def advance(self, stop: int, batch: Batch) -> Batch:
        classes = tuple(map(type, (self.problem, *vars(self.algorithm).values())))
        given = () if self.fixed else self.problem, self.numbers, np.int32(stop), self.padded, batch
        done: Batch = self.program(self.config, self.fixed, classes)(*given)
        done.t.block_until_ready()
        return done

    def stopped_at(self, state: State) -> np.ndarray:
        """The step at which the observer ended a seed's run; 0: it did not."""
        if not self.config.stops:
            return np.zeros(jax.tree.leaves(state.x)[0].shape[0], np.int32)
        ended = np.asarray(jax.vmap(self.algorithm.observer.stopped)(state.observer))
        return np.where(ended, state.observer.followed.t, 0).astype(np.int32)

    def ended(self, batches: list[Batch]) -> bool:
        """Whether no seed has a step left to take."""
        over = [(self.stopped_at(b.state) > 0) | (np.asarray(b.recorder.stats.diverged) > 0) for b in batches]
        return self.config.stops and bool(np.concatenate(over)[: len(self.seeds)].all())

    def identity(self, x: Tree) -> dict[str, Any]:
        """What determines the numbers, and what a checkpoint must agree with."""
        leaves, structure = jax.tree.flatten((self.algorithm, x))
        numbers = self.fixed.content if self.fixed else content_hash(jax.tree.leaves(self.problem))
        return {
            "algorithm": self.algorithm.name,
            "algorithm and x0": content_hash(str(structure), leaves),
            "problem": self.problem_name,
            "problem's numbers": numbers,
            "steps": self.steps,
            "seeds": f"{len(self.seeds)} with sha256 {content_hash(self.seeds)}",
            "records and candidates": f"{self.records} and {self.candidates}",
            "average": self.config.average,
            "width": self.config.width,
            "small loops": "one program" if loops_are_programs() else "by operations",
        }

    def rows(self, batches: list[Batch], part: Callable[[Batch], Tree], axis: int = 0) -> Tree:
        """On the host, a row for every seed, padding cut off."""

        whole = jax.tree.map(lambda *leaves: np.concatenate(leaves, axis), *map(part, batches))
        return jax.tree.map(lambda leaf: np.moveaxis(leaf, axis, 0)[: len(self.seeds)], whole)

    def result(self, batches: list[Batch]) -> Trace:
        """Everything on the host."""
        n, rows, average = len(self.seeds), partial(self.rows, batches), self.config.average
        stats, state = rows(lambda b: b.recorder.stats), rows(lambda b: b.state)
        reached = int(batches[0].t)
        shown = int(np.sum(self.schedule.record_steps <= reached))
        measured, asked = (table[:, :shown] for table in rows(lambda b: b.recorder.records, 2))
        saved = jax.tree.map(lambda leaf: leaf[:, : self.picks.shape[1]], rows(lambda b: b.recorder.saved.x, 1))
        diverged, every = stats.diverged > 0, np.arange(n)
        stopped = self.stopped_at(state)
        if reached < self.steps:  # all seeds have ended: what was to be saved later is where they stand
            here = jax.tree.map(np.asarray, jax.vmap(self.algorithm.point)(state))
            saved = jax.tree.map(lambda kept, x: _where(self.picks > reached, x[:, None], kept), saved, here)
        last = jax.tree.map(np.asarray, jax.vmap(lambda state: self.algorithm.last(state, self.steps))(state))
        cost, taken = whole_number(stats.cost, stats.carry), np.where(stopped, stopped, self.steps)

        sums = (stats.sums.astype(np.float64) - stats.lost).T / np.stack([taken, taken, cost])
        mean, size, by_cost = np.where(diverged, np.inf, sums)
        unknown, said = np.where(diverged, np.inf, np.nan), getattr(self.algorithm.estimator, "error_bar", None)
        return Trace(
            algorithm=self.algorithm.name,
            problem=self.problem_name,
            seeds=np.array(self.seeds, np.uint64),
            steps=self.steps,
            width=self.config.width,
            diverged_at=stats.diverged,
            stopped_at=stopped,
            mean_grad_norm=mean if average else unknown,
            mean_by_cost=by_cost if average else unknown,
            mean_estimate_norm=size,
            min_grad_norm=stats.least if average else np.full(n, np.nan),
            cost=cost,
            record_steps=self.schedule.record_steps[:shown],
            **{name: measured[..., i] for i, name in enumerate(MEASURED)},
            record_cost=whole_number(asked[..., 0], asked[..., 1]),
            last=jax.tree.map(lambda h, x: _where(diverged, h, x), stats.halt, last),
            uniform=Pick(self.picks[every, self.chosen], jax.tree.map(lambda leaf: leaf[every, self.chosen], saved)),
            smallest=Pick(stats.best_step, stats.best_x),
            candidates=Pick(self.picks, saved),
            estimate=state.m,
            error_bar=np.full(n, np.nan) if said is None else np.asarray(jax.vmap(said)(state.estimator)),
            observer=state.observer,
        )


def whole_number(low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """What two words of 32 bits count."""
    return low.astype(np.int64) + (high.astype(np.int64) << 32)


def _where(which: np.ndarray, one: np.ndarray, other: np.ndarray) -> np.ndarray:
    return np.where(which.reshape(*which.shape, *(1,) * (one.ndim - which.ndim)), one, other)


def prepare(
    problem: Any,
    algorithm: Algorithm,
    x: Tree,
    steps: int,
    seeds: list[int],
    *,
    records: int,
    candidates: int,
    average: bool,
    width: int | None,
    chip: bool = True,
) -> Execution:
    """Decide everything that does not need a step; `chip` is whether the loop may be one kernel of a GPU."""
    fixed = Fixed(problem) if jax.tree_util.all_leaves([problem]) else None
    leaves, structure = jax.tree.flatten((() if fixed else problem, algorithm, x))
    forms = tuple((jnp.shape(leaf), str(jnp.result_type(leaf))) for leaf in leaves)
    form, samples, costs = _looked_at(problem, algorithm, x, (fixed, type(problem), structure, forms))
    rows, given, on_gpu = validate.integer(getattr(problem, "size", None)), width, platform() == "gpu"
    drawn, largest = bytes_of(samples), max(bytes_of(samples), bytes_of(x))
    width = width_class(len(seeds), dimension(x), rows or 1, largest) if given is None else given
    alone = width == 1 and largest <= ALONE and not on_gpu
    ahead = on_gpu and width * drawn <= LARGE_SAMPLES
    told = getattr(algorithm.observer, "target", None) is not None  # it compares its bound with the truth
    in_step = rows is None or told or not (on_gpu or alone)
    iterates = width * max(drawn if ahead else 0, 2 * bytes_of(x))
    chunk = _chunk(iterates, 1 if in_step else width * (rows or 1), costs)
    answered = algorithm.may_stop or (algorithm.watched and hasattr(algorithm.schedule, "told"))
    chunk = min(chunk, algorithm.observer.block) if answered else chunk  # what is certified changes the run
    gathers = rows is not None and bytes_of(x) < REGISTER < drawn
    config = ExecutionConfig(
        width,
        chunk,
        ahead=ahead,
        cut=not algorithm.watched,
        average=average and knows(problem, "full_grad"),
        in_step=in_step,
        costs=None if algorithm.may_stop else costs,
        stops=algorithm.may_stop,
        wide=width > 1 and not gathers,
    )
    if on_gpu and chip and not algorithm.watched:
        config = on_chip.configured(problem, algorithm, config, x, form, samples, len(seeds), given, widths())
    schedule = recording.record_schedule(steps, records, candidates)
    picks = recording.choose_iterates(seeds, schedule.bounds)
    return Execution(problem, algorithm, config, form, steps, seeds, schedule, *picks, records, candidates, fixed)


def start(prepared: Callable[..., Execution], x: Tree) -> tuple[Execution, list[Batch]]:
    """An execution and its batches, compiled; if a GPU's compiler refuses the kernel, then without it."""
    execution = prepared()
    batches = execution.begin(x)
    try:
        batches[0] = execution.advance(0, batches[0])
    except Exception:
        if not execution.config.on_chip:
            raise
        return start(partial(prepared, chip=False), x)
    return execution, batches


def _power_of_two(steps: int) -> int:
    return 1 << int(math.log2(max(1, steps)))


def _chunk(iterates: int, products: int, costs: tuple[int, int] | None) -> int:
    """Steps of a chunk, a power of two: few enough to stay near, and that their costs can be added in 32-bit words."""
    limits = LIMITS[platform()]
    steps = min(limits.chunk, limits.room // max(1, iterates), limits.products // (8 * products))
    return _power_of_two(min(steps, 2**31 // max(costs)) if costs else steps)
