"""A batch and its first k samples."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from normstorm._shared.validate import whole

from .options import WHO


@dataclass(frozen=True)
class Part:
    """Some samples of a batch, and their mean loss."""

    loss: Callable[..., Any]
    samples: Any

    def value(self) -> Tensor:
        found = self.loss(*self.samples) if isinstance(self.samples, tuple | list) else self.loss(self.samples)
        if not isinstance(found, Tensor) or found.numel() != 1:
            raise ValueError(f"{WHO}: loss must return a tensor with one number; got {described(found)}")
        if not found.requires_grad:
            raise ValueError(f"{WHO}: loss must depend on a parameter that requires a gradient; got one that does not")
        return found

    def backward(self) -> Tensor:
        found = self.value()
        found.backward()  # type: ignore[no-untyped-call]
        return found.detach()


def described(value: Any) -> str:
    return f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__


def parts_of(loss: Any, batch: Any, k: Any, split: bool) -> tuple[Part, Part | None, float]:
    """The first k samples, the others (None if there are none), and k / K; all together unless `split`."""
    if not callable(loss):
        raise ValueError(f"{WHO}: step must be given a loss with batch=...; got {type(loss).__name__}")
    if batch is None:
        raise ValueError(f"{WHO}: batch must be given with k; got batch=None")
    K = size_of(batch)
    k = K if k is None else whole(WHO, "k", k, 1, K, "K")
    if not split or k == K:
        return Part(loss, batch), None, 1.0
    return Part(loss, _slice(batch, slice(None, k))), Part(loss, _slice(batch, slice(k, None))), k / K


def _tensors(batch: Any) -> list[Any]:
    if isinstance(batch, dict):
        return list(batch.values())
    return list(batch) if isinstance(batch, tuple | list) else [batch]


def size_of(batch: Any) -> int:
    tensors = _tensors(batch)
    sizes = {tensor.shape[0] if isinstance(tensor, Tensor) and tensor.ndim else None for tensor in tensors}
    if len(sizes) != 1 or None in sizes or 0 in sizes:
        raise ValueError(
            f"{WHO}: batch must be a tensor, or a tuple, list or dict of tensors, with the same number of samples "
            f">= 1 along the first axis; got {', '.join(described(tensor) for tensor in tensors) or 'nothing'}"
        )
    size = sizes.pop()
    assert size is not None
    return int(size)


def _slice(batch: Any, where: slice) -> Any:
    if isinstance(batch, dict):
        return {name: tensor[where] for name, tensor in batch.items()}
    if isinstance(batch, torch.Tensor):
        return batch[where]
    return [tensor[where] for tensor in batch]
