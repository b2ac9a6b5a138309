"""The only loop in Python: batches of seeds, progress, checkpoints, and the result as numpy arrays."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from normstorm._shared import checkpoint as storage
from normstorm._shared import validate
from normstorm._shared.jax_internals import abstract
from normstorm.algorithms.core import Algorithm
from normstorm.problems.check import as_point, check_problem
from normstorm.problems.protocol import Sampled

from .execution import Execution, platform, prepare, start, widths
from .loop import Batch
from .results import Trace

Tree = Any
LONGEST = 2**30
PATIENCE = 0.5  # seconds between two signs of life
GROWTH = 8  # at most so many times as many steps in the next call
_whole = partial(validate.whole, "run", least=1, most=LONGEST)


def run(
    problem: Sampled,
    algorithm: Algorithm,
    x0: Tree,
    steps: int,
    seeds: int | Sequence[int],
    *,
    records: int = 64,
    candidates: int = 8,
    average: bool = True,
    width: int | None = None,
    threads: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    progress_steps: int | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_seconds: float = 30.0,
    fingerprint: str = "",
) -> Trace:
    """Run `algorithm` on `problem` from x_1 = x0 for `steps` steps, once for every seed.

    seeds           a sequence of integers in [0, 2^64), or n for 0..n-1
    records         at most so many log-spaced steps are recorded, the first one and the last one among them (if two)
    candidates      iterates kept, one uniformly random in each of so many slices of 1..T
    average         False: grad F is asked at recorded steps only, and mean and minimum over all steps are not known
    width           seeds of a batch, one of the machine's width classes; if not given, that of the checkpoint, or the
                    one that suits the number of seeds. `Trace.width` says which it was
    threads         batches of seeds run at once; the number of usable cores if not given, one on a GPU
    progress        called as progress(done, steps) after every `progress_steps` steps, rounded up to whole chunks;
                    after about half a second if not given
    checkpoint      resumed if it exists, written every `checkpoint_seconds`, when interrupted and at the end
    fingerprint     the caller's name for the problem: a checkpoint with another one is refused

    A seed's numbers depend on problem, algorithm, x0, steps, width and itself alone: not on other seeds, progress,
    threads or interruptions. With another width they may differ in the last digit.
    """
    storage.usable("run", checkpoint)
    _check(problem, algorithm, progress, checkpoint_seconds, fingerprint)
    x, todo = as_point("run", x0, problem), validate.seed_list("run", seeds, LONGEST)
    numbers = {"steps": steps, "records": records, "candidates": candidates}
    steps, records, candidates = (_whole(name, value) for name, value in numbers.items())
    progress_steps = None if progress_steps is None else _whole("progress_steps", progress_steps)
    usual = cores() if platform() == "cpu" else 1
    threads = usual if threads is None else _whole("threads", threads)
    width = width_of(width, checkpoint)
    check_problem("run", problem, x)
    average = validate.flag("run", "average", average)
    kept: dict[str, Any] = {"records": records, "candidates": candidates, "average": average, "width": width}
    execution, batches = start(partial(prepare, problem, algorithm, x, steps, todo, **kept), x)
    keeper = None
    if checkpoint is not None:
        keeper = Keeper(checkpoint, {**execution.identity(x), "fingerprint": fingerprint}, checkpoint_seconds)
        batches = keeper.resumed(batches) if os.path.exists(checkpoint) else batches
    return execution.result(_advanced(execution, batches, threads, progress, progress_steps, keeper))


class Keeper(NamedTuple):
    """Where a run is kept, what it is, and after how many seconds it is kept again."""

    path: str | os.PathLike[str]
    identity: dict[str, Any]
    seconds: float

    def save(self, batches: list[Batch]) -> None:
        """All batches in one tree, the batch on the first axis."""
        whole = jax.tree.map(lambda *leaves: np.stack(leaves), *jax.device_get(batches))
        storage.save(self.path, whole, self.identity)

    def save_anyway(self, stop: KeyboardInterrupt, batches: list[Batch]) -> None:
        """On the way out: if it fails, the interruption carries the reason."""
        try:
            self.save(batches)
        except Exception as error:
            what = f"{type(error).__name__}: {error}"
            stop.add_note(f"run: checkpoint {self.path} could not be saved; got {what}")

    def resumed(self, batches: list[Batch]) -> list[Batch]:
        """What the file holds in place of batches of this form."""
        n = len(batches)
        like = jax.tree.map(lambda leaf: abstract((n, *leaf.shape), leaf.dtype), batches[0])
        found = storage.load(self.path, self.identity, like)
        return [jax.tree.map(lambda leaf, i=i: jnp.asarray(leaf[i]), found) for i in range(n)]


def _advanced(
    execution: Execution,
    batches: list[Batch],
    threads: int,
    progress: Callable[[int, int], None] | None,
    fixed: int | None,
    keeper: Keeper | None,
) -> list[Batch]:
    """All batches after their last step; what is there is kept on the way, at the end and when interrupted."""
    # If nobody waits for the end of a round over all batches, it is enough that no call keeps Ctrl-C waiting.
    watched = progress is not None or keeper is not None
    patience = PATIENCE * (1 if watched else -(-execution.batches // threads))
    saved = time.monotonic()
    with ThreadPoolExecutor(threads) as pool:
        spread = map if threads == 1 else partial(in_threads, pool)
        rounds = _rounds(execution, batches, spread, fixed, patience)
        try:
            for done, batches in rounds:
                if progress is not None:
                    progress(done, execution.steps)
                over = done == execution.steps or execution.ended(batches)
                if keeper is not None and (over or time.monotonic() - saved >= keeper.seconds):
                    keeper.save(batches)
                    saved = time.monotonic()
                if over:
                    break
        except KeyboardInterrupt as stop:
            if keeper is not None:
                keeper.save_anyway(stop, batches)
            raise
    return batches


def _rounds(
    execution: Execution, batches: list[Batch], spread: Callable[..., Any], fixed: int | None, patience: float
) -> Iterator[tuple[int, list[Batch]]]:
    """How far all batches are, and they: after every `fixed` steps, or as many as take so many seconds."""
    done, length = int(batches[0].t), fixed or 4 * execution.config.chunk
    while done < execution.steps:
        started = time.monotonic()
        done = min(execution.aligned(done + length), execution.steps)
        batches = list(spread(partial(execution.advance, done), batches))
        if fixed is None:
            length *= max(1, min(GROWTH, int(patience / max(time.monotonic() - started, 1e-9))))
        yield done, batches


def in_threads(pool: ThreadPoolExecutor, function: Callable[..., Any], *args: Any) -> Iterator[Any]:
    """pool.map with the caller's precision and device, which JAX keeps for each thread apart."""
    config: Any = jax.config
    double, device = jnp.zeros(()).dtype == np.float64, config.jax_default_device

    def call(*args: Any) -> Any:
        with jax.enable_x64(double), jax.default_device(device):
            return function(*args)

    return pool.map(call, *args)


def cores() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _check(problem: Any, algorithm: Any, progress: Any, checkpoint_seconds: Any, fingerprint: Any) -> None:
    validate.has_methods("run", "problem", problem, ("sample", "grad"))
    if not isinstance(algorithm, Algorithm):
        kind = type(algorithm).__name__
        raise ValueError(f"run: algorithm must be a normstorm.algorithms.Algorithm; got an object of type {kind}")
    if progress is not None and not callable(progress):
        validate.refuse("run", "progress", "a function or None", progress)
    if not (isinstance(checkpoint_seconds, float) and checkpoint_seconds == math.inf):
        validate.nonnegative("run", "checkpoint_seconds", checkpoint_seconds)
    if not isinstance(fingerprint, str):
        validate.refuse("run", "fingerprint", "a string", fingerprint)


def width_of(width: Any, checkpoint: str | os.PathLike[str] | None) -> int | None:
    """The width that was asked for, or that of an existing checkpoint."""
    classes = widths()
    if width is None:
        found = None if checkpoint is None else storage.identity_of(checkpoint).get("width")
        return found if found in classes else None
    if validate.integer(width) not in classes:
        validate.refuse("run", "width", f"one of {', '.join(map(str, classes))}, or None", width)
    return int(width)
