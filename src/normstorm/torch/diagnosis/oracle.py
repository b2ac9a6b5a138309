"""Gradients of a model beside its training: asked at any point, and everything is put back."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ..batches import described, size_of
from ..replay import RandomState, seed_all

Gradient = list[Tensor]


@contextmanager
def restore_after(model: nn.Module) -> Iterator[Gradient]:
    """Inside, the model's tensors are copies. Afterwards everything is as before, random numbers included.

    Yields the originals of the parameters that learn, for a return to the start.
    """
    tensors: list[Tensor] = list(model.parameters())
    homes = [(m, name, b) for m in model.modules() for name, b in m._buffers.items() if b is not None]
    tensors += list({id(b): b for _, _, b in homes}.values())
    originals = [t.data for t in tensors]
    grads = [(p, p.grad, p.requires_grad) for p in model.parameters()]
    modes = [(m, m.training) for m in model.modules()]
    states = RandomState(tensors)
    try:
        for t in tensors:
            t.data = t.data.clone()
        for p, _, _ in grads:
            p.grad = None
        yield [t for t, (_, _, learns) in zip(originals, grads, strict=False) if learns]
    finally:
        for t, original in zip(tensors, originals, strict=True):
            t.data = original
        for p, grad, wanted in grads:
            p.requires_grad_(wanted)
            p.grad = grad
        for m, training in modes:
            m.training = training
        for m, name, b in homes:
            m._buffers[name] = b
        states.restore()


class Batches:
    """Batches without end: a callable is asked, an iterable is begun again when it ends."""

    def __init__(self, who: str, data: Any) -> None:
        self.who, self.data = who, data
        if not callable(data) and not hasattr(data, "__iter__"):
            raise ValueError(
                f"{who}: data must be an iterable of batches or a function that returns one; got {type(data).__name__}"
            )
        self.source: Iterator[Any] | None = None

    def __call__(self) -> Any:
        if not hasattr(self.data, "__iter__"):
            return self.data()
        if self.source is None:
            self.source = iter(self.data)
        for batch in self.source:
            return batch
        self.source = iter(self.data)
        for batch in self.source:
            return batch
        raise ValueError(f"{self.who}: data must not run out of batches; got an iterator that ended")


class GradientOracle:
    """Gradients of the loss with respect to the model's parameters, at any point, with the same random numbers."""

    def __init__(self, who: str, model: Any, loss: Any, data: Any) -> None:
        if not isinstance(model, nn.Module):
            raise ValueError(f"{who}: model must be a torch.nn.Module; got {type(model).__name__}")
        if not callable(loss):
            raise ValueError(f"{who}: loss must be a function of a batch; got {type(loss).__name__}")
        self.who, self.model, self.loss = who, model, loss
        self.params = [p for p in model.parameters() if p.requires_grad]
        if not self.params:
            raise ValueError(f"{who}: model must have a parameter that requires a gradient; got none")
        self.batches = Batches(who, data)
        self.passes, self.losses, self.seconds = 0, 0, 0.0

    def point(self) -> Gradient:
        return [p.detach().clone() for p in self.params]

    def move(self, point: Gradient) -> None:
        with torch.no_grad():
            for p, value in zip(self.params, point, strict=True):
                p.copy_(value)

    def value(self, batch: Any) -> Tensor:
        with torch.enable_grad():
            found = self.loss(*batch) if isinstance(batch, tuple | list) else self.loss(batch)
        if not isinstance(found, Tensor) or found.numel() != 1:
            raise ValueError(f"{self.who}: loss must return a tensor with one number; got {described(found)}")
        if not torch.isfinite(found).all():
            raise ValueError(f"{self.who}: loss must be finite along the probe; got {float(found.detach())}")
        if not found.requires_grad:
            raise ValueError(
                f"{self.who}: loss must depend on a parameter that requires a gradient; got one that does not"
            )
        return found

    def loss_on(self, batch: Any, seed: int) -> float:
        """Without a gradient; `seed` as below."""
        before = RandomState(self.params)
        seed_all(seed)
        with torch.no_grad():
            found = float(self.loss(*batch) if isinstance(batch, tuple | list) else self.loss(batch))
        before.restore()
        self.losses += 1
        if not math.isfinite(found):
            raise ValueError(f"{self.who}: loss must be finite along the probe; got {found}")
        return found

    def gradient(self, batch: Any, seed: int) -> Gradient:
        """On one batch, here; `seed` decides dropout and the like, and leaves no trace."""
        start, before = time.perf_counter(), RandomState(self.params)
        seed_all(seed)
        found = torch.autograd.grad(self.value(batch).reshape(()), self.params, allow_unused=True)
        before.restore()
        grads = [torch.zeros_like(p) if g is None else g for g, p in zip(found, self.params, strict=True)]
        if self.params[0].device.type != "cpu":
            torch.get_device_module(self.params[0].device).synchronize()
        self.seconds += time.perf_counter() - start
        self.passes += 1
        return grads


def inner(a: Gradient, b: Gradient) -> float:
    """The inner product; no number is narrower than single precision."""
    wide = (torch.promote_types(x.dtype, torch.float32) for x in a)
    terms = [torch.dot(x.flatten().to(w), y.flatten().to(w)) for x, y, w in zip(a, b, wide, strict=True)]
    return float(torch.stack([term.double() for term in terms]).sum())


def minus(a: Gradient, b: Gradient) -> Gradient:
    return [x - y for x, y in zip(a, b, strict=True)]


def batch_size(who: str, batch: Any) -> int:
    """K, the samples of a batch."""
    try:
        return size_of(batch)
    except ValueError as error:
        raise ValueError(f"{who}: {str(error).partition(': ')[2]}") from None
