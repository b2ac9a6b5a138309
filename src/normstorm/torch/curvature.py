"""A step whose difference is a Hessian-vector product: H(x_t) (x_t - x_{t-1}) in place of g(x_t) - g(x_{t-1}).

    m_t = beta m_{t-1} + (1 - beta) g_K(x_t) + c beta H_k(x_t) (x_t - x_{t-1})

Two nearly equal gradients cancel when steps are small; a product does not. It costs about as much as two more backward
passes over the k samples, and the graph of the first one is kept.

Source: Tran and Cutkosky, "Better SGD using second-order momentum" (2022), with a constant beta.
Departures: any geometry; the product is taken at x_t.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from .batches import Part
from .options import WHO
from .passes import across
from .replay import frozen_statistics
from .two_point import TwoPointStep


def refuse_several_processes() -> None:
    if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        raise ValueError(f"{WHO}: difference must be 'exact' or 'stale' with several processes; got 'hvp'")


def passes_with_products(
    step: TwoPointStep, head: Part, rest: Part | None, share: float, module: nn.Module | None
) -> Tensor:
    """The passes of a step that is not paired: there is none at the old point. Returns the loss."""
    loss = _head(step, head, share, module)
    if rest is not None:
        step.enter("rest", share)
        with torch.enable_grad(), nullcontext() if step.counts("rest") else frozen_statistics(module):
            loss = share * loss + (1 - share) * rest.backward()
        step.leave("rest")
    return loss


def _head(step: TwoPointStep, head: Part, share: float, module: nn.Module | None) -> Tensor:
    moving = step.any_due
    params = [p for p in step.group_of if p.requires_grad]
    before = [p.detach().clone() for p in params] if moving else []
    step.enter("new", share)
    step.move_due()
    along = [p.detach() - old for p, old in zip(params, before, strict=True)] if moving else []
    with torch.enable_grad(), nullcontext() if step.counts("new") else frozen_statistics(module):
        value = head.value()
        grads = torch.autograd.grad(value, params, create_graph=moving, allow_unused=True)
        products = _products(grads, params, along)
    added: dict[Tensor, Tensor] = {}
    for p, grad, product in zip(params, grads, products, strict=True):
        if grad is not None:
            p.grad = grad.detach()
            weight = across(step.group_of[p]) if step.begun(p) else 0.0
            if product is not None and weight:
                added[p] = weight * product
    step.leave("new")
    if not step.skipped:
        step.add(added)
    return value.detach()


def _products(
    grads: tuple[Tensor | None, ...], params: list[Tensor], along: list[Tensor]
) -> list[Tensor | None] | tuple[Tensor | None, ...]:
    pairs = [(grad, v) for grad, v in zip(grads, along, strict=False) if grad is not None and grad.requires_grad]
    if not pairs:
        return [None] * len(params)
    slope = torch.stack([(grad * v).sum() for grad, v in pairs]).sum()
    _refuse_once_differentiable(slope)
    return torch.autograd.grad(slope, params, allow_unused=True)


def _refuse_once_differentiable(slope: Tensor) -> None:
    """Autograd leaves out what cannot be differentiated twice, if nothing that is asked for lies behind it."""
    seen: set[Any] = set()
    waiting: list[Any] = [slope.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        if node.name() == "torch::autograd::Error":
            raise RuntimeError(
                f"{WHO}: difference must be 'exact' or 'stale' where a function has no second derivative; got 'hvp'"
            )
        seen.add(node)
        waiting += [behind for behind, _ in node.next_functions]
