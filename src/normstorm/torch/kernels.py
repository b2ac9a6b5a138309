"""Updates in one Triton kernel for all tensors of a list: every number is read and written once.

A table holds the addresses of the tensors, a second one cuts them into pieces, so that one launch serves them all.
Results are those of `update` up to the last digit (a product and a sum are rounded once). Dense float32 or bfloat16
tensors on one CUDA device; arithmetic in float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, lru_cache
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

PIECE = 8192  # numbers that one program takes
KINDS = (torch.float32, torch.bfloat16)


@cache
def available() -> bool:
    return find_spec("triton") is not None


def serve(fused: bool | None, *lists: Sequence[Tensor]) -> bool:
    """Whether the kernels can take these lists, which go together tensor by tensor."""
    if fused is False or torch.compiler.is_compiling():
        return False
    fit = available() and _fit(lists)
    if fused and not fit:
        raise ValueError(
            "NormalizedStorm: fused must be None or False here, as the kernels need Triton and dense float32 or "
            f"bfloat16 tensors on one CUDA device; got fused={fused}"
        )
    return fit


def _fit(lists: Sequence[Sequence[Tensor]]) -> bool:
    device = lists[0][0].device
    if device.type != "cuda":
        return False
    for tensors in zip(*lists, strict=True):
        first = tensors[0]
        for tensor in tensors:
            same = tensor.shape == first.shape and tensor.stride() == first.stride() and tensor.device == device
            if not same or tensor.dtype not in KINDS:
                return False
        if not _dense(first):
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


def blend(m: Sequence[Tensor], g: Sequence[Tensor], keep: float, take: float) -> Tensor:
    """m <- keep m + take g; returns the sum of squares of the new m."""
    pieces = _pieces(tuple(tensor.numel() for tensor in m), m[0].device)
    sums = torch.empty(len(pieces), device=m[0].device)
    if len(pieces):
        _programs().blend[(len(pieces),)](
            _table(m), _table(g), pieces, sums, keep, take, m[0].dtype == KINDS[1], g[0].dtype == KINDS[1], PIECE
        )
    return sums.sum()


def squares(m: Sequence[Tensor]) -> Tensor:
    """The sum of squares, added in the same order as `blend` does."""
    pieces = _pieces(tuple(tensor.numel() for tensor in m), m[0].device)
    sums = torch.empty(len(pieces), device=m[0].device)
    if len(pieces):
        _programs().squares[(len(pieces),)](_table(m), pieces, sums, m[0].dtype == KINDS[1], PIECE)
    return sums.sum()


def shift(x: Sequence[Tensor], u: Sequence[Tensor], shrink: float, length: float | Tensor) -> None:
    """x <- shrink x - length u."""
    pieces = _pieces(tuple(tensor.numel() for tensor in x), x[0].device)
    if len(pieces):
        _programs().shift[(len(pieces),)](
            _table(x),
            _table(u),
            pieces,
            shrink,
            _scalar(length, x[0]),
            x[0].dtype == KINDS[1],
            u[0].dtype == KINDS[1],
            PIECE,
        )


def carry(
    x: Sequence[Tensor],
    m: Sequence[Tensor],
    g: Sequence[Tensor],
    shrink: float,
    length: float | Tensor,
    keep: float,
    take: float,
) -> None:
    """x <- shrink x - length m, then m <- keep m + take g."""
    pieces = _pieces(tuple(tensor.numel() for tensor in x), x[0].device)
    if len(pieces):
        narrow = [tensors[0].dtype == KINDS[1] for tensors in (x, m, g)]
        scalar = _scalar(length, x[0])
        _programs().carry[(len(pieces),)](
            _table(x), _table(m), _table(g), pieces, shrink, scalar, keep, take, *narrow, PIECE
        )


def _programs() -> Any:
    from . import programs

    return programs


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


def _table(tensors: Sequence[Tensor]) -> Tensor:
    return _addresses(tuple(tensor.data_ptr() for tensor in tensors), tensors[0].device)


@lru_cache(maxsize=8192)
def _addresses(addresses: tuple[int, ...], device: torch.device) -> Tensor:
    """A gradient usually lies where it lay in the step before, so that this is asked again and again."""
    return torch.tensor(addresses, dtype=torch.int64).to(device)
