"""From estimates to moves: the arithmetic on lists of tensors, and the update of a group.

    lerp_        m <- keep m + take g
    axpy_        x <- shrink x - length u          length: a number or a tensor without axes
    axpy_lerp_   x <- shrink x - length m, then m <- keep m + take g

Plain operations, or one kernel for all tensors. `fused` None takes the kernels where they can serve and lists are long,
False never; True refuses where they cannot.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from . import triton_launch
from .directions import Neurons, adam, directions, inverse, portions
from .sharding import local, squares

Group = dict[str, Any]


def lerp_(m: list[Tensor], g: list[Tensor], keep: float, take: float, fused: bool | None) -> Tensor | None:
    """Returns the sum of squares of the new m, if that came for nothing."""
    if triton_launch.serve(fused, m, g):
        return triton_launch.lerp_(m, g, keep, take)
    g = [grad.to(old.dtype) for old, grad in zip(m, g, strict=True)]
    if keep == 0:  # an old m that is not finite must not live on
        torch._foreach_copy_(m, g)
        torch._foreach_mul_(m, take)
        return None
    if keep != 1:
        torch._foreach_mul_(m, keep)
    torch._foreach_add_(m, g, alpha=take)
    return None


def axpy_(x: list[Tensor], u: list[Tensor], shrink: float, length: float | Tensor, fused: bool | None) -> None:
    if triton_launch.serve(fused, x, u):
        triton_launch.axpy_(x, u, shrink, length)
        return
    if shrink != 1:
        torch._foreach_mul_(x, shrink)
    if isinstance(length, Tensor):
        for old, step in zip(x, u, strict=True):
            _axpy_by(old, step, length.to(old.device))
    else:
        torch._foreach_add_(x, u, alpha=-length)


def _axpy_by(x: Tensor, u: Tensor, length: Tensor) -> None:
    if x.dtype.itemsize < 4:  # sixteen bits would shorten the length itself
        x.sub_((u * length.to(torch.float32).expand(1)).reshape(x.shape))
    else:
        x.addcmul_(u, length.to(x.dtype), value=-1)


def axpy_lerp_(
    x: list[Tensor],
    m: list[Tensor],
    g: list[Tensor],
    shrink: float,
    length: float | Tensor,
    keep: float,
    take: float,
    fused: bool | None,
) -> None:
    if triton_launch.serve(fused, x, m, g):
        triton_launch.axpy_lerp_(x, m, g, shrink, length, keep, take)
        return
    axpy_(x, m, shrink, length, fused)
    lerp_(m, g, keep, take, fused)


def ahead(group: Group) -> float:
    """The weight of the fresh gradient in the direction of a step that asks one gradient."""
    c = group["correction"] if group["difference"] == "stale" else 0.0
    return 1 - float(group["beta"]) * (1 - c) if group["nesterov"] else float(c)


def by_neurons(group: Group) -> bool:
    return bool(group["neurons"] and group["geometry"] == "spectral")


class Update:
    """x <- (1 - lr weight_decay) x - lr scale u(estimate), and the norm that Euclidean groups share.

    `estimates(group, params)` may make new memory if a group looks ahead: such groups go portion by portion.
    `seconds(params, name)`: averages of squares, of coordinates or neurons, for a geometry that asks for them.
    """

    def __init__(
        self,
        fused: bool | None,
        estimates: Callable[[Group, list[Tensor]], list[Tensor]],
        seconds: Callable[[list[Tensor], str], list[Tensor]],
    ) -> None:
        self.fused = fused
        self.estimates, self.seconds = estimates, seconds
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

    def apply(self, group: Group, params: list[Tensor]) -> None:
        if not params:
            return
        geometry = group["geometry"]
        plain = geometry == "euclidean" and not ahead(group)
        for some in [params] if plain else self._portions(geometry, params):
            u = self._directions(group, some)
            axpy_([local(p) for p in some], u, *self.lengths(group), self.fused)

    def _directions(self, group: Group, params: list[Tensor]) -> list[Tensor]:
        n = self.estimates(group, params)
        if group["geometry"] in ("euclidean", "adam"):
            shards = [local(one) for one in n]
            return shards if group["geometry"] == "euclidean" else adam(shards, self.seconds(params, "square"))
        neurons = Neurons(self.seconds(params, "neurons"), float(group["beta2"])) if by_neurons(group) else None
        stack = group["blocks"], group["transposed"]
        return directions(group["geometry"], n, group["spectral_dtype"], *stack, neurons)
