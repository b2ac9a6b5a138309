"""Long vectors in little room: inner products survive, in the mean, when signs are drawn and entries are added up.

Entry i of the vectors of a list, counted through, goes into bucket i mod SIZE with the sign s_i: with independent signs
E <Sa, Sb> = <a, b>, and the deviation is about sqrt(2 / SIZE) ||a|| ||b|| where entries are spread over the buckets.
SIZE is prime, so that the rows and columns of matrices are. Vectors of at most SIZE entries do not meet in a bucket:
their products are exact. S is linear: differences of sketches are sketches of differences.

Source: Charikar, Chen and Farach-Colton, "Finding frequent items in data streams" (2002), with a fixed hash.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

SIZE = 65521
TOGETHER = 2**24  # signs that exist at one time


class Sketch:
    """The same signs for every vector that one object sees."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def __call__(self, vector: Sequence[Tensor]) -> Tensor:
        """In double precision, on the device of the first tensor."""
        device = vector[0].device
        total = torch.zeros(SIZE, dtype=torch.float64, device=device)
        if sum(part.numel() for part in vector) <= SIZE:
            flat = torch.cat([part.detach().flatten().to(device, torch.float64) for part in vector])
            total[: flat.numel()] = flat
            return total
        draw = torch.Generator(device).manual_seed(self.seed)
        place = 0
        for part in vector:
            for piece in torch.split(part.detach().flatten(), TOGETHER):
                place = self._add(total, piece.to(device), place, draw)
        return total

    def _add(self, total: Tensor, piece: Tensor, place: int, draw: torch.Generator) -> int:
        """Up to the end of a row, whole rows, and what is left; returns where the next entry goes."""
        signs = torch.randint(0, 2, piece.shape, generator=draw, device=piece.device, dtype=torch.int8)
        wide = torch.float64 if piece.dtype == torch.float64 else torch.float32
        signed = (2 * signs - 1).to(wide).mul_(piece)
        first = min((-place) % SIZE, signed.numel())
        rows = (signed.numel() - first) // SIZE
        middle = first + rows * SIZE
        total[place : place + first] += signed[:first]
        total += signed[first:middle].view(rows, SIZE).sum(0, dtype=torch.float64)
        total[: signed.numel() - middle] += signed[middle:]
        return (place + signed.numel()) % SIZE
