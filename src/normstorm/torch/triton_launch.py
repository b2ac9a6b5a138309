"""Updates in one Triton kernel for all tensors of a list: every number is read and written once.

A table holds the addresses of the tensors, a second one cuts them into pieces, so that one launch serves them all.
Results are those of `updates` up to the last digit (a product and a sum are rounded once). Dense float32 or bfloat16
tensors on one CUDA device; arithmetic in float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, lru_cache
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

PIECE = 1024  # numbers that one program takes
WARPS = 4
ALIGNED = 16  # bytes
KINDS = (torch.float32, torch.bfloat16)
MANY = 2**26  # numbers; with fewer the host, which makes these tables, is the limit, and not the device


@cache
def available() -> bool:
    return find_spec("triton") is not None


def serve(fused: bool | None, *lists: Sequence[Tensor]) -> bool:
    """Whether the kernels can take these lists, which go together tensor by tensor."""
    if fused is False or (fused is None and _few(lists[0])):
        return False
    fit = available() and _fit(lists)
    if fused and not fit:
        raise ValueError(
            "NormalizedStorm: fused must be None or False here, as the kernels need Triton and dense float32 or "
            f"bfloat16 tensors on one CUDA device; got fused={fused}"
        )
    return fit


def _few(tensors: Sequence[Tensor]) -> bool:
    return sum(tensor.numel() for tensor in tensors) < MANY


def _fit(lists: Sequence[Sequence[Tensor]]) -> bool:
    device = lists[0][0].device
    if device.type != "cuda":
        return False
    for tensors in zip(*lists, strict=True):
        first = tensors[0]
        for tensor in tensors:
            same = tensor.shape == first.shape and tensor.stride() == first.stride() and tensor.device == device
            if not same or tensor.dtype not in KINDS or tensor.data_ptr() % ALIGNED:
                return False
        if not (first.is_contiguous() or _dense(first)):
            return False
    return all(len({tensor.dtype for tensor in tensors}) == 1 for tensors in lists)


def _dense(tensor: Tensor) -> bool:
    """No gaps and no overlaps, in whatever order of axes: its numbers are numel() consecutive ones."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


def lerp_(m: Sequence[Tensor], g: Sequence[Tensor], keep: float, take: float) -> Tensor:
    """m <- keep m + take g; returns the sum of squares of the new m."""
    sums = torch.empty(len(_pieces_of(m)), device=m[0].device)
    _launch("blend", (m, g), sums, keep, take)
    return sums.sum()


def squares(m: Sequence[Tensor]) -> Tensor:
    """The sum of squares, added in the same order as `lerp_` does."""
    sums = torch.empty(len(_pieces_of(m)), device=m[0].device)
    _launch("squares", (m,), sums)
    return sums.sum()


def axpy_(x: Sequence[Tensor], u: Sequence[Tensor], shrink: float, length: float | Tensor) -> None:
    """x <- shrink x - length u."""
    _launch("shift", (x, u), shrink, _scalar(length, x[0]))


def axpy_lerp_(
    x: Sequence[Tensor],
    m: Sequence[Tensor],
    g: Sequence[Tensor],
    shrink: float,
    length: float | Tensor,
    keep: float,
    take: float,
) -> None:
    """x <- shrink x - length m, then m <- keep m + take g."""
    _launch("carry", (x, m, g), shrink, _scalar(length, x[0]), keep, take)


def _launch(name: str, lists: Sequence[Sequence[Tensor]], *numbers: Any) -> None:
    from . import triton_kernels

    pieces = _pieces_of(lists[0])
    if len(pieces):
        tables = [_addresses(tuple(tensor.data_ptr() for tensor in some), some[0].device) for some in lists]
        narrow = [some[0].dtype == torch.bfloat16 for some in lists]
        program = getattr(triton_kernels, name)
        program[(len(pieces),)](*tables, pieces, *numbers, *narrow, PIECE, num_warps=WARPS)


def _pieces_of(tensors: Sequence[Tensor]) -> Tensor:
    return _pieces(tuple(tensor.numel() for tensor in tensors), tensors[0].device)


def _scalar(value: float | Tensor, like: Tensor) -> Tensor:
    """On the device: to ask for the number would make the host wait."""
    if isinstance(value, Tensor):
        return value.to(like.device, torch.float32)
    return torch.full((), value, device=like.device)


@lru_cache(maxsize=8192)
def _pieces(sizes: tuple[int, ...], device: torch.device) -> Tensor:
    """(which tensor, from where, its size) of every piece."""
    rows = [(i, start, size) for i, size in enumerate(sizes) for start in range(0, size, PIECE)]
    return torch.tensor(rows, dtype=torch.int64).reshape(-1, 3).to(device)


@lru_cache(maxsize=8192)
def _addresses(addresses: tuple[int, ...], device: torch.device) -> Tensor:
    """A gradient usually lies where it lay in the step before, so that this is asked again and again."""
    return torch.tensor(addresses, dtype=torch.int64).pin_memory().to(device, non_blocking=True)
