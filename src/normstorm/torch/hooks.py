"""Lean memory: gradients are taken while the backward pass goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

import torch
from torch import Tensor

from .options import WHO
from .sharding import reduced_elsewhere

FEW = 2**24  # numbers whose gradients wait for each other in lean memory: one by one, small matrices would be slow

Action = Callable[[list[Tensor]], None]
Folding = Callable[[Action], AbstractContextManager[None]]


@contextmanager
def folding(params: Sequence[Tensor], action: Action, backwards: int) -> Iterator[None]:
    """Give gradients to the action a few at a time, as the last backward completes them.

    Those that are left at the end are the caller's; so are all gradients that are still to be averaged over processes.
    """
    seen: dict[Tensor, int] = {}
    waiting: list[Tensor] = []

    def arrived(p: Tensor) -> None:
        seen[p] = seen.get(p, 0) + 1
        if seen[p] > backwards:
            raise RuntimeError(
                f"{WHO}: backwards must be the number of backward calls in a pass if memory='lean', which moves "
                f"weights during the last one; got backwards={backwards} and one more (also by reentrant checkpoints)"
            )
        if seen[p] == backwards:
            waiting.append(p)
            if sum(map(Tensor.numel, waiting)) >= FEW:
                with torch.no_grad():
                    action(waiting)
                waiting.clear()

    mine = [p for p in params if p.requires_grad and not reduced_elsewhere(p)]
    hooks = [p.register_post_accumulate_grad_hook(arrived) for p in mine]  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
