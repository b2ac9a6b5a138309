"""What a torch.optim.Optimizer does besides stepping: groups, state, checkpoints."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from .moves import DUE, NONE, READY, buffer
from .options import ALLOWED, WHO, check_group
from .walk import Walk


class Habits(Optimizer):
    """The optimizer without its steps. `_walk` is the step between two points that is under way, if any."""

    memory: str
    fused: bool | None
    module: nn.Module | None
    _walk: Walk | None
    _sums: tuple[list[Tensor], set[Tensor]] | None  # squares of estimates, and of which
    _zeroed: bool

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        self._refuse_inside("add_param_group")
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        try:
            check_group(group)
        except ValueError:
            self.param_groups.pop()
            raise
        self._create_state()

    def _create_state(self) -> None:
        """All of it, because a distributed checkpoint is read into what is there; but none for frozen parameters."""
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                state.setdefault("stage", NONE)
                if p.requires_grad:
                    buffer(state, p, "momentum")
                    if group["nesterov"] and self.two_points:
                        buffer(state, p, "fresh")

    def __getstate__(self) -> dict[str, Any]:
        self._refuse_inside("pickle or copy")
        return {**super().__getstate__(), "memory": self.memory, "fused": self.fused, "module": self.module}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._walk = None
        self._sums = None
        self._zeroed = False

    def state_dict(self) -> dict[str, Any]:
        self._refuse_inside("state_dict")
        return super().state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._refuse_inside("load_state_dict")
        before = self.state, self.param_groups
        super().load_state_dict(state_dict)
        try:
            for group in self.param_groups:
                if missing := (self.defaults.keys() & ALLOWED.keys()) - group.keys():
                    raise ValueError(
                        f"{WHO}.load_state_dict: every group must have the options of {WHO}; got one without "
                        f"{', '.join(sorted(missing))}"
                    )
                check_group(group)
                self._check_state(group)
            self._create_state()
        except ValueError:
            self.__setstate__({"state": before[0], "param_groups": before[1]})
            raise
        self._sums = None

    def _check_state(self, group: dict[str, Any]) -> None:
        for p in group["params"]:
            state = self.state[p]
            for name in state.keys() & {"momentum", "fresh"}:
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

    def _refuse_inside(self, what: str) -> None:
        if self._walk is not None:
            raise RuntimeError(
                f"{WHO}: {what} must not be asked between the passes of a step; finish it with step() or give it up "
                "with abandon()"
            )

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As ever; refused where .grad holds what an earlier pass of a scaled step left there."""
        if self._walk is not None and self._walk.scaled and self._walk.inside in ("new", "rest"):
            raise RuntimeError(f"{WHO}: zero_grad must not be called at the new point of a scaled step")
        super().zero_grad(set_to_none)
        self._zeroed = True

    # What the groups ask for.

    @property
    def two_points(self) -> bool:
        """Whether a step asks gradients at two points."""
        return any(
            group["correction"] > 0 and group["beta"] > 0 and group["difference"] != "stale"
            for group in self.param_groups
        )

    @property
    def plain_estimates(self) -> bool:
        """Whether every Euclidean group moves along its momentum itself."""
        return not any(group["nesterov"] for group in self.param_groups if group["geometry"] == "euclidean")

    def _prepare(self) -> None:
        """Options may have been changed by hand or by a scheduler since the last step."""
        kinds = {group["difference"] for group in self.param_groups}
        if len(kinds) > 1:
            raise ValueError(f"{WHO}: difference must be the same in all groups; got {', '.join(sorted(kinds))}")
        for group in self.param_groups:
            check_group(group)
        self._create_state()
