"""A run's fixed part: the compiled programs, what each group of lanes gets, and the result as numpy arrays."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from normstorm.algorithms.core import Algorithm, State
from normstorm.random import seed_words

from .gpu import kernel as chip
from .lanes import NEVER, Group, Kept, Lane, Records, Seen
from .layout import Calendar, Changing, calendar, changing, choose, program_shape
from .loop import advance
from .program import Shape, Words
from .results import Pick, Trace

Tree = Any
_CHANGES: dict[Any, Changing] = {}  # what was found out about a problem
_FOUND: dict[Any, tuple[Shape, State]] = {}  # what was found out about a program, so that it is looked at once


class Fixed:
    """A problem that JAX does not know as a pytree becomes part of the program.

    Two are the same if they are one object whose attributes have not changed in between.
    """

    def __init__(self, problem: Any) -> None:
        self.problem = problem
        self.content = _content(getattr(problem, "__dict__", {}))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Fixed) and self.problem is other.problem and self.content == other.content

    def __hash__(self) -> int:
        return id(self.problem)


class Same:
    """An object that is equal to itself alone; as long as this is kept, no other object has its identity."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)

    def __repr__(self) -> str:
        return type(self.value).__qualname__  # the same in every process


def _content(value: Any, holders: tuple[int, ...] = ()) -> Any:
    """Something that changes when an attribute is replaced, or filled with other numbers, also inside of others."""
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        return value.dtype.str, value.shape, hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()
    if isinstance(value, (int, float, complex, str, bytes, type(None), np.generic)):
        return type(value), repr(value)
    if id(value) in holders:
        return Same(value)
    inside = (*holders, id(value))
    if isinstance(value, (list, tuple)):
        return type(value), [_content(v, inside) for v in value]
    if isinstance(value, dict):
        return type(value), [(Same(k) if not isinstance(k, str) else k, _content(v, inside)) for k, v in value.items()]
    if isinstance(value, jax.Array) or callable(value) or not hasattr(value, "__dict__"):
        return Same(value)
    return Same(value), [(name, _content(v, inside)) for name, v in vars(value).items()]


def kinds(words: Words) -> tuple[type, ...]:
    """The classes at work."""
    algorithm = words.algorithm
    return tuple(map(type, (words.problem, algorithm.estimator, algorithm.geometry, algorithm.schedule)))


@cache
def program(shape: Shape, fixed: Fixed | None, kinds: tuple[type, ...]) -> Any:
    """All steps, compiled once for all horizons, seeds and values of the algorithm's numbers.

    Arguments of single groups are stacked; the groups are served one after the other. `kinds` keeps classes apart
    whose pytrees look the same to JAX.
    """

    def steps(words: Words, stop: Any, dates: jax.Array, groups: Group, live: jax.Array) -> Any:
        words = words if fixed is None else words._replace(problem=fixed.problem)
        if shape.chip:
            return chip.advance(words, shape, stop, dates, groups)
        return jax.lax.map(lambda g: advance(words, shape, stop, dates, *g), (groups, live))

    # Half as many instructions where the machine has 512-bit registers, no change elsewhere.
    options = {"xla_cpu_prefer_vector_width": 512} if jax.default_backend() == "cpu" else {}
    return jax.jit(steps, compiler_options=options)


