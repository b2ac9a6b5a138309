"""What others do to gradients while the optimizer looks on: clip them, leave them lying, or own them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook

from .options import WHO
from .sharding import local, reduced_elsewhere, spread, squares

SMALL = 2**20  # numbers: a gradient that lean memory may hold back for the sake of seeing it changed
INSIDE: list[set[Tensor]] = []  # parameters of the optimizers that are inside a pass


def canary(params: Iterable[Tensor]) -> Tensor | None:
    """The smallest tensor whose gradient may be watched: one that no other process still has to add to."""
    fit = [p for p in params if p.requires_grad and not spread(p) and not reduced_elsewhere(p) and p.numel() <= SMALL]
    return min(fit, key=Tensor.numel, default=None)


@contextmanager
def unchanged(p: Tensor | None, sentence: str) -> Iterator[None]:
    """Refuse, if the gradient is changed after the last backward: whoever clips, clips all of them."""
    if p is None:
        yield
        return
    seen: list[int] = []

    def arrived(q: Tensor) -> None:
        grad = q.grad
        alone = grad is not None and not grad.is_sparse and grad.untyped_storage().nbytes() == grad.nbytes
        seen[:] = [grad._version] if grad is not None and alone else []  # views of one buffer count together

    hook = p.register_post_accumulate_grad_hook(arrived)  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        hook.remove()
    if seen and p.grad is not None and p.grad._version != seen[0]:
        raise RuntimeError(f"{WHO}: {sentence}")


def whole_batch(closure: Callable[[], Any], params: Sequence[Tensor]) -> Callable[[], Any]:
    """A closure for two points: gradients that wait for more to be added to them were taken at one point, unless the
    closure puts them away before its first backward, in whatever way."""
    waiting = {p: p.grad for p in params if p.grad is not None and (p.grad.is_sparse or bool(local(p.grad).any()))}
    if not waiting:
        return closure

    def arriving(p: Tensor, grad: Tensor, new: set[Tensor]) -> None:
        if p not in new and p.grad is not None and (p.grad.is_sparse or bool(local(p.grad).any())):
            raise RuntimeError(
                f"{WHO}: a closure must evaluate the whole batch if correction > 0, and zero_grad() first; got "
                "gradients of an earlier backward, as from accumulation, that it adds to"
            )
        new.add(p)

    def checked() -> Any:
        new: set[Tensor] = set()
        for p, grad in waiting.items():
            p.grad = grad
        hooks = [p.register_hook(partial(arriving, p, new=new)) for p in waiting if p.requires_grad]  # type: ignore
        try:
            return closure()
        finally:
            for hook in hooks:
                hook.remove()
            for p in waiting.keys() - new:
                p.grad = None

    return checked


@contextmanager
def others_kept(own: set[Tensor], module: nn.Module | None) -> Iterator[None]:
    """What a pass at the old point adds to gradients of parameters that are another optimizer's is taken back.

    With a module, its parameters are meant; without one, those of every layer that is called meanwhile. Parameters of
    an optimizer that is in a pass of its own are left to it.
    """
    kept: dict[Tensor, Tensor | None] = {}

    def put_away(params: Iterable[Tensor | None]) -> None:
        for p in params:
            if p is not None and p not in own and p not in kept and not any(p in some for some in INSIDE):
                kept[p] = p.grad
                p.grad = None

    def called(layer: nn.Module, *_: Any) -> None:
        put_away(layer.parameters() if hasattr(layer, "_orig_mod") else layer._parameters.values())

    hook = None
    if module is None:
        hook = register_module_forward_pre_hook(called)
    else:
        put_away(module.parameters())
    try:
        yield
    finally:
        if hook is not None:
            hook.remove()
        for p, grad in kept.items():
            p.grad = grad


def finite(grads: Sequence[Tensor]) -> bool:
    """Whether every gradient is; the host waits for the answer."""
    return not grads or bool(torch.isfinite(squares(grads).sum()))


def refuse_accumulation(backwards: int) -> None:
    """Accelerate does not call a closure for the batches before the last that it accumulates over."""
    state = sys.modules.get("accelerate.state")
    if state is None or not state.GradientState._shared_state:
        return
    steps = state.GradientState().num_steps
    if backwards < steps:
        raise ValueError(
            f"{WHO}: a closure must evaluate all batches that Accelerate accumulates, and backwards say how many: "
            f"it is called for the last one alone; got backwards={backwards} and gradient_accumulation_steps={steps}"
        )
