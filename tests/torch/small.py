"""A small network with a convolution, batches for it, and every way of asking the optimizer for a step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from reference import Reference
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy

K, STEPS = 8, 50
MATRIX_GEOMETRIES = ("spectral", "row", "column")
GEOMETRIES = ("euclidean", "tensor", "sign", "rms", *MATRIX_GEOMETRIES)
LR = dict.fromkeys(GEOMETRIES, 0.005) | {"euclidean": 0.05, "tensor": 0.05}  # a step of the others is longer


def network(seed: int = 0) -> nn.Module:
    """Wide matrices, and a tall one: the convolution is 5 x 4."""
    torch.manual_seed(seed)
    layers = (nn.Conv2d(1, 5, 2), nn.Tanh(), nn.Flatten(), nn.Linear(45, 4), nn.Tanh(), nn.Linear(4, 3))
    return nn.Sequential(*layers).double()


class Stacked(nn.Module):
    """Two matrices one below the other, and a stack of two."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.fused, self.experts = (nn.Parameter(torch.randn(shape).double() / 4) for shape in ((6, 16), (2, 6, 3)))

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(x.flatten(1) @ self.fused.T)
        return sum(hidden @ expert for expert in self.experts)


def batches(steps: int = STEPS, size: int = K, seed: int = 1) -> list[tuple[Tensor, Tensor]]:
    draw = torch.Generator().manual_seed(seed)
    images = torch.randn(steps, size, 1, 4, 4, dtype=torch.float64, generator=draw)
    return list(zip(images, torch.randint(0, 3, (steps, size), generator=draw), strict=True))


def loss_of(model: nn.Module) -> Callable[..., Tensor]:
    return lambda x, y: cross_entropy(model(x), y)


def pure_loss(model: nn.Module) -> Callable[..., Tensor]:
    names = [name for name, _ in model.named_parameters()]

    def loss(parameters: list[Tensor], x: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(functional_call(model, dict(zip(names, parameters, strict=True)), (x,)), y)

    return loss


def grouped(model: nn.Module, geometry: str, **options: Any) -> list[dict[str, Any]]:
    """All parameters with one geometry; where that is one of matrices, vectors have "rms"."""
    numbers = list(range(len(list(model.parameters()))))
    if geometry not in MATRIX_GEOMETRIES:
        return [{"params": numbers, "geometry": geometry, **options}]
    shapes = [p.ndim for p in model.parameters()]
    matrices, vectors = ([i for i in numbers if (shapes[i] > 1) == wide] for wide in (True, False))
    return [{"params": matrices, "geometry": geometry, **options}, {"params": vectors, "geometry": "rms", **options}]


def with_tensors(model: nn.Module, groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same groups with the parameters themselves."""
    found = list(model.parameters())
    return [group | {"params": [found[i] for i in group["params"]]} for group in groups]


def reference(model: nn.Module, groups: list[dict[str, Any]], difference: str = "exact") -> Reference:
    return Reference(list(model.parameters()), pure_loss(model), groups, difference)


def by_closure(opt: Any, loss: Callable[..., Tensor], batch: tuple[Tensor, ...], k: int) -> Any:
    assert k == len(batch[0])

    def closure() -> Tensor:
        opt.zero_grad()
        value = loss(*batch)
        value.backward()
        return value

    return opt.step(closure)


def by_batch(opt: Any, loss: Callable[..., Tensor], batch: tuple[Tensor, ...], k: int) -> Any:
    return opt.step(loss, batch=batch, k=k)


def cut(batch: tuple[Tensor, ...], k: int) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    return tuple(part[:k] for part in batch), tuple(part[k:] for part in batch)


def by_phases(opt: Any, loss: Callable[..., Tensor], batch: tuple[Tensor, ...], k: int) -> Any:
    head, tail = cut(batch, k)
    with opt.old_point():
        loss(*head).backward()
    with opt.new_point(share=k / len(batch[0])):
        loss(*head).backward()
    if len(tail[0]):
        with opt.rest():
            loss(*tail).backward()
    return opt.step()


def by_scaler(opt: Any, loss: Callable[..., Tensor], batch: tuple[Tensor, ...], k: int) -> Any:
    if not hasattr(opt, "scaler_of_test"):
        opt.scaler_of_test = torch.amp.GradScaler("cpu", init_scale=2.0**12, growth_interval=7)
    scaler = opt.scaler_of_test
    head, tail = cut(batch, k)
    with opt.old_point(scaler=scaler):
        scaler.scale(loss(*head)).backward()
    with opt.new_point(share=k / len(batch[0])):
        scaler.scale(loss(*head)).backward()
    if len(tail[0]):
        with opt.rest():
            scaler.scale(loss(*tail)).backward()
    scaler.step(opt)
    scaler.update()


def pieces(batch: tuple[Tensor, ...], most: int = 3) -> Iterator[tuple[float, tuple[Tensor, ...]]]:
    """Micro-batches of unequal size, each with its share of the mean."""
    size = len(batch[0])
    for start in range(0, size, most):
        part = tuple(p[start : start + most] for p in batch)
        yield len(part[0]) / size, part


def by_accumulation(opt: Any, loss: Callable[..., Tensor], batch: tuple[Tensor, ...], k: int) -> Any:
    head, tail = cut(batch, k)
    heads, tails = list(pieces(head)), list(pieces(tail))
    with opt.old_point(backwards=len(heads)):
        for share, part in heads:
            (share * loss(*part)).backward()
    with opt.new_point(share=k / len(batch[0]), backwards=len(heads)):
        for share, part in heads:
            (share * loss(*part)).backward()
    if tails:
        with opt.rest(backwards=len(tails)):
            for share, part in tails:
                (share * loss(*part)).backward()
    return opt.step()


ENTRANCES = {
    "closure": by_closure,
    "batch": by_batch,
    "phases": by_phases,
    "scaler": by_scaler,
    "accumulation": by_accumulation,
}


def apart(model: nn.Module, expected: list[Tensor]) -> float:
    return max(float((p.detach() - x).abs().max()) for p, x in zip(model.parameters(), expected, strict=True))


def momenta_apart(opt: Any, model: nn.Module, expected: list[Tensor]) -> float:
    found = [opt.state[p]["momentum"] for p in model.parameters()]
    return max(float((m - x).abs().max()) for m, x in zip(found, expected, strict=True))
