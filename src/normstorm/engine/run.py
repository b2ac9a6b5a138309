"""The only loop in Python: groups of lanes, chunks of steps, progress, checkpoints, and the result as numpy arrays."""

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

from normstorm._shared import validate as checks
from normstorm._shared.pytrees import misfit
from normstorm.algorithms.core import Algorithm

from . import checkpoint as storage
from .job import Job, prepare
from .lanes import Group
from .results import Trace

Tree = Any
LONGEST = 2**30
CHUNK_SECONDS = 0.5  # between two signs of life
GROWTH = 8  # at most so many times as many steps in the next chunk


def run(
    problem: Any,
    algorithm: Algorithm,
    x0: Tree,
    steps: int,
    seeds: int | Sequence[int],
    *,
    records: int = 64,
    candidates: int = 8,
    average: bool = True,
    chunk: int | None = None,
    threads: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_seconds: float = 30.0,
    fingerprint: str = "",
) -> Trace:
    """Run `algorithm` on `problem` from x_1 = x0 for `steps` steps, once for every seed.

    seeds         a sequence of integers in [0, 2^64), or n for 0..n-1
    records       at most so many log-spaced steps are recorded, the first one and the last one among them (if two)
    candidates    iterates kept, one uniformly random in each of so many slices of 1..T
    average       False: grad F is asked at recorded steps only, and mean and minimum over all steps are not known
    chunk         steps between two calls of `progress(done, steps)`, rounded up to whole blocks of noise; chosen by
                  time if not given, and then longer without `progress` and `checkpoint`
    threads       groups of seeds run at once; the number of usable cores if not given
    checkpoint    resumed if it exists, written every `checkpoint_seconds`, when interrupted and at the end
    fingerprint   the caller's name for the problem: a checkpoint with another one is refused

    A seed's numbers depend on problem, algorithm, x0, steps and itself alone: not on other seeds, chunks, threads or
    interruptions.
    """
    storage.usable("run", checkpoint)
    _check(problem, algorithm, progress, checkpoint_seconds, fingerprint)
    x, todo = point("run", x0), _seeds(seeds)
    _whole("steps", steps, 1, LONGEST)
    _whole("records", records, 1, LONGEST)
    _whole("candidates", candidates, 1, LONGEST)
    if chunk is not None:
        _whole("chunk", chunk, 1, LONGEST)
    threads = cores() if threads is None else _whole("threads", threads, 1, LONGEST)
    options = {"records": records, "candidates": candidates, "average": checks.flag("run", "average", average)}
    job, groups = _begun(problem, algorithm, x, int(steps), todo, **options)
    identity = {} if checkpoint is None else {**job.identity(x), "fingerprint": fingerprint}
    with ThreadPoolExecutor(threads) as pool:
        spread = map if threads == 1 else partial(_spread, pool)
        groups = _resume(checkpoint, identity, groups) or groups
        saved = time.monotonic()
        done, length = int(groups[0].t.ravel()[0]), chunk or 4 * job.shape.block
        # A chunk takes all seeds on. If nobody waits for its end, it is enough that no call keeps Ctrl-C waiting.
        watched = progress is not None or checkpoint is not None
        patience = CHUNK_SECONDS * (1 if watched else -(-job.calls // threads))
        try:
            while done < steps:
                started = time.monotonic()
                done = min(job.aligned(done + length), job.steps)
                groups = list(spread(partial(job.advance, done), range(job.calls), groups))
                now = time.monotonic()
                if chunk is None:
                    length *= max(1, min(GROWTH, int(patience / max(now - started, 1e-9))))
                if progress is not None:
                    progress(done, job.steps)
                if checkpoint is not None and (now - saved >= checkpoint_seconds or done == steps):
                    storage.save(checkpoint, _flat(groups), identity)
                    saved = now
        except KeyboardInterrupt as stop:
            if checkpoint is not None:
                _save_anyway(stop, checkpoint, groups, identity)
            raise
    return job.result(groups)


def _begun(problem: Any, algorithm: Algorithm, x: Tree, *args: Any, **options: Any) -> tuple[Job, list[Group]]:
    """The compiled job before its first step; if x does not fit the problem, that is said in place of JAX's words."""
    try:
        return prepare(problem, algorithm, x, *args, **options).compiled(x)
    except (TypeError, ValueError) as error:
        if (words := misfit(problem, x)) is None:
            raise
        raise ValueError(f"run: x0 must {words}") from error


def _spread(pool: ThreadPoolExecutor, function: Callable[..., Any], *args: Any) -> Iterator[Any]:
    """pool.map with the caller's precision and device, which JAX keeps for each thread apart."""
    config: Any = jax.config
    double, device = jnp.zeros(()).dtype == np.float64, config.jax_default_device

    def call(*args: Any) -> Any:
        with jax.enable_x64(double), jax.default_device(device):
            return function(*args)

    return pool.map(call, *args)


def _flat(groups: list[Group]) -> dict[str, np.ndarray]:
    """All calls in one dictionary of arrays, the call on the first axis."""
    stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *jax.device_get(groups))
    return {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(stacked)}


def _save_anyway(
    stop: KeyboardInterrupt, path: str | os.PathLike[str], groups: list[Group], identity: dict[str, Any]
) -> None:
    """Save on the way out; the interruption goes on even if that fails, and carries the reason."""
    try:
        storage.save(path, _flat(groups), identity)
    except Exception as error:
        stop.add_note(f"run: checkpoint {path} could not be saved; got {type(error).__name__}: {error}")


def _resume(path: str | os.PathLike[str] | None, identity: dict[str, Any], groups: list[Group]) -> list[Group] | None:
    if path is None or not os.path.exists(path):
        return None
    calls = len(groups)
    leaves = jax.tree_util.tree_leaves_with_path(groups[0])
    names = [jax.tree_util.keystr(name) for name, _ in leaves]
    expected = {name: ((calls, *leaf.shape), leaf.dtype.str) for name, (_, leaf) in zip(names, leaves, strict=True)}
    arrays = storage.load(path, identity, expected)
    structure = jax.tree.structure(groups[0])
    return [jax.tree.unflatten(structure, [jnp.asarray(arrays[n][c]) for n in names]) for c in range(calls)]


def cores() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _check(problem: Any, algorithm: Any, progress: Any, checkpoint_seconds: Any, fingerprint: Any) -> None:
    checks.has_methods("run", "problem", problem, ("sample", "grad"))
    if not isinstance(algorithm, Algorithm):
        kind = type(algorithm).__name__
        raise ValueError(f"run: algorithm must be a normstorm.algorithms.Algorithm; got an object of type {kind}")
    if progress is not None and not callable(progress):
        raise ValueError(f"run: progress must be a function or None; got progress={progress!r}")
    if not (isinstance(checkpoint_seconds, float) and checkpoint_seconds == math.inf):
        checks.nonnegative("run", "checkpoint_seconds", checkpoint_seconds)
    if not isinstance(fingerprint, str):
        raise ValueError(f"run: fingerprint must be a string; got fingerprint={fingerprint!r}")


def _whole(name: str, value: Any, least: int, most: int) -> int:
    whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    if not whole or not least <= value <= most:
        raise ValueError(f"run: {name} must be an integer in [{least}, {most}]; got {name}={value!r}")
    return int(value)


def _seeds(seeds: Any) -> list[int]:
    if hasattr(seeds, "item") and np.ndim(seeds) == 0:
        seeds = seeds.item()
    if not isinstance(seeds, Iterable):
        return list(range(_whole("seeds", seeds, 1, LONGEST)))
    todo = [_whole("seeds", s, 0, 2**64 - 1) for s in seeds]
    if not todo or len(set(todo)) < len(todo):
        raise ValueError(f"run: seeds must be different integers, at least one; got {len(todo)} of them")
    return todo


def point(who: str, x0: Tree) -> Tree:
    """x0 as arrays of one precision."""
    leaves, structure = jax.tree.flatten(x0)
    types = {str(getattr(leaf, "dtype", type(leaf).__name__)) for leaf in leaves}
    wide = "float64" in types and jnp.zeros(()).dtype != np.float64
    if not leaves or len(types) > 1 or not types <= {"float", "float32", "float64"} or wide:
        only = "float32 (float64 needs jax_enable_x64)" if wide else "float32 or float64 in all its leaves"
        raise ValueError(f"{who}: x0 must be {only}; got {', '.join(sorted(types)) or 'no leaves'}")
    if not sum(np.size(leaf) for leaf in leaves):
        raise ValueError(f"{who}: x0 must hold at least one number; got none")
    # With its type spelt out: a weakly typed start would make the second chunk another program than the first.
    return jax.tree.unflatten(structure, [jnp.asarray(leaf, jnp.asarray(leaf).dtype) for leaf in leaves])
