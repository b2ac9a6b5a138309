"""The only loop in Python: batches of seeds, progress, checkpoints, and the result as numpy arrays."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from normstorm._shared import validate
from normstorm.algorithms.core import Algorithm
from normstorm.problems.check import as_point, check_problem
from normstorm.problems.protocol import Sampled

from . import checkpoint as storage
from .execution import Execution, platform, prepare, start, widths
from .loop import Batch
from .results import Trace

Tree = Any
LONGEST = 2**30
PATIENCE = 0.5  # seconds between two signs of life
GROWTH = 8  # at most so many times as many steps in the next call


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
    x, todo = as_point("run", x0, problem), _seeds(seeds)
    for name, value in (("steps", steps), ("records", records), ("candidates", candidates)):
        _whole(name, value)
    if progress_steps is not None:
        _whole("progress_steps", progress_steps)
    usual = cores() if platform() == "cpu" else 1
    threads = usual if threads is None else _whole("threads", threads)
    width = _width(width, checkpoint)
    check_problem("run", problem, x)
    kept: dict[str, Any] = {"records": int(records), "candidates": int(candidates)}
    average = validate.flag("run", "average", average)
    prepared = partial(prepare, problem, algorithm, x, int(steps), todo, width=width, average=average, **kept)
    execution, batches = start(prepared, x)
    identity = {} if checkpoint is None else {**execution.identity(x), "fingerprint": fingerprint}
    with ThreadPoolExecutor(threads) as pool:
        spread = map if threads == 1 else partial(_spread, pool)
        batches = _resume(checkpoint, identity, batches) or batches
        # If nobody waits for the end of a round over all batches, it is enough that no call keeps Ctrl-C waiting.
        watched = progress is not None or checkpoint is not None
        patience = PATIENCE * (1 if watched else -(-execution.batches // threads))
        saved = time.monotonic()
        rounds = _rounds(execution, batches, spread, progress_steps, patience)
        try:
            for done, batches in rounds:
                if progress is not None:
                    progress(done, execution.steps)
                now = time.monotonic()
                over = done == steps or execution.ended(batches)
                if checkpoint is not None and (now - saved >= checkpoint_seconds or over):
                    storage.save(checkpoint, _flat(batches), identity)
                    saved = now
                if over:
                    break
        except KeyboardInterrupt as stop:
            if checkpoint is not None:
                _save_anyway(stop, checkpoint, batches, identity)
            raise
    return execution.result(batches)


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


def _spread(pool: ThreadPoolExecutor, function: Callable[..., Any], *args: Any) -> Iterator[Any]:
    """pool.map with the caller's precision and device, which JAX keeps for each thread apart."""
    config: Any = jax.config
    double, device = jnp.zeros(()).dtype == np.float64, config.jax_default_device

    def call(*args: Any) -> Any:
        with jax.enable_x64(double), jax.default_device(device):
            return function(*args)

    return pool.map(call, *args)


def _flat(batches: list[Batch]) -> dict[str, np.ndarray]:
    """All batches in one dictionary of arrays, the batch on the first axis."""
    stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *jax.device_get(batches))
    return {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(stacked)}


def _save_anyway(
    stop: KeyboardInterrupt, path: str | os.PathLike[str], batches: list[Batch], identity: dict[str, Any]
) -> None:
    """Save on the way out; the interruption goes on even if that fails, and carries the reason."""
    try:
        storage.save(path, _flat(batches), identity)
    except Exception as error:
        stop.add_note(f"run: checkpoint {path} could not be saved; got {type(error).__name__}: {error}")


def _resume(path: str | os.PathLike[str] | None, identity: dict[str, Any], batches: list[Batch]) -> list[Batch] | None:
    if path is None or not os.path.exists(path):
        return None
    leaves = jax.tree_util.tree_leaves_with_path(batches[0])
    names = [jax.tree_util.keystr(name) for name, _ in leaves]
    n = len(batches)
    expected = {name: ((n, *leaf.shape), leaf.dtype.str) for name, (_, leaf) in zip(names, leaves, strict=True)}
    arrays = storage.load(path, identity, expected)
    structure = jax.tree.structure(batches[0])
    return [jax.tree.unflatten(structure, [jnp.asarray(arrays[name][i]) for name in names]) for i in range(n)]


def cores() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _check(problem: Any, algorithm: Any, progress: Any, checkpoint_seconds: Any, fingerprint: Any) -> None:
    validate.has_methods("run", "problem", problem, ("sample", "grad"))
    if not isinstance(algorithm, Algorithm):
        kind = type(algorithm).__name__
        raise ValueError(f"run: algorithm must be a normstorm.algorithms.Algorithm; got an object of type {kind}")
    if progress is not None and not callable(progress):
        raise ValueError(f"run: progress must be a function or None; got progress={progress!r}")
    if not (isinstance(checkpoint_seconds, float) and checkpoint_seconds == math.inf):
        validate.nonnegative("run", "checkpoint_seconds", checkpoint_seconds)
    if not isinstance(fingerprint, str):
        raise ValueError(f"run: fingerprint must be a string; got fingerprint={fingerprint!r}")


def _whole(name: str, value: Any, least: int = 1, most: int = LONGEST) -> int:
    return validate.whole("run", name, value, least, most)


def _width(width: Any, checkpoint: str | os.PathLike[str] | None) -> int | None:
    """The width that was asked for, or that of an existing checkpoint."""
    classes = widths()
    if width is None:
        found = None if checkpoint is None else storage.identity_of(checkpoint).get("width")
        return found if found in classes else None
    if validate.integer(width) not in classes:
        names = ", ".join(map(str, classes))
        raise ValueError(f"run: width must be one of {names}, or None; got width={width!r}")
    return int(width)


def _seeds(seeds: Any) -> list[int]:
    if hasattr(seeds, "item") and np.ndim(seeds) == 0:
        seeds = seeds.item()
    if not isinstance(seeds, Iterable):
        return list(range(_whole("seeds", seeds)))
    todo = [_whole("seeds", s, 0, 2**64 - 1) for s in seeds]
    if not todo or len(set(todo)) < len(todo):
        raise ValueError(f"run: seeds must be different integers, at least one; got {len(todo)} of them")
    return todo
