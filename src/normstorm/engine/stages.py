"""A run that is looked at on the way: it goes from step to step of its caller, and shows where every seed stands.

The numbers are those of `run` with the same problem, algorithm, start, steps and width, wherever it is looked at.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
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

from .execution import platform, prepare, start
from .results import Trace
from .run import GROWTH, LONGEST, PATIENCE, cores, in_threads, width_of

Tree = Any
Path = str | os.PathLike[str]
RECORDS = 128


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
        look: Callable[[Any], Tree] = lambda state: (),
        width: int | None = None,
        checkpoint: Path | None = None,
        fingerprint: str = "",
    ) -> None:
        """`look` is a function of a seed's state; what it finds is `seen`."""
        x, self.seeds = as_point("run", x0, problem), validate.seed_list("run", seeds, LONGEST)
        check_problem("run", problem, x)
        kept = {"records": RECORDS, "candidates": 1, "average": False, "width": width_of(width, checkpoint)}
        prepared: Callable[..., Any] = partial(prepare, problem, algorithm, x, steps, self.seeds, **kept)  # type: ignore[arg-type]
        self.execution, self.batches = start(prepared, x)
        self.identity = {**self.execution.identity(x), "fingerprint": fingerprint}
        self._look, self._point = (jax.jit(jax.vmap(f)) for f in (look, algorithm.point))

    @property
    def t(self) -> int:
        """Steps done."""
        return int(self.batches[0].t)

    def go(self, step: int) -> None:
        """On to this step, in calls that are short enough for Ctrl-C."""
        execution, length, done = self.execution, 4 * self.execution.config.chunk, self.t
        threads = min(cores() if platform() == "cpu" else 1, len(self.batches))
        with ThreadPoolExecutor(threads) as pool:
            each = map if threads == 1 else partial(in_threads, pool)
            while done < step:
                started = time.monotonic()
                done = min(execution.aligned(done + length), step)
                self.batches = list(each(partial(execution.advance, done), self.batches))
                length *= max(1, min(GROWTH, int(PATIENCE / max(time.monotonic() - started, 1e-9))))

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

    def save(self, path: Path, beside: Tree, more: dict[str, Any]) -> None:
        """All batches and what the caller keeps beside them; `more` is part of what the file belongs to."""
        whole = jax.tree.map(lambda *leaves: np.stack(leaves), *jax.device_get(self.batches))
        storage.save(path, {"run": whole, "beside": beside}, self.identity | more)

    def resume(self, path: Path, beside: Tree, more: dict[str, Any]) -> Tree:
        """Go on where the file was written; what was kept beside, of the forms of `beside`, comes back."""
        n = len(self.batches)
        like = jax.tree.map(lambda leaf: abstract((n, *leaf.shape), leaf.dtype), self.batches[0])
        found = storage.load(path, self.identity | more, {"run": like, "beside": beside})
        self.batches = [jax.tree.map(lambda leaf, i=i: jnp.asarray(leaf[i]), found["run"]) for i in range(n)]
        return found["beside"]

    def result(self) -> Trace:
        return self.execution.result(self.batches)
