"""Lengths for loggers: gradients are gone when a step has ended."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .sharding import squares


class Norms:
    """Adds up squares while gradients are there; nothing makes the host wait."""

    def __init__(self) -> None:
        self.sums: list[Tensor] = []

    def add(self, params: Sequence[Tensor]) -> None:
        if grads := [p.grad for p in params if p.grad is not None]:
            self.sums.append(squares(grads).sum())

    def gradient(self) -> Tensor | None:
        return torch.stack([part.to(self.sums[0]) for part in self.sums]).sum().sqrt() if self.sums else None
