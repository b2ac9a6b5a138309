"""A step that asks one gradient at one point."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from .moves import NONE, READY, Group, Move, gradients
from .shards import local, spread
from .update import blend

if TYPE_CHECKING:
    from .optimizer import NormalizedStorm


def ahead(group: Group) -> float:
    """The weight of the fresh gradient in the direction of a step that asks one gradient."""
    c = group["correction"] if group["difference"] == "stale" else 0.0
    return 1 - float(group["beta"]) * (1 - c) if group["nesterov"] else float(c)


class Single:
    """A step that asks one gradient: m <- beta m + (1 - beta) g, and the move follows at once."""

    def __init__(self, optimizer: NormalizedStorm, factor: float = 1.0) -> None:
        self.state = optimizer.state
        self.groups: list[Group] = optimizer.param_groups
        self.fused = optimizer.fused
        self.factor = factor
        self.move = Move(optimizer.fused)
        self.waiting: list[tuple[Group, list[Tensor], list[Tensor]]] = []
        self.sums: list[Tensor | None] = []

    def take(self, group: Group, params: list[Tensor]) -> None:
        """Fold gradients; move, unless the norm of other parameters has to be known first."""
        beta, part = float(group["beta"]), ahead(group)
        for first in (True, False):
            some = [p for p in params if (self.state[p]["stage"] == NONE) is first]
            if not some:
                continue
            m = [local(self.state[p]["momentum"]) for p in some]
            keep, weight = (0.0, 1.0) if first else (beta, 1 - beta)
            sums = blend(m, gradients(some), keep, weight * self.factor, self.fused)
            for p in some:
                self.state[p]["stage"] = READY
            estimates = [self._estimate(p, part) for p in some]
            if group["geometry"] == "euclidean":
                self.waiting.append((group, some, estimates))
                self.sums.append(None if part or any(map(spread, some)) else sums)
            else:
                self.move(group, some, estimates)

    def _estimate(self, p: Tensor, part: float) -> Tensor:
        m: Tensor = self.state[p]["momentum"]
        return m if part == 0 or p.grad is None else (1 - part) * m + (part * self.factor) * p.grad

    def finish(self) -> None:
        if not self.waiting:
            return
        whole = [part for part in self.sums if part is not None]
        everything = [n for _, _, estimates in self.waiting for n in estimates]
        self.move.measure(everything, whole if len(whole) == len(self.sums) else None)
        for group, params, estimates in self.waiting:
            self.move(group, params, estimates)
