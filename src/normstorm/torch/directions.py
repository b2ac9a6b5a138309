"""How a step is measured: from an estimate n of the gradient to a direction u(n).

    euclidean   n / ||n||, one norm over every parameter of every group with this geometry (the paper)
    tensor      n / ||n||, a norm for every tensor
    rms         n / sqrt(mean of n^2), for every tensor
    sign        sign(n)
    row         every row divided by its norm;   column: every column
    spectral    sqrt(max(1, rows / columns)) orthogonal(n), five steps of Muon's quintic iteration
    adam        n / sqrt(v), v the average of squares that `estimates` keeps for every coordinate

0 / 0 = 0 everywhere. A tensor with more than two axes (a convolution) is a matrix: first axis times all others. In the
spectral geometry a tensor may hold several matrices (`blocks`: queries, keys and values one below the other, or a stack
of experts), and hold them as inputs x outputs (`transposed`); each has its own direction and scale. With `neurons`,
every row of an orthogonal matrix is divided by the root of its average square over the steps, and the matrix brought
back to its norm.

Source: Pethick et al. 2025 (norm balls); Jordan et al. 2024 (the quintic iteration and its scale); Kingma and Ba 2015;
Li et al. 2025 (neurons).
Departures: row and column divide by Euclidean norms, so that a row or column moves by lr; no floor is added to a norm,
except in the spectral geometry (1e-7, as its authors); the average of squares begins with the first square in place of
a correction of its bias.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor

from .sharding import local, on_whole, squares

GEOMETRIES = ("euclidean", "tensor", "rms", "sign", "row", "column", "spectral", "adam")
MATRICES = ("row", "column", "spectral")
QUINTIC = (3.4445, -4.7750, 2.0315)
STEPS = 5
FLOOR = 1e-7
LEAST = 1e-20
TOGETHER = 2**25  # numbers whose directions exist at one time, unless one tensor has more


def inverse(norm: Tensor) -> Tensor:
    """1 / norm, and 0 for 0."""
    return torch.where(norm > 0, 1 / torch.where(norm > 0, norm, 1), 0)


def portions(geometry: str, tensors: Sequence[Tensor]) -> list[list[int]]:
    """Which tensors to move together: few enough for the memory of their directions, matrices by shape."""
    order = list(range(len(tensors)))
    if geometry == "spectral":
        order.sort(key=lambda i: tuple(tensors[i].shape))
    found: list[list[int]] = []
    size = 0
    for i in order:
        if not found or size + tensors[i].numel() > TOGETHER:
            found.append([])
            size = 0
        found[-1].append(i)
        size += tensors[i].numel()
    return found


class Neurons(NamedTuple):
    """Average squares of the rows of every tensor, which change as directions are made."""

    squares: list[Tensor]
    beta2: float


def directions(
    geometry: str,
    estimates: Sequence[Tensor],
    dtype: torch.dtype | None,
    blocks: int = 1,
    transposed: bool = False,
    neurons: Neurons | None = None,
) -> list[Tensor]:
    """u(n) of every tensor, new memory, as local shards; every geometry but euclidean and adam."""
    if geometry == "sign":
        return [local(n).sign() for n in estimates]
    if geometry in ("tensor", "rms"):
        factors = inverse(squares(estimates).sqrt())
        if geometry == "rms":
            factors = factors * _roots(tuple(n.numel() for n in estimates), factors.dtype, factors.device)
        return [_scaled(local(n), factor) for n, factor in zip(estimates, factors.unbind(), strict=True)]
    if geometry == "spectral":
        return on_whole(lambda wholes: orthogonal(wholes, dtype, blocks, transposed, neurons), estimates)
    return on_whole(lambda wholes: [_by_lines(whole, 1 if geometry == "row" else 0) for whole in wholes], estimates)


@lru_cache(maxsize=1024)
def _roots(sizes: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Square roots on the device; to copy them in every step would make the host wait for it."""
    return torch.tensor([size**0.5 for size in sizes], dtype=dtype).to(device)


def _scaled(n: Tensor, factor: Tensor) -> Tensor:
    if n.dtype.itemsize < 4:  # the factor itself need not fit into sixteen bits
        return (n * factor.to(n.device).expand(1)).to(n.dtype).reshape(n.shape)
    return n * factor.to(n)


def adam(estimates: Sequence[Tensor], seconds: Sequence[Tensor]) -> list[Tensor]:
    """n / sqrt(v), new memory, of local shards; the floor is far below any v that is not zero."""
    roots = torch._foreach_sqrt(list(seconds))
    torch._foreach_clamp_min_(roots, LEAST)
    u = torch._foreach_div(list(estimates), roots)
    return [one.to(n.dtype) for one, n in zip(u, estimates, strict=True)]


def _matrix(tensor: Tensor) -> Tensor:
    return tensor.flatten(1)


def _wide(tensor: Tensor) -> torch.dtype:
    """The precision of its norms."""
    return torch.promote_types(tensor.dtype, torch.float32)


