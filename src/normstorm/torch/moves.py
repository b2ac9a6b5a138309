"""From estimates to moves, and what both kinds of steps share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from .geometries import directions, inverse, total_norm
from .shards import local
from .update import shift

Group = dict[str, Any]
NONE, READY, DUE = 0, 1, 2  # no estimate yet; an estimate; an estimate whose move is still to be made


def gradients(params: Sequence[Tensor]) -> list[Tensor]:
    grads = [p.grad for p in params if p.grad is not None]
    if any(grad.is_sparse for grad in grads):
        raise RuntimeError("NormalizedStorm: gradients must be dense; got a sparse one")
    return [local(grad) for grad in grads]


def with_gradient(params: Iterable[Tensor]) -> list[Tensor]:
    return [p for p in params if p.grad is not None]


class Move:
    """x <- (1 - lr weight_decay) x - lr scale u(estimate), and for a Euclidean group the norm that it shares."""

    def __init__(self, fused: bool | None) -> None:
        self.fused = fused
        self.inverse: Tensor | None = None

    def measure(self, estimates: Sequence[Tensor], sums: Sequence[Tensor] | None = None) -> None:
        """Of all Euclidean estimates; `sums`: squares that came with the update of every one of them."""
        if sums is not None:
            self.inverse = inverse(torch.stack([part.to(sums[0]) for part in sums]).sum().sqrt())
        elif estimates:
            self.inverse = inverse(total_norm(estimates))

    def lengths(self, group: Group) -> tuple[float, float | Tensor]:
        lr = float(group["lr"])
        length = lr * float(group["scale"]) * (-1 if group["maximize"] else 1)
        shrink = 1 - lr * float(group["weight_decay"])
        if group["geometry"] != "euclidean":
            return shrink, length
        assert self.inverse is not None
        return shrink, self.inverse * length

    def __call__(self, group: Group, params: Sequence[Tensor], estimates: Sequence[Tensor]) -> None:
        if not params:
            return
        if group["geometry"] == "euclidean":
            u = [local(n) for n in estimates]
        else:
            u = directions(group["geometry"], estimates, group["spectral_dtype"])
        shift([local(p) for p in params], u, *self.lengths(group), self.fused)
