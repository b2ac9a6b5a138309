"""Geometries for the tensors of a deep network."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from .optimizer import NormalizedStorm

EMBEDDINGS = (nn.Embedding, nn.EmbeddingBag)
SMALL = 0.15  # of embeddings, heads and vectors, against matrices: their coordinates move by lr times this


def assign(model: nn.Module, head: nn.Module | None = None) -> list[dict[str, Any]]:
    """Parameter groups: spectral for hidden matrices and convolutions, adam for embeddings, head and vectors.

    `head`: the output layer; None takes the last nn.Linear, unless it is the only matrix. A tensor that is shared with
    an embedding counts as one.
    """
    if not isinstance(model, nn.Module):
        raise ValueError(f"assign: model must be a torch.nn.Module; got {type(model).__name__}")
    linear = [layer for layer in model.modules() if isinstance(layer, nn.Linear)]
    if head is not None and not isinstance(head, nn.Module):
        raise ValueError(f"assign: head must be None or a torch.nn.Module; got {type(head).__name__}")
    last = head if head is not None else _last(linear, model)
    outer = {p for layer in model.modules() if isinstance(layer, EMBEDDINGS) for p in layer.parameters()}
    outer |= set(last.parameters()) if last is not None else set()
    groups: dict[str, list[nn.Parameter]] = {"spectral": [], "adam": []}
    for p in model.parameters():
        if p.requires_grad:
            groups["adam" if p.ndim < 2 or p in outer else "spectral"].append(p)
    scales = {"spectral": 1.0, "adam": SMALL}
    own = {"spectral": {}, "adam": {"beta": 0.9, "nesterov": False, "start": "first"}}
    return [{"params": ps, "geometry": name, "scale": scales[name], **own[name]} for name, ps in groups.items() if ps]


def _last(linear: list[nn.Linear], model: nn.Module) -> nn.Linear | None:
    """The last linear layer, if there is another matrix before it."""
    if not linear:
        return None
    own = set(linear[-1].parameters())
    return linear[-1] if any(p.ndim > 1 and p not in own for p in model.parameters()) else None


def spectral_storm(
    model: nn.Module,
    lr: float | torch.Tensor = 0.02,
    beta: float = 0.95,
    *,
    correction: float = 0.0,
    nesterov: bool = True,
    start: str = "zero",
    head: nn.Module | None = None,
    **options: Any,
) -> NormalizedStorm:
    """NormalizedStorm with the groups of `assign`: for deep networks, where the correction does not pay."""
    return NormalizedStorm(
        assign(model, head), lr, beta, correction=correction, nesterov=nesterov, start=start, module=model, **options
    )
