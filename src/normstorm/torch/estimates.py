"""From estimates to moves, and what both kinds of steps share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from .geometries import directions, inverse, portions
from .shards import local, spread, squares
from .update import shift

Group = dict[str, Any]
NONE, READY, DUE = 0, 1, 2  # no estimate yet; an estimate; an estimate whose move is still to be made


def gradients(params: Sequence[Tensor]) -> list[Tensor]:
    grads = [p.grad for p in params if p.grad is not None]
    if any(grad.is_sparse for grad in grads):
        raise RuntimeError("NormalizedStorm: gradients must be dense; got a sparse one")
    return [local(grad) for grad in grads]


def buffer(state: dict[str, Any], p: Tensor, name: str) -> Tensor:
    """A tensor of the state of a parameter, zero where there was none."""
    if name not in state:
        state[name] = torch.zeros_like(p, memory_format=torch.preserve_format)
    found: Tensor = state[name]
    return found


def with_gradient(params: Iterable[Tensor]) -> list[Tensor]:
    return [p for p in params if p.grad is not None]


def ahead(group: Group) -> float:
    """The weight of the fresh gradient in the direction of a step that asks one gradient."""
    c = group["correction"] if group["difference"] == "stale" else 0.0
    return 1 - float(group["beta"]) * (1 - c) if group["nesterov"] else float(c)


def first_weight(group: Group) -> float:
    """The weight of the first gradient of an estimate."""
    return 1.0 if group["start"] == "first" else 1 - float(group["beta"])


def mixed(a: list[Tensor], b: list[Any], of_a: float, of_b: float) -> list[Tensor]:
    """of_a a + of_b b, new memory."""
    if any(map(spread, a)):
        return [of_a * one + of_b * other for one, other in zip(a, b, strict=True)]
    found = torch._foreach_mul(a, of_a)
    torch._foreach_add_(found, b, alpha=of_b)
    return list(found)


class Move:
    """x <- (1 - lr weight_decay) x - lr scale u(estimate), and the norm that Euclidean groups share.

    `estimates(group, params)` may make new memory if a group looks ahead: such groups go portion by portion.
    """

    def __init__(self, fused: bool | None, estimates: Callable[[Group, list[Tensor]], list[Tensor]]) -> None:
        self.fused = fused
        self.estimates = estimates
        self.inverse: Tensor | None = None

    def measure(self, members: list[tuple[Group, list[Tensor]]], sums: Sequence[Tensor] | None = None) -> None:
        """The norm of all Euclidean estimates; `sums`: squares that came with the update of every one of them."""
        if sums is None:
            plain = [n for group, params in members if not ahead(group) for n in self.estimates(group, params)]
            sums = [squares(plain).sum()] if plain else []
            looking = [(group, params) for group, params in members if ahead(group)]
            for group, params in looking:
                sums += [squares(self.estimates(group, some)).sum() for some in self._portions("euclidean", params)]
        if sums:
            self.inverse = inverse(torch.stack([part.to(sums[0]) for part in sums]).sum().sqrt())

    def lengths(self, group: Group) -> tuple[float, float | Tensor]:
        lr = float(group["lr"])
        length = lr * float(group["scale"]) * (-1 if group["maximize"] else 1)
        shrink = 1 - lr * float(group["weight_decay"])
        if group["geometry"] != "euclidean":
            return shrink, length
        assert self.inverse is not None
        return shrink, self.inverse * length

    def _portions(self, geometry: str, params: Sequence[Tensor]) -> list[list[Tensor]]:
        return [[params[i] for i in some] for some in portions(geometry, params)]

    def __call__(self, group: Group, params: list[Tensor]) -> None:
        if not params:
            return
        geometry = group["geometry"]
        plain = geometry == "euclidean" and not ahead(group)
        for some in [params] if plain else self._portions(geometry, params):
            u = self.estimates(group, some)
            u = [local(n) for n in u] if geometry == "euclidean" else directions(geometry, u, group["spectral_dtype"])
            shift([local(p) for p in some], u, *self.lengths(group), self.fused)
