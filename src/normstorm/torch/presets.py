"""Geometries for the tensors of a deep network."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from .optimizer import NormalizedStorm
from .roles import WHO, Place, places

# Of embeddings, heads and vectors, as AdamW beside Muon: their coordinates move by about lr times scale.
COMPANION = {"geometry": "adam", "scale": 0.15, "beta": 0.9, "nesterov": False, "start": "first"}
TABLE = {"geometry": "sign", "scale": 0.3}  # positions and tokens begin near 0 and have far to go
STEPS: dict[str, dict[str, Any]] = {  # options by role
    "matrix": {"geometry": "spectral", "scale": 1.0},
    "stack": {"geometry": "spectral", "scale": 1.0},
    "embedding": COMPANION,
    "head": COMPANION,
    "table": TABLE,
    "vector": COMPANION,
}


def assign(
    model: nn.Module, head: nn.Module | None = None, *, roles: Mapping[str, str] | None = None
) -> list[dict[str, Any]]:
    """Parameter groups by role: spectral for matrices and convolutions, adam for embeddings, heads and vectors, sign
    for tables. Frozen parameters are among them, so that they learn when they are unfrozen.

    head    the output layer; None: linear layers that are called so, else the last one, unless it is the only matrix
    roles   what parameters are, by name, where the model does not tell: matrix, stack (of experts: (E, inputs,
            outputs)), embedding, table (positions, tokens), head, vector
    """
    groups: dict[tuple[Any, ...], dict[str, Any]] = {}
    for place in _places(model, head, roles):
        options = {**STEPS[place.role], "blocks": place.blocks, "transposed": place.transposed}
        groups.setdefault(tuple(options.items()), {"params": [], **options})["params"].append(place.parameter)
    return sorted(groups.values(), key=lambda group: group["geometry"] != "spectral")


def _places(model: nn.Module, head: nn.Module | None, roles: Mapping[str, str] | None) -> list[Place]:
    if not isinstance(model, nn.Module):
        raise ValueError(f"{WHO}: model must be a torch.nn.Module; got {type(model).__name__}")
    if head is not None and not isinstance(head, nn.Module):
        raise ValueError(f"{WHO}: head must be None or a torch.nn.Module; got {type(head).__name__}")
    return places(model, head, roles or {})


def describe(model: nn.Module, head: nn.Module | None = None, *, roles: Mapping[str, str] | None = None) -> str:
    """What `assign` makes of every parameter, a line each: name, shape, role and geometry."""
    rows = [("parameter", "shape", "role", "geometry", "scale", "matrices")]
    for place in _places(model, head, roles):
        geometry, scale = STEPS[place.role]["geometry"], STEPS[place.role]["scale"]
        many = f"{place.blocks}{' transposed' if place.transposed else ''}" if geometry == "spectral" else ""
        frozen = "" if place.parameter.requires_grad else " (frozen)"
        shape = " x ".join(map(str, place.parameter.shape)) or "-"
        rows.append((place.name, shape, place.role + frozen, geometry, f"{scale:g}", many))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)


class Preset(NormalizedStorm):
    """NormalizedStorm whose groups `assign` makes, also those that are added later."""

    def __init__(self, model: nn.Module, *given: Any, head: nn.Module | None, roles: Any, **options: Any) -> None:
        self._asked = {"head": head, "roles": roles}
        super().__init__(assign(model, **self._asked), *given, module=model, **options)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """A group that names no geometry is divided by the roles of its parameters in the model."""
        if not isinstance(param_group, dict) or "geometry" in param_group:
            super().add_param_group(param_group)
            return
        listed = param_group["params"]
        listed = [listed] if isinstance(listed, torch.Tensor) else list(listed)
        wanted = {p[1] if isinstance(p, tuple) else p for p in listed}
        assert self.module is not None
        groups = assign(self.module, **self._asked)
        if wanted - {p for group in groups for p in group["params"]}:
            raise ValueError(
                f"{WHO}: a group of tensors that are not the model's must name its geometry; got one without"
            )
        for group in groups:
            if some := [p for p in group["params"] if p in wanted]:
                super().add_param_group({**group, **param_group, "params": some})

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_asked": self._asked}


def spectral_storm(
    model: nn.Module,
    lr: float | torch.Tensor = 0.02,
    beta: float = 0.95,
    *,
    correction: float = 0.0,
    nesterov: bool = True,
    start: str = "zero",
    head: nn.Module | None = None,
    roles: Mapping[str, str] | None = None,
    **options: Any,
) -> Preset:
    """NormalizedStorm with the groups of `assign`: for deep networks, where the correction does not pay."""
    steps = {"correction": correction, "nesterov": nesterov, "start": start}
    return Preset(model, lr, beta, head=head, roles=roles, **steps, **options)
