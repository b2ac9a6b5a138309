"""A run on its way: all batches of seeds go from step to step of the caller. The only loop in Python.

The numbers depend on problem, algorithm, start, steps and width alone, wherever the run is looked at.
"""

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


class Stages:
    """`go` to a step, then ask for `seen`, `point` and `cost`, a row for every seed; `result` is a Trace."""

    def __init__(
        self,
        problem: Sampled,
        algorithm: Algorithm,
        x0: Tree,
        steps: int,
        seeds: int | Sequence[int],
        *,
        records: int = 128,
        candidates: int = 1,
        average: bool = False,
        look: Callable[[Any], Tree] = lambda state: (),
        width: int | None = None,
        threads: int | None = None,
        checkpoint: Path | None = None,
        fingerprint: str = "",
    ) -> None:
        """`look` is a function of a seed's state; what it finds is `seen`."""
        x, self.seeds = as_point("run", x0, problem), validate.seed_list("run", seeds, LONGEST)
        width = width_of(width, checkpoint)
        check_problem("run", problem, x)
        kept: dict[str, Any] = {"records": records, "candidates": candidates, "average": average, "width": width}
        self.execution, self.batches = start(partial(prepare, problem, algorithm, x, steps, self.seeds, **kept), x)
        usual = cores() if platform() == "cpu" else 1
        self.threads = min(threads or usual, len(self.batches))
        self.identity = {**self.execution.identity(x), "fingerprint": fingerprint}
        self._look, self._point = (jax.jit(jax.vmap(f)) for f in (look, algorithm.point))

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
        execution, done, length = self.execution, self.t, fixed or 4 * self.execution.config.chunk
        with ThreadPoolExecutor(self.threads) as pool:
            each = map if self.threads == 1 else partial(in_threads, pool)
            while done < stop:
                started = time.monotonic()
                done = min(execution.aligned(done + length), stop)
                self.batches = list(each(partial(execution.advance, done), self.batches))
                if fixed is None:
                    length *= max(1, min(GROWTH, int(patience / max(time.monotonic() - started, 1e-9))))
                yield done

    @property
    def seen(self) -> Tree:
        return self._rows([self._look(batch.state) for batch in self.batches])

    @property
    def point(self) -> Tree:
        """What the algorithm hands out after this step."""
        return self._rows([self._point(batch.state) for batch in self.batches])

    @property
    def cost(self) -> np.ndarray:
        """Sample gradients asked by each seed."""
        low, high = self._rows([(b.recorder.stats.cost, b.recorder.stats.carry) for b in self.batches])
        cost: np.ndarray = low.astype(np.int64) + (high.astype(np.int64) << 32)
        return cost

    @property
    def diverged(self) -> np.ndarray:
        found: np.ndarray = self._rows([b.recorder.stats.diverged for b in self.batches]) > 0
        return found

    def _rows(self, parts: list[Tree]) -> Tree:
        n = len(self.seeds)
        return jax.tree.map(lambda *leaves: np.concatenate([np.asarray(leaf) for leaf in leaves])[:n], *parts)

    def save(self, path: Path, beside: Tree = None, more: dict[str, Any] | None = None) -> None:
        """All batches and what the caller keeps beside them; `more` is part of what the file belongs to."""
        whole = jax.tree.map(lambda *leaves: np.stack(leaves), *jax.device_get(self.batches))
        storage.save(path, _kept(whole, beside), self.identity | (more or {}))

    def resume(self, path: Path, beside: Tree = None, more: dict[str, Any] | None = None) -> Tree:
        """Go on where the file was written; what was kept beside, of the forms of `beside`, comes back."""
        n = len(self.batches)
        like = jax.tree.map(lambda leaf: abstract((n, *leaf.shape), leaf.dtype), self.batches[0])
        found = storage.load(path, self.identity | (more or {}), _kept(like, beside))
        whole, beside = (found, None) if beside is None else (found["run"], found["beside"])
        self.batches = [jax.tree.map(lambda leaf, i=i: jnp.asarray(leaf[i]), whole) for i in range(n)]
        return beside

    def result(self) -> Trace:
        return self.execution.result(self.batches)


def _kept(run: Tree, beside: Tree) -> Tree:
    return run if beside is None else {"run": run, "beside": beside}


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
