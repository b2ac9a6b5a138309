"""A run on its way: all its batches of seeds go from step to step of the caller. The only loop in Python."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from normstorm._shared import checkpoint as storage
from normstorm._shared import validate
from normstorm._shared.jax_internals import abstract
from normstorm.algorithms.core import Algorithm
from normstorm.problems.check import as_point, check_problem
from normstorm.problems.protocol import Sampled

from .execution import platform, prepare, start, widths
from .results import Trace

Tree = Any
Path = str | os.PathLike[str]
LONGEST = 2**30
PATIENCE = 0.5  # seconds between two signs of life
GROWTH = 8  # at most so many times as many steps in the next call


class SeedBatches:
    """All batches of a run: they `go` to a step, are saved and resumed; `result` is a Trace."""

    def __init__(
        self,
        problem: Sampled,
        algorithm: Algorithm,
        x0: Tree,
        steps: int,
        seeds: int | Sequence[int],
        *,
        records: int,
        candidates: int,
        average: bool,
        width: int | None = None,
        threads: int | None = None,
        checkpoint: Path | None = None,
        fingerprint: str = "",
    ) -> None:
        x, self.seeds = as_point("run", x0, problem), validate.seed_list("run", seeds, LONGEST)
        width = width_of(width, checkpoint)
        check_problem("run", problem, x)
        kept: dict[str, Any] = {"records": records, "candidates": candidates, "average": average, "width": width}
        self.execution, self.batches = start(partial(prepare, problem, algorithm, x, steps, self.seeds, **kept), x)
        usual = cores() if platform() == "cpu" else 1
        self.threads = min(threads or usual, len(self.batches))
        self.identity = {**self.execution.identity(x), "fingerprint": fingerprint}

    @property
    def t(self) -> int:
        """Steps done."""
        return int(self.batches[0].t)

    def go(self, step: int) -> None:
        """On to this step, in calls that are short enough for Ctrl-C."""
        for _ in self.rounds(step):
            pass

    def rounds(self, stop: int, fixed: int | None = None, patience: float = PATIENCE) -> Iterator[int]:
        """On to step `stop`; tells how far all seeds are, every `fixed` steps or after about so many seconds."""
        chunk, done = self.execution.config.chunk, self.t
        length = fixed or 4 * chunk
        with ThreadPoolExecutor(self.threads) as pool:
            each = map if self.threads == 1 else partial(in_threads, pool)
            while done < stop:
                started = time.monotonic()
                done = min(-(-(done + length) // chunk) * chunk, stop)
                self.batches = list(each(partial(self.execution.advance, done), self.batches))
                if fixed is None:
                    length *= max(1, min(GROWTH, int(patience / max(time.monotonic() - started, 1e-9))))
                yield done

    def save(self, path: Path, beside: Tree = (), more: dict[str, Any] | None = None) -> None:
        """All batches and what the caller keeps beside them; `more` is part of what the file belongs to."""
        whole = jax.tree.map(lambda *leaves: np.stack(leaves), *jax.device_get(self.batches))
        storage.save(path, {"run": whole, "beside": beside}, self.identity | (more or {}))

    def resume(self, path: Path, beside: Tree = (), more: dict[str, Any] | None = None) -> Tree:
        """Go on where the file was written; what was kept beside, of the forms of `beside`, comes back."""
        n = len(self.batches)
        like = jax.tree.map(lambda leaf: abstract((n, *leaf.shape), leaf.dtype), self.batches[0])
        found = storage.load(path, self.identity | (more or {}), {"run": like, "beside": beside})
        self.batches = [jax.tree.map(lambda leaf, i=i: jnp.asarray(leaf[i]), found["run"]) for i in range(n)]
        return found["beside"]

    def result(self) -> Trace:
        return self.execution.result(self.batches)


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


def width_of(width: Any, checkpoint: Path | None) -> int | None:
    """The width that was asked for, or that of an existing checkpoint."""
    classes = widths()
    if width is None:
        found = None if checkpoint is None else storage.identity_of(checkpoint).get("width")
        return found if found in classes else None
    if validate.integer(width) not in classes:
        validate.refuse("run", "width", f"one of {', '.join(map(str, classes))}, or None", width)
    return int(width)
