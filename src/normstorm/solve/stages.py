"""A run that is looked at on the way, for a race: it shows where every seed stands.

The numbers are those of `run` with the same problem, algorithm, start, steps and width, wherever it is looked at.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from normstorm.algorithms.core import Algorithm
from normstorm.engine.batches import SeedBatches
from normstorm.engine.execution import whole_number
from normstorm.engine.loop import Batch
from normstorm.problems.protocol import Sampled

Tree = Any
RECORDS = 128


class Stages(SeedBatches):
    """`go` to a step, then ask for `seen`, `point` and `cost`, a row for every seed; `look` finds `seen` in a state."""

    def __init__(
        self,
        problem: Sampled,
        algorithm: Algorithm,
        *given: Any,
        look: Callable[[Any], Tree] = lambda _: (),
        **kept: Any,
    ) -> None:
        super().__init__(problem, algorithm, *given, records=RECORDS, candidates=1, average=False, **kept)
        self._look, self._point = (jax.jit(jax.vmap(f)) for f in (look, algorithm.point))

    @property
    def seen(self) -> Tree:
        return self._rows(lambda batch: self._look(batch.state))

    @property
    def point(self) -> Tree:
        """What the algorithm hands out after this step."""
        return self._rows(lambda batch: self._point(batch.state))

    @property
    def observed(self) -> Tree:
        """What an observer has seen; () if there is none."""
        return self._rows(lambda batch: batch.state.observer)

    @property
    def cost(self) -> np.ndarray:
        """Sample gradients asked by each seed."""
        return whole_number(*self._rows(lambda batch: (batch.recorder.stats.cost, batch.recorder.stats.carry)))

    @property
    def diverged(self) -> np.ndarray:
        found: np.ndarray = self._rows(lambda batch: batch.recorder.stats.diverged) > 0
        return found

    def _rows(self, part: Callable[[Batch], Tree]) -> Tree:
        return self.execution.rows(self.batches, part)
