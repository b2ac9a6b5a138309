"""The arithmetic of an update, on lists of tensors: plain operations, or one kernel for all of them.

    blend   m <- keep m + take g
    shift   x <- shrink x - length u          length: a number or a tensor without axes
    carry   x <- shrink x - length m, then m <- keep m + take g

`fused` None takes the kernels where they can serve, False never; True refuses where they cannot.
"""

from __future__ import annotations

import torch
from torch import Tensor

from . import kernels


def blend(m: list[Tensor], g: list[Tensor], keep: float, take: float, fused: bool | None) -> Tensor | None:
    """Returns the sum of squares of the new m, if that came for nothing."""
    if kernels.serve(fused, m, g):
        return kernels.blend(m, g, keep, take)
    g = [grad.to(old.dtype) for old, grad in zip(m, g, strict=True)]
    if keep == 0:  # an old m that is not finite must not live on
        torch._foreach_copy_(m, g)
        torch._foreach_mul_(m, take)
        return None
    if keep != 1:
        torch._foreach_mul_(m, keep)
    torch._foreach_add_(m, g, alpha=take)
    return None


def shift(x: list[Tensor], u: list[Tensor], shrink: float, length: float | Tensor, fused: bool | None) -> None:
    if kernels.serve(fused, x, u):
        kernels.shift(x, u, shrink, length)
        return
    if shrink != 1:
        torch._foreach_mul_(x, shrink)
    if isinstance(length, Tensor):
        for old, step in zip(x, u, strict=True):
            _shift_by(old, step, length.to(old.device))
    else:
        torch._foreach_add_(x, u, alpha=-length)


def _shift_by(x: Tensor, u: Tensor, length: Tensor) -> None:
    if x.dtype.itemsize < 4:  # sixteen bits would shorten the length itself
        x.sub_((u * length.to(torch.float32).expand(1)).reshape(x.shape))
    else:
        x.addcmul_(u, length.to(x.dtype), value=-1)


def carry(
    x: list[Tensor],
    m: list[Tensor],
    g: list[Tensor],
    shrink: float,
    length: float | Tensor,
    keep: float,
    take: float,
    fused: bool | None,
) -> None:
    if kernels.serve(fused, x, m, g):
        kernels.carry(x, m, g, shrink, length, keep, take)
        return
    shift(x, m, shrink, length, fused)
    blend(m, g, keep, take, fused)
