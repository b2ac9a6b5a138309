"""What the options of NormalizedStorm may be. An error says which option, what is allowed and what was given."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from normstorm._shared.validate import integer, real, refuse

from .directions import GEOMETRIES, MATRICES

WHO = "NormalizedStorm"
DIFFERENCES = ("exact", "hvp", "stale")
STARTS = ("first", "zero")
MEMORIES = ("fast", "lean")
WIDE = ("memory", "fused", "module", "norms", "skip_nonfinite")  # options of the optimizer, not of a group


def as_number(value: Any) -> float:
    """A number, or a tensor that holds one; nan for anything else."""
    if isinstance(value, Tensor):
        return float(value) if value.numel() == 1 and not value.is_complex() and value.dtype != torch.bool else math.nan
    return real(value)


def _finite(least: float, strict: bool = False) -> Callable[[Any], bool]:
    def fits(value: Any) -> bool:
        found = as_number(value)
        return math.isfinite(found) and (found > least if strict else found >= least)

    return fits


ALLOWED: dict[str, tuple[Callable[[Any], bool], str]] = {
    "lr": (_finite(0), "a number >= 0"),
    "beta": (lambda value: 0 <= as_number(value) < 1, "a number in [0, 1)"),
    "correction": (lambda value: 0 <= as_number(value) <= 1, "a number in [0, 1]"),
    "weight_decay": (_finite(0), "a number >= 0"),
    "scale": (_finite(0, strict=True), "a number > 0"),
    "beta2": (lambda value: 0 <= as_number(value) < 1, "a number in [0, 1)"),
    "geometry": (lambda value: value in GEOMETRIES, f"one of {', '.join(GEOMETRIES)}"),
    "difference": (lambda value: value in DIFFERENCES, f"one of {', '.join(DIFFERENCES)}"),
    "start": (lambda value: value in STARTS, f"one of {', '.join(STARTS)}"),
    "nesterov": (lambda value: isinstance(value, bool), "True or False"),
    "neurons": (lambda value: isinstance(value, bool), "True or False"),
    "maximize": (lambda value: isinstance(value, bool), "True or False"),
    "spectral_dtype": (
        lambda value: value is None or (isinstance(value, torch.dtype) and value.is_floating_point),
        "None or a floating-point torch.dtype",
    ),
    "blocks": (lambda value: (integer(value) or 0) >= 1, "an integer >= 1"),
    "transposed": (lambda value: isinstance(value, bool), "True or False"),
    "memory": (lambda value: value in MEMORIES, f"one of {', '.join(MEMORIES)}"),
    "fused": (lambda value: value is None or isinstance(value, bool), "None, True or False"),
    "module": (lambda value: value is None or isinstance(value, torch.nn.Module), "None or a torch.nn.Module"),
    "norms": (lambda value: isinstance(value, bool), "True or False"),
    "skip_nonfinite": (lambda value: isinstance(value, bool), "True or False"),
    "backwards": (lambda value: (integer(value) or 0) >= 1, "an integer >= 1"),
    "share": (lambda value: 0 < as_number(value) <= 1, "a number in (0, 1]"),
}


def check(name: str, value: Any) -> None:
    fits, allowed = ALLOWED[name]
    try:
        fine = fits(value)
    except TypeError:  # a value that cannot be compared or hashed
        fine = False
    if not fine:
        refuse(WHO, name, allowed, value)


def check_group(group: dict[str, Any]) -> None:
    """Every option of a parameter group, and whether its parameters can have them."""
    for name in group.keys() & ALLOWED.keys():
        if name in WIDE:
            raise ValueError(f"{WHO}: {name} must be the same for all groups; got {name}={group[name]!r} in one")
        check(name, group[name])
    for p in group["params"]:
        if p.is_complex() or not p.is_floating_point():
            raise ValueError(f"{WHO}: params must be real floating-point tensors; got one of {p.dtype}")
        if group["geometry"] in MATRICES and p.ndim < 2:
            raise ValueError(
                f"{WHO}: geometry must not be {group['geometry']!r} for a tensor with fewer than two axes, which is no "
                f"matrix; got one of shape {tuple(p.shape)}"
            )
    _check_blocks(group)


def _check_blocks(group: dict[str, Any]) -> None:
    """Whether tensors can hold so many matrices."""
    blocks, transposed = group["blocks"], group["transposed"]
    if (blocks > 1 or transposed) and group["geometry"] != "spectral":
        raise ValueError(
            f"{WHO}: blocks and transposed must be 1 and False unless the geometry is spectral; got blocks={blocks}, "
            f"transposed={transposed} and {group['geometry']!r}"
        )
    for p in group["params"]:
        outputs = p.shape[1 if transposed and (p.ndim < 3 or p.shape[0] != blocks) else 0] if p.ndim > 1 else 1
        if outputs % blocks:
            raise ValueError(
                f"{WHO}: blocks must divide the axis of outputs; got blocks={blocks} and a tensor of shape "
                f"{tuple(p.shape)}"
            )