def _by_lines(n: Tensor, axis: int) -> Tensor:
    M = _matrix(n)
    norms = torch.linalg.vector_norm(M, dim=axis, keepdim=True, dtype=_wide(M))
    return (M * inverse(norms)).to(n.dtype).reshape(n.shape)


def matrices_of(tensor: Tensor, blocks: int = 1, transposed: bool = False) -> Tensor:
    """(n, rows, columns), rows the outputs: the matrices that a tensor holds.

    blocks       the first axis holds so many, one below the other; if it has no more entries, each is a matrix
    transposed   of each matrix the first axis is that of the inputs, as in x @ W
    """
    if _apart(tensor, blocks):
        stack = tensor.flatten(2)
        return stack.mT if transposed else stack
    matrix = _matrix(tensor.transpose(0, 1) if transposed else tensor)
    return matrix.reshape(blocks, matrix.shape[0] // blocks, matrix.shape[1])


def rows_of(tensor: Tensor, blocks: int, transposed: bool) -> tuple[int, int, int]:
    """How many matrices a tensor holds and how many rows each: the shape of averages over their rows."""
    if _apart(tensor, blocks):
        return blocks, prod(tensor.shape[2:]) if transposed else tensor.shape[1], 1
    return blocks, tensor.shape[1 if transposed else 0] // blocks, 1


def _apart(tensor: Tensor, blocks: int) -> bool:
    return tensor.ndim > 2 and 1 < blocks == tensor.shape[0]


def _back(stack: Tensor, like: Tensor, blocks: int, transposed: bool) -> Tensor:
    """The tensor whose matrices these are."""
    if _apart(like, blocks):
        return (stack.mT.contiguous() if transposed else stack).reshape(like.shape)
    if transposed:
        return stack.reshape(like.transpose(0, 1).shape).transpose(0, 1).contiguous()
    return stack.reshape(like.shape)


def orthogonal(
    tensors: Sequence[Tensor],
    dtype: torch.dtype | None,
    blocks: int = 1,
    transposed: bool = False,
    neurons: Neurons | None = None,
) -> list[Tensor]:
    """Scaled orthogonal factors; matrices of one shape go through the iteration together."""
    stacks = [matrices_of(tensor, blocks, transposed) for tensor in tensors]
    shapes: dict[tuple[torch.Size, torch.dtype, torch.device], list[int]] = {}
    for i, stack in enumerate(stacks):
        shapes.setdefault((stack.shape[1:], stack.dtype, stack.device), []).append(i)
    results: dict[int, Tensor] = {}
    for (shape, kind, device), members in shapes.items():
        rows, columns = shape
        scale = max(1.0, rows / max(columns, 1)) ** 0.5
        usual = dtype or _usual(kind, device)
        factors = newton_schulz(torch.cat([stacks[i] for i in members]), usual, scale).to(kind)
        if neurons is not None:
            factors = _by_neurons(factors, [neurons.squares[i] for i in members], neurons.beta2)
        for i, factor in zip(members, factors.split_with_sizes([len(stacks[i]) for i in members]), strict=True):
            results[i] = _back(factor, tensors[i], blocks, transposed)
    return [results[i] for i in range(len(tensors))]


def _by_neurons(batch: Tensor, squares: list[Tensor], beta2: float) -> Tensor:
    """Squares are sums over a row, which is the same where the norm comes back; 0: there were none yet."""
    fresh = torch.linalg.vector_norm(batch, dim=2, keepdim=True, dtype=_wide(batch)).square()
    old = torch.cat(squares).to(fresh)
    new = torch.where(old > 0, torch.lerp(old, fresh, 1 - beta2), fresh)
    torch._foreach_copy_(squares, list(new.split_with_sizes([len(some) for some in squares])))
    new.clamp_min_(LEAST)
    length = fresh.sum(1, keepdim=True) / (fresh / new).sum(1, keepdim=True).clamp_min_(LEAST)
    return batch.mul_((length / new).sqrt_())


def _usual(kind: torch.dtype, device: torch.device) -> torch.dtype:
    """Sixteen bits where they are fast and the parameter is not wider than single precision."""
    return torch.bfloat16 if device.type == "cuda" and kind != torch.float64 else kind


def newton_schulz(batch: Tensor, dtype: torch.dtype, scale: float = 1.0) -> Tensor:
    """Five steps of the quintic iteration on a batch of matrices, times scale; singular values end near 1, not at 1.

    Tall matrices are multiplied from the right: a transposed result would not lie in memory as its parameter does.
    """
    a, b, c = QUINTIC
    tall = batch.shape[1] > batch.shape[2]
    norms = torch.linalg.matrix_norm(batch, keepdim=True, dtype=_wide(batch)) + FLOOR
    X = torch.div(batch, norms, out=torch.empty(batch.shape, dtype=dtype, device=batch.device))
    del batch
    for factor in (1.0,) * (STEPS - 1) + (scale,):
        A = X.mT @ X if tall else X @ X.mT
        A = torch.baddbmm(A, A, A, beta=b, alpha=c)
        X = torch.baddbmm(X, *((X, A) if tall else (A, X)), beta=factor * a, alpha=factor)
    return X
