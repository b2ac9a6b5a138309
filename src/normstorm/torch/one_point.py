"""A step that asks one gradient at one point."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from .moves import NONE, READY, Group, Move, ahead, buffer, first_weight, gradients, mixed
from .shards import local, spread
from .update import blend

if TYPE_CHECKING:
    from .optimizer import NormalizedStorm


class Single:
    """m <- beta m + (1 - beta) g, and the move follows at once. `factor` undoes a GradScaler's."""

    def __init__(self, optimizer: NormalizedStorm, factor: float = 1.0) -> None:
        self.state = optimizer.state
        self.groups: list[Group] = optimizer.param_groups
        self.fused = optimizer.fused
        self.factor = factor
        self.move = Move(optimizer.fused, self.estimates)
        self.waiting: list[tuple[Group, list[Tensor]]] = []
        self.sums: list[Tensor | None] = []
        self.begun = False

    def take(self, group: Group, params: list[Tensor]) -> None:
        """Fold gradients; move at once only where the direction needs a gradient that is about to be freed."""
        beta = float(group["beta"])
        new = [p for p in params if self.state[p]["stage"] == NONE]
        known = [p for p in params if self.state[p]["stage"] != NONE]
        for some, keep, weight in ((new, 0.0, first_weight(group)), (known, beta, 1 - beta)):
            if not some:
                continue
            m = [local(buffer(self.state[p], p, "momentum")) for p in some]
            sums = blend(m, gradients(some), keep, weight * self.factor, self.fused)
            for p in some:
                self.state[p]["stage"] = READY
            self.begun = True
            if group["geometry"] == "euclidean":
                self.sums.append(None if ahead(group) or any(map(spread, some)) else sums)
            elif ahead(group):
                self.move(group, some)
                continue
            self.waiting.append((group, some))

    def estimates(self, group: Group, params: list[Tensor]) -> list[Tensor]:
        m = [self.state[p]["momentum"] for p in params]
        part = ahead(group)
        return mixed(m, [p.grad for p in params], 1 - part, part * self.factor) if part else m

    def finish(self) -> None:
        whole = [part for part in self.sums if part is not None]
        euclidean = [(group, params) for group, params in self.waiting if group["geometry"] == "euclidean"]
        self.move.measure(euclidean, whole if len(whole) == len(self.sums) else None)
        for group in self.groups:
            self.move(group, [p for other, params in self.waiting if other is group for p in params])

    def abandon(self) -> None:
        """The backward failed. Estimates that have taken its gradients are lost, so all of them begin anew."""
        for group in self.groups:
            for p in group["params"]:
                p.grad = None
                if self.begun:
                    self.state[p]["stage"] = NONE
