"""A run's fixed part: the compiled programs, what each group of lanes gets, and the result as numpy arrays."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..random import seed_words
from ..results import Pick, Trace
from . import chip
from .core import Algorithm
from .lanes import NEVER, Group, Kept, Records, Shape, Words, advance, begin
from .layout import Calendar, calendar, choose, program_shape

Tree = Any
_SHAPES: dict[Any, Shape] = {}  # what was found out about a program, so that it is looked at once


class Fixed:
    """A problem that JAX does not know as a pytree becomes part of the program.

    Two are the same if they are one object whose attributes have not changed in between.
    """

    def __init__(self, problem: Any) -> None:
        self.problem = problem
        self.content = {name: _content(value) for name, value in getattr(problem, "__dict__", {}).items()}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Fixed) and self.problem is other.problem and self.content == other.content

    def __hash__(self) -> int:
        return id(self.problem)


def _content(value: Any) -> Any:
    """Something that changes when an attribute is replaced, or filled with other numbers."""
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        return value.dtype.str, value.shape, hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()
    plain = isinstance(value, (int, float, complex, str, bytes, type(None)))
    return (type(value), value) if plain else id(value)


def kinds(words: Words) -> tuple[type, ...]:
    """The classes at work."""
    algorithm = words.algorithm
    return tuple(map(type, (words.problem, algorithm.estimator, algorithm.geometry, algorithm.schedule)))


@cache
def programs(shape: Shape, fixed: Fixed | None, kinds: tuple[type, ...]) -> tuple[Any, Any]:
    """Step 1 and the later steps, compiled once for all horizons, seeds and values of the algorithm's numbers.

    Arguments of single groups are stacked; the groups are served one after the other. `kinds` keeps classes apart
    whose pytrees look the same to JAX.
    """

    def known(words: Words) -> Words:
        return words if fixed is None else words._replace(problem=fixed.problem)

    def first(words: Words, x: Tree, dates: jax.Array, *groups: Any) -> Any:
        return jax.lax.map(lambda g: begin(known(words), shape, x, dates, *g), groups)

    def later(words: Words, stop: Any, dates: jax.Array, *groups: Any) -> Any:
        if shape.chip:
            return chip.advance(known(words), shape, stop, dates, groups[0])
        return jax.lax.map(lambda g: advance(known(words), shape, stop, dates, *g), groups)

    # Half as many instructions where the machine has 512-bit registers, no change elsewhere.
    options = {"xla_cpu_prefer_vector_width": 512} if jax.default_backend() == "cpu" else {}
    return jax.jit(first, compiler_options=options), jax.jit(later, compiler_options=options)


@dataclass(frozen=True)
class Job:
    """Everything that is fixed before the first step."""

    words: Words
    shape: Shape
    steps: int
    seeds: list[int]
    dates: Calendar
    picks: np.ndarray
    chosen: np.ndarray
    records: int
    candidates: int
    fixed: Fixed | None
    key: Any

    @property
    def kinds(self) -> tuple[type, ...]:
        return kinds(self.words)

    @property
    def width(self) -> int:
        """Seeds of one call."""
        return self.shape.lanes * self.shape.groups

    @property
    def calls(self) -> int:
        """Calls that serve all seeds once."""
        return -(-len(self.seeds) // self.width)

    def aligned(self, t: int) -> int:
        """The last end of a block at or after t: step 1 stands alone, blocks follow."""
        return 1 + -(-(t - 1) // self.shape.block) * self.shape.block

    @property
    def problem_name(self) -> str:
        problem = self.words.problem if self.fixed is None else self.fixed.problem
        return str(getattr(problem, "name", type(problem).__name__))

    def _mine(self, call: int) -> slice:
        return slice(call * self.width, (call + 1) * self.width)

    def begin(self, call: int, x: Tree) -> Group:
        W, G, axis = self.shape.lanes, self.shape.groups, self.shape.axis
        mine = self._mine(call)
        keys = np.zeros((G * W, 2), np.uint32)
        keys[: len(self.seeds[mine])] = seed_words(self.seeds[mine])
        steps = np.full((self.candidates, G * W), NEVER, np.int32)
        steps[: self.picks.shape[1], : len(self.seeds[mine])] = self.picks[mine].T
        unknown: Any = np.full((G, self.records + 1, W), np.nan, jax.tree.leaves(x)[0].dtype)
        count: Any = np.zeros((G, self.records + 1, W), np.uint32)

        def kept(leaf: jax.Array) -> np.ndarray:
            lanes = (W, *leaf.shape) if axis == 0 else (*leaf.shape, W)
            return np.zeros((G, self.candidates, *lanes), leaf.dtype)

        rows: Any = steps.reshape(self.candidates, G, W).swapaxes(0, 1)
        laid = np.moveaxis(keys.reshape(G, W, 2), 1, 1 if axis == 0 else 2)
        tables = Records(unknown, unknown, unknown, unknown, count, count)
        group: Group = programs(self.shape, self.fixed, self.kinds)[0](
            self.words, x, self.dates.dates(self.records), laid, Kept(jax.tree.map(kept, x), rows), tables
        )
        return group

    def advance(self, stop: int, call: int, group: Group) -> Group:
        here = len(self.seeds[self._mine(call)])
        live = np.clip(here - self.shape.lanes * np.arange(self.shape.groups), 0, self.shape.lanes).astype(np.int32)
        done: Group = programs(self.shape, self.fixed, self.kinds)[1](
            self.words, np.int32(stop), self.dates.dates(self.records), group, live
        )
        done.t.block_until_ready()
        return done

    def identity(self, x: Tree) -> dict[str, Any]:
        """What a checkpoint must agree with."""
        leaves, structure = jax.tree.flatten((self.words.algorithm, x))
        content = hashlib.sha256(str(structure).encode())
        for leaf in leaves:
            content.update(np.asarray(leaf).dtype.str.encode() + np.asarray(leaf).tobytes())
        seeds = hashlib.sha256(seed_words(self.seeds).tobytes()).hexdigest()
        return {
            "algorithm": self.words.algorithm.name,
            "algorithm and x0": content.hexdigest(),
            "problem": self.problem_name,
            "steps": self.steps,
            "seeds": f"{len(self.seeds)} with sha256 {seeds}",
            "program": str(tuple(self.shape)),
        }

    def compiled(self, first: Group, x: Tree) -> tuple[Job, Group]:
        """This job and its first group; with an ordinary loop if one kernel cannot hold its operations after all."""
        if not (self.shape.kernel or self.shape.chip):
            return self, first
        try:
            self.advance(1, 0, first)
            return self, first
        except Exception as error:
            # The problem's own errors would have come up in the first step.
            if not (self.shape.chip or isinstance(error, jax.errors.JaxRuntimeError)):
                raise
            groups = 1 if self.shape.chip else self.shape.groups
            _SHAPES[self.key] = self.shape._replace(kernel=False, chip=False, groups=groups)
            ordinary = replace(self, shape=_SHAPES[self.key])
            return ordinary, ordinary.begin(0, x)

    def result(self, calls: list[Group]) -> Trace:
        """Everything on the host, lanes turned into rows, padding cut off."""
        n, axis = len(self.seeds), self.shape.axis
        host = jax.device_get(calls)

        def rows(part: Any, before: int = 0) -> Any:
            """Join all groups' lanes into a first axis; `before` axes stand between a group and its lanes' layout."""

            def join(*leaves: np.ndarray) -> np.ndarray:
                whole = np.moveaxis(np.concatenate(leaves), axis if axis < 0 else 1 + before, 1)
                return whole.reshape(whole.shape[0] * whole.shape[1], *whole.shape[2:])[:n]

            return jax.tree.map(join, *[part(call) for call in host])

        def tables(part: Any) -> np.ndarray:
            whole = np.concatenate([part(call) for call in host]).swapaxes(1, 2)
            return whole.reshape(-1, whole.shape[2])[:n, : self.dates.record_steps.size]

        def count(low: np.ndarray, high: np.ndarray) -> np.ndarray:
            return low.astype(np.int64) + (high.astype(np.int64) << 32)

        seen = rows(lambda g: g.lanes.seen)
        state = rows(lambda g: g.lanes.state)
        kept = jax.tree.map(lambda leaf: leaf[:, : self.picks.shape[1]], rows(lambda g: g.kept.x, 1))
        diverged = seen.diverged > 0
        mean = (seen.total.astype(np.float64) - seen.lost) / self.steps
        every = np.arange(n)
        return Trace(
            algorithm=self.words.algorithm.name,
            problem=self.problem_name,
            seeds=np.array(self.seeds, np.uint64),
            steps=self.steps,
            diverged_at=seen.diverged,
            mean_grad_norm=np.where(diverged, np.inf, mean if self.shape.average else np.nan),
            min_grad_norm=seen.least if self.shape.average else np.full(n, np.nan),
            cost=count(seen.cost, seen.carry),
            record_steps=self.dates.record_steps,
            grad_norm=tables(lambda g: g.records.grad_norm),
            running_mean=tables(lambda g: g.records.mean),
            value=tables(lambda g: g.records.value),
            error=tables(lambda g: g.records.error),
            record_cost=count(tables(lambda g: g.records.cost), tables(lambda g: g.records.carry)),
            last=state.x,
            uniform=Pick(self.picks[every, self.chosen], jax.tree.map(lambda leaf: leaf[every, self.chosen], kept)),
            smallest=Pick(seen.best_step, seen.best_x),
            candidates=Pick(self.picks, kept),
            estimate=state.m,
        )


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
) -> Job:
    """Decide everything that does not need a step."""
    fixed = Fixed(problem) if jax.tree_util.all_leaves([problem]) else None
    words = Words(problem if fixed is None else (), algorithm)
    leaves, structure = jax.tree.flatten((words, x))
    key = (average, fixed, kinds(words), structure, tuple((jnp.shape(v), str(jnp.result_type(v))) for v in leaves))
    if key not in _SHAPES:
        _SHAPES[key] = program_shape(problem, algorithm, x, average)
    shape = _SHAPES[key]
    if shape.chip:  # as few calls as memory allows, of equal length
        needed = -(-len(seeds) // shape.lanes)
        calls = -(-needed // shape.groups)
        shape = shape._replace(groups=-(-needed // calls))
    dates = calendar(steps, records, candidates)
    picks, chosen = choose(seeds, dates.bounds)
    return Job(words, shape, steps, seeds, dates, picks, chosen, records, candidates, fixed, key)
