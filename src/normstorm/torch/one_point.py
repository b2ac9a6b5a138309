"""A step that asks one gradient at one point: m <- beta m + (1 - beta) g, and the move follows at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from .estimates import NONE, READY, Estimates, drop_gradients, gradients, mixed, with_gradient
from .guards import finite
from .hooks import Folding
from .norms import Norms
from .passes import first_weight
from .sharding import spread
from .updates import Group, Update, ahead


def _ahead(estimates: Estimates, factor: float, group: Group, params: list[Tensor]) -> list[Tensor]:
    m, part = estimates.momentum(params), ahead(group)
    return mixed(m, [p.grad for p in params], 1 - part, part * factor) if part else m


class OnePointStep:
    """`take` gradients, as they come; then `finish`, or `abandon` if the backward failed.

    `factor` undoes a GradScaler's. `skip`: gradients that are not finite leave all as it is (`skipped`). `norms`: where
    their squares are added up.
    """

    def __init__(
        self, estimates: Estimates, factor: float = 1.0, *, skip: bool = False, norms: Norms | None = None
    ) -> None:
        self.estimates = estimates
        self.skip, self.skipped, self.norms = skip, False, norms
        self.factor = factor
        self._update = Update(estimates.fused, partial(_ahead, estimates, factor), estimates.seconds)
        self._waiting: list[tuple[Group, list[Tensor]]] = []
        self._sums: list[Tensor | None] = []
        self._begun = False

    def take_all(self) -> None:
        """Every gradient that is there."""
        if self.skip and not finite([p.grad for p in self.estimates.params if p.grad is not None]):
            self.skipped = True
            return
        for group in self.estimates.groups:
            self.take(group, with_gradient(group["params"]))

    def take(self, group: Group, params: list[Tensor]) -> None:
        """Fold gradients; move at once only where the direction needs a gradient that is about to be freed."""
        if self.norms is not None:
            self.norms.add(params)
        beta = float(group["beta"])
        new = [p for p in params if self.estimates.stage(p) == NONE]
        known = [p for p in params if self.estimates.stage(p) != NONE]
        for some, keep, weight in ((new, 0.0, first_weight(group)), (known, beta, 1 - beta)):
            if not some:
                continue
            sums = self.estimates.fold(some, keep, weight * self.factor)
            self.estimates.fold_squares(group, some, gradients(some), self.factor)
            self.estimates.set_stage(some, READY)
            self._begun = True
            if group["geometry"] == "euclidean":
                self._sums.append(None if ahead(group) or any(map(spread, some)) else sums)
            elif ahead(group):
                self._update.apply(group, some)
                continue
            self._waiting.append((group, some))

    def take_arrived(self, params: Iterable[Tensor]) -> None:
        """In lean memory, during the backward: what is folded is freed, unless its direction waits for the norm."""
        arrived = set(params)
        for group in self.estimates.groups:
            if group["geometry"] != "euclidean" or ahead(group) == 0:
                self.take(group, some := [p for p in group["params"] if p in arrived])
                drop_gradients(some)

    def run(self, closure: Callable[[], Any], folding: Folding) -> Any:
        """The whole step by a closure that calls backward; returns its loss."""
        try:
            with folding(self.take_arrived), torch.enable_grad():
                loss = closure()
        except BaseException:
            self.abandon()
            raise
        self.take_all()
        self.finish()
        drop_gradients(self.estimates.params)
        return loss

    def finish(self) -> None:
        whole = [part for part in self._sums if part is not None]
        euclidean = [(group, params) for group, params in self._waiting if group["geometry"] == "euclidean"]
        self._update.measure(euclidean, whole if len(whole) == len(self._sums) else None)
        for group in self.estimates.groups:
            self._update.apply(group, [p for other, params in self._waiting if other is group for p in params])

    def abandon(self) -> None:
        """Estimates that have taken gradients of a backward that failed are lost, so all of them begin anew."""
        drop_gradients(self.estimates.params)
        if self._begun:
            self.estimates.set_stage(self.estimates.params, NONE)