@dataclass(frozen=True)
class Job:
    """Everything that is fixed before the first step."""

    words: Words
    shape: Shape
    form: State
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
        """The first end of a block at or after t."""
        return -(-t // self.shape.block) * self.shape.block

    @property
    def problem_name(self) -> str:
        problem = self.words.problem if self.fixed is None else self.fixed.problem
        return str(getattr(problem, "name", type(problem).__name__))

    def _mine(self, call: int) -> slice:
        return slice(call * self.width, (call + 1) * self.width)

    def begin(self, x: Tree) -> list[Group]:
        """All calls with their seeds at x, before step 1."""
        nobody = jax.device_put(self._nobody(x))
        return [self._seated(nobody, call) for call in range(self.calls)]

    def _seated(self, group: Group, call: int) -> Group:
        """The group with the seeds of a call, and the steps at which their iterates are taken."""
        W, G, axis = self.shape.lanes, self.shape.groups, self.shape.axis
        mine = self._mine(call)
        here = len(self.seeds[mine])
        keys = np.zeros((G * W, 2), np.uint32)
        keys[:here] = seed_words(self.seeds[mine])
        steps = np.full((self.candidates, G * W), NEVER, np.int32)
        steps[: self.picks.shape[1], :here] = self.picks[mine].T
        seed: Any = np.moveaxis(keys.reshape(G, W, 2), 1, 1 if axis == 0 else 2)
        rows: Any = steps.reshape(self.candidates, G, W).swapaxes(0, 1)
        return group._replace(lanes=group.lanes._replace(seed=seed), kept=group.kept._replace(step=rows))

    def _nobody(self, x: Tree) -> Group:
        """What is the same for every call."""
        W, G, axis = self.shape.lanes, self.shape.groups, self.shape.axis
        dtype = jax.tree.leaves(x)[0].dtype

        def laid(value: Any, *before: int) -> Any:
            """The same in every lane."""
            array = np.asarray(value)
            lanes = np.expand_dims(array, tuple(range(1 + len(before))) + ((1 + len(before),) if axis == 0 else (-1,)))
            shape = (W, *array.shape) if axis == 0 else (*array.shape, W)
            return np.ascontiguousarray(np.broadcast_to(lanes, (G, *before, *shape)))

        def table(value: Any) -> Any:
            return laid(value, self.records + 1)

        zero, count = np.zeros((), dtype), np.zeros((), np.uint32)
        unknown, infinite = zero + dtype.type(np.nan), zero + dtype.type(np.inf)
        start = jax.tree.map(laid, x)
        state = jax.tree.map(lambda leaf: laid(np.zeros(leaf.shape, leaf.dtype)), self.form)._replace(x=start)
        number, step = laid(zero), laid(np.zeros((), np.int32))
        seen = Seen(number, number, laid(infinite), laid(count), laid(count), step, laid(infinite), step, start)
        taken = jax.tree.map(lambda leaf: laid(np.zeros_like(leaf), self.candidates), x)
        records = Records(*(table(unknown) for _ in range(4)), *(table(count) for _ in range(2)))
        nobody: Any = ()
        now: Any = np.zeros(G, np.int32)
        return Group(Lane(nobody, state, seen), Kept(taken, nobody), records, now, now)

    def advance(self, stop: int, call: int, group: Group) -> Group:
        here = len(self.seeds[self._mine(call)])
        live = np.clip(here - self.shape.lanes * np.arange(self.shape.groups), 0, self.shape.lanes).astype(np.int32)
        steps = program(self.shape, self.fixed, self.kinds)
        done: Group = steps(self.words, np.int32(stop), self.dates.dates(self.records), group, live)
        done.t.block_until_ready()
        return done

    def identity(self, x: Tree) -> dict[str, Any]:
        """What a checkpoint must agree with."""
        leaves, structure = jax.tree.flatten((self.words.algorithm, x))
        held = repr(self.fixed.content if self.fixed else ())
        seeds = hashlib.sha256(seed_words(self.seeds).tobytes()).hexdigest()
        return {
            "algorithm": self.words.algorithm.name,
            "algorithm and x0": _digest(str(structure), leaves),
            "problem": self.problem_name,
            "problem's numbers": _digest(held, jax.tree.leaves(self.words.problem)),
            "steps": self.steps,
            "seeds": f"{len(self.seeds)} with sha256 {seeds}",
            "program": str(tuple(self.shape)),
        }

    def compiled(self, x: Tree) -> tuple[Job, list[Group]]:
        """This job, with an ordinary loop where one kernel cannot hold the operations after all, and its groups."""
        shape, groups = self.shape, self.begin(x)
        if not (shape.kernel or shape.drawing or shape.chip):
            return self, groups
        try:
            self.advance(0, 0, groups[0])
            return self, groups
        except Exception as error:
            # The problem's own errors come up again without a kernel, and XLA has only this one for what it cannot do.
            if not (shape.chip or isinstance(error, jax.errors.JaxRuntimeError)):
                raise
            if shape.chip:
                shape = shape._replace(chip=False, groups=1)
            else:  # leave out what it may have been, one after the other
                less = next(name for name in ("marks", "drawing", "kernel") if getattr(shape, name))
                shape = shape._replace(**{less: False})
            _FOUND[self.key] = shape, self.form
            return replace(self, shape=shape).compiled(x)

    def result(self, calls: list[Group]) -> Trace:
        """Everything on the host, lanes turned into rows, padding cut off."""
        n, axis = len(self.seeds), self.shape.axis
        host = jax.tree.map(np.asarray, calls)

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


def _digest(text: str, leaves: list[Any]) -> str:
    content = hashlib.sha256(text.encode())
    for leaf in leaves:
        is_key = jnp.issubdtype(jnp.result_type(leaf), jax.dtypes.prng_key)
        array = np.asarray(jax.random.key_data(leaf) if is_key else leaf)
        content.update(f"{array.dtype.str} {array.shape}".encode() + array.tobytes())
    return content.hexdigest()


def _forms(leaves: list[Any]) -> tuple[Any, ...]:
    """Shapes and types, which are what a program depends on."""
    return tuple((jnp.shape(v), str(jnp.result_type(v))) for v in leaves)


def _changes(problem: Any, x: Tree, fixed: Fixed | None) -> Changing:
    """`changing`, once for every problem."""
    leaves, structure = jax.tree.flatten((() if fixed else problem, x))
    key = (fixed, type(problem), structure, _forms(leaves))
    if key not in _CHANGES:
        _CHANGES[key] = changing(problem, x)
    return _CHANGES[key]


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
    key = (average, fixed, kinds(words), structure, _forms(leaves))
    if key not in _FOUND:
        _FOUND[key] = program_shape(problem, algorithm, x, average, partial(_changes, problem, x, fixed))
    shape, form = _FOUND[key]
    if shape.chip:  # as few calls as memory allows, of equal length
        needed = -(-len(seeds) // shape.lanes)
        calls = -(-needed // shape.groups)
        shape = shape._replace(groups=-(-needed // calls))
    dates = calendar(steps, records, candidates)
    picks, chosen = choose(seeds, dates.bounds)
    return Job(words, shape, form, steps, seeds, dates, picks, chosen, records, candidates, fixed, key)
