"""A step whose difference is a Hessian-vector product: H(x_t) (x_t - x_{t-1}) in place of g(x_t) - g(x_{t-1}).

    m_t = beta m_{t-1} + (1 - beta) g_K(x_t) + c beta H_k(x_t) (x_t - x_{t-1})

Two nearly equal gradients cancel when steps are small; a product does not. It costs about as much as two more backward
passes over the k samples, and the graph of the first one is kept.

Source: Tran and Cutkosky, "Better SGD using second-order momentum" (2022), with a constant beta.
Departures: any geometry; the product is taken at x_t.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

from .batches import Part
from .moves import NONE
from .options import WHO
from .walk import Walk

if TYPE_CHECKING:
    from .optimizer import NormalizedStorm


def curvature_step(optimizer: NormalizedStorm, head: Part, rest: Part | None, share: float) -> Tensor:
    if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        raise ValueError(f"{WHO}: difference must be 'exact' or 'stale' with several processes; got 'hvp'")
    walk = optimizer._walk = Walk(optimizer, scaled=False)
    try:
        loss = _head(walk, head, share)
        if rest is not None:
            walk.enter("rest", share)
            with torch.enable_grad():
                loss = share * loss + (1 - share) * rest.backward()
            walk.leave("rest")
    except BaseException:
        optimizer._walk = None
        walk.abandon()
        raise
    optimizer._walk = None
    walk.finish(1.0)
    return loss


def _head(walk: Walk, head: Part, share: float) -> Tensor:
    corrected, walk.corrected = walk.corrected, False  # weights of an average: the product is added here
    params = [p for p in walk.group_of if p.requires_grad]
    before = [p.detach().clone() for p in params] if corrected else []
    walk.enter("new", share)
    walk._move_rest()
    along = [p.detach() - old for p, old in zip(params, before, strict=True)] if corrected else []
    with torch.enable_grad():
        value = head.value()
        grads = torch.autograd.grad(value, params, create_graph=corrected, allow_unused=True)
        products = _products(grads, params, along)
    added: dict[Tensor, Tensor] = {}
    for p, grad, product in zip(params, grads, products, strict=True):
        if grad is not None:
            group = walk.group_of[p]
            across = float(group["beta"]) * float(group["correction"]) if walk.state[p]["stage"] != NONE else 0.0
            p.grad = grad.detach()
            if product is not None and across:
                added[p] = across * product
    walk.leave("new")
    for p, product in added.items():  # not before: the fresh gradient of nesterov has no part in it
        walk.state[p]["momentum"].add_(product)
    walk.sums = None if added else walk.sums
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
