"""The estimates of an optimizer: one owner of what torch keeps in `state`, for steps of either kind.

    momentum   m, the estimate itself
    fresh      the gradient at the new point, where a step between two points looks ahead (nesterov)
    square     v, the average of squares, in the geometry adam: of gradients, or with two points of estimates
    neurons    averages of squares of rows, in the geometry spectral: the same in every process
    stage      NONE, READY or DUE

A step reads and changes them through `Estimates` alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from . import triton_launch
from .directions import rows_of
from .options import WHO
from .sharding import local, spread
from .updates import Group, by_neurons, lerp_

NONE, READY, DUE = 0, 1, 2  # no estimate yet; an estimate; an estimate whose move is still to be made


def gradients(params: Sequence[Tensor]) -> list[Tensor]:
    grads = [p.grad for p in params if p.grad is not None]
    if any(grad.is_sparse for grad in grads):
        raise RuntimeError(f"{WHO}: gradients must be dense; got a sparse one")
    return [local(grad) for grad in grads]


def with_gradient(params: Iterable[Tensor]) -> list[Tensor]:
    return [p for p in params if p.grad is not None]


def drop_gradients(params: Iterable[Tensor]) -> None:
    for p in params:
        p.grad = None


def mixed(a: list[Tensor], b: list[Any], of_a: float, of_b: float) -> list[Tensor]:
    """of_a a + of_b b, new memory."""
    if any(map(spread, a)):
        return [of_a * one + of_b * other for one, other in zip(a, b, strict=True)]
    found = torch._foreach_mul(a, of_a)
    torch._foreach_add_(found, b, alpha=of_b)
    return list(found)


def _wide(p: Tensor) -> torch.dtype:
    """Of squares, which sixteen bits would not hold."""
    return torch.promote_types(p.dtype, torch.float32)


def _buffer(state: dict[str, Any], p: Tensor, name: str) -> Tensor:
    """A tensor of the state of a parameter, zero where there was none."""
    if name not in state:
        wide = _wide(p) if name == "square" else p.dtype
        state[name] = torch.zeros_like(p, dtype=wide, memory_format=torch.preserve_format)
    found: Tensor = state[name]
    return found


@dataclass(frozen=True)
class Squares:
    """Sums of squares that came with the last update, and of which estimates."""

    sums: list[Tensor]
    members: set[Tensor]


class Estimates:
    """A view of the optimizer's groups and state; made anew whenever it is needed, because torch replaces both."""

    def __init__(self, groups: list[Group], state: MutableMapping[Tensor, Any], fused: bool | None) -> None:
        self.groups, self.fused = groups, fused
        self._state = state

    @property
    def params(self) -> list[Tensor]:
        return [p for group in self.groups for p in group["params"]]

    @property
    def two_points(self) -> bool:
        """Whether a step asks gradients at two points."""
        return any(g["correction"] > 0 and g["beta"] > 0 and g["difference"] != "stale" for g in self.groups)

    @property
    def plain(self) -> bool:
        """Whether every Euclidean group moves along its momentum itself."""
        return not any(group["nesterov"] for group in self.groups if group["geometry"] == "euclidean")

    def stage(self, p: Tensor) -> int:
        found: int = self._state[p]["stage"]
        return found

    def set_stage(self, params: Iterable[Tensor], stage: int) -> None:
        for p in params:
            self._state[p]["stage"] = stage

    def due(self) -> Iterator[Tensor]:
        return (p for p in self.params if self.stage(p) == DUE)

    @property
    def any_due(self) -> bool:
        return any(True for _ in self.due())

    def momentum(self, params: Iterable[Tensor]) -> list[Tensor]:
        return [self._state[p]["momentum"] for p in params]

    def fresh(self, params: Iterable[Tensor]) -> list[Tensor]:
        return [self._state[p]["fresh"] for p in params]

    def shards(self, params: Iterable[Tensor], name: str = "momentum") -> list[Tensor]:
        """What this process holds of it; zero where there was none."""
        return [local(_buffer(self._state[p], p, name)) for p in params]

    def fold(self, params: list[Tensor], keep: float, take: float, name: str = "momentum") -> Tensor | None:
        """m <- keep m + take g; the sum of squares of the new m, if that came for nothing."""
        return lerp_(self.shards(params, name), gradients(params), keep, take, self.fused)

    def seconds(self, params: Iterable[Tensor], name: str = "square") -> list[Tensor]:
        """Averages of squares, as they are for this process."""
        return [local(self._state[p][name]) for p in params]

    def fold_squares(self, group: Group, params: list[Tensor], values: list[Tensor], factor: float = 1.0) -> None:
        """v <- beta2 v + (1 - beta2) (factor value)^2, from the first square on; nothing in another geometry."""
        if group["geometry"] != "adam":
            return
        new: list[tuple[Tensor, Tensor]] = []
        known: list[tuple[Tensor, Tensor]] = []
        for p, value in zip(params, values, strict=True):
            (new if self.stage(p) == NONE else known).append((p, value))
        for some, keep in ((new, 0.0), (known, float(group["beta2"]))):
            if some:
                v, own = self.seconds([p for p, _ in some]), [value for _, value in some]
                torch._foreach_zero_(v) if some is new else torch._foreach_mul_(v, keep)
                torch._foreach_addcmul_(v, own, own, value=(1 - keep) * factor**2)

    def squares(self, lists: list[list[Tensor]]) -> list[Tensor] | None:
        """As the kernels add them, so that a run that is resumed goes on bit by bit; None: they cannot serve."""
        momenta = [self.momentum(params) for params in lists if params]
        fit = [not any(map(spread, m)) and triton_launch.serve(self.fused, m) for m in momenta]
        return [triton_launch.squares(m) for m in momenta] if momenta and all(fit) else None

    def create(self) -> None:
        """All of it, because a distributed checkpoint is read into what is there; but none for frozen parameters."""
        two_points = self.two_points
        for group in self.groups:
            for p in group["params"]:
                state = self._state[p]
                state.setdefault("stage", NONE)
                if p.requires_grad:
                    _buffer(state, p, "momentum")
                    if group["nesterov"] and two_points:
                        _buffer(state, p, "fresh")
                    if group["geometry"] == "adam":
                        _buffer(state, p, "square")
                    if by_neurons(group):
                        shape = rows_of(p, group["blocks"], group["transposed"])
                        if "neurons" not in state or state["neurons"].shape != shape:
                            state["neurons"] = torch.zeros(shape, dtype=_wide(p), device=local(p).device)

    def check_loaded(self) -> None:
        """What a checkpoint brought fits the parameters."""
        for p in self.params:
            state = self._state[p]
            for name in state.keys() & {"momentum", "fresh", "square"}:
                if not isinstance(state[name], Tensor) or state[name].shape != p.shape:
                    shape = tuple(getattr(state[name], "shape", ()))
                    raise ValueError(
                        f"{WHO}.load_state_dict: {name} must have its parameter's shape {tuple(p.shape)}; got {shape}"
                    )
            stage = state.get("stage", NONE)
            if stage not in (NONE, READY, DUE):
                raise ValueError(f"{WHO}.load_state_dict: stage must be 0, 1 or 2; got {stage!r}")
            if stage != NONE and "momentum" not in state:
                raise ValueError(f"{WHO}.load_state_dict: stage must be 0 without a momentum; got {stage!r}")
