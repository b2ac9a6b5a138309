"""The engine's one function: checks, progress, checkpoints, and the result as numpy arrays."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from normstorm._shared import checkpoint as storage
from normstorm._shared import validate
from normstorm.algorithms.core import Algorithm
from normstorm.problems.protocol import Sampled

from .batches import LONGEST as LONGEST
from .batches import PATIENCE, SeedBatches
from .batches import cores as cores
from .results import Trace

Tree = Any
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
    threads or interruptions. With another width they may differ in the last digit, and what is certified by a percent.
    """
    storage.usable("run", checkpoint)
    _check(problem, algorithm, progress, checkpoint_seconds, fingerprint)
    numbers = {"steps": steps, "records": records, "candidates": candidates}
    steps, records, candidates = (_whole(name, value) for name, value in numbers.items())
    progress_steps = None if progress_steps is None else _whole("progress_steps", progress_steps)
    threads = None if threads is None else _whole("threads", threads)
    kept: dict[str, Any] = {"records": records, "candidates": candidates, "width": width, "threads": threads}
    kept |= {"average": validate.flag("run", "average", average), "checkpoint": checkpoint, "fingerprint": fingerprint}
    batches = SeedBatches(problem, algorithm, x0, steps, seeds, **kept)
    if checkpoint is not None and os.path.exists(checkpoint):
        batches.resume(checkpoint)
    # If nobody waits for the end of a round over all batches, it is enough that no call keeps Ctrl-C waiting.
    watched = progress is not None or checkpoint is not None
    patience = PATIENCE * (1 if watched else -(-len(batches.batches) // batches.threads))
    saved = time.monotonic()
    try:
        for done in batches.rounds(steps, progress_steps, patience):
            if progress is not None:
                progress(done, steps)
            over = done == steps or batches.execution.ended(batches.batches)
            if checkpoint is not None and (over or time.monotonic() - saved >= checkpoint_seconds):
                batches.save(checkpoint)
                saved = time.monotonic()
            if over:
                break
    except KeyboardInterrupt as stop:
        if checkpoint is not None:
            _save_anyway(batches, checkpoint, stop)
        raise
    return batches.result()


def _save_anyway(batches: SeedBatches, checkpoint: str | os.PathLike[str], stop: KeyboardInterrupt) -> None:
    """On the way out: if it fails, the interruption carries the reason."""
    try:
        batches.save(checkpoint)
    except Exception as error:
        stop.add_note(f"run: checkpoint {checkpoint} could not be saved; got {type(error).__name__}: {error}")


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
