"""What the torch benchmarks share: a GPT, contenders with one way to step them, clocks, and the writing of reports."""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import statistics
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from benchmarks.machine import describe
from benchmarks.pages import RESULTS
from normstorm.torch import NormalizedStorm, spectral_storm

FIRST = 0.02  # standard deviation of the first weights of a GPT


class Size(NamedTuple):
    """Layers, width, heads, vocabulary and context of a GPT."""

    layers: int
    width: int
    heads: int
    vocabulary: int
    context: int


def angles(context: int, size: int) -> Tensor:
    """Cosines and sines by which rotary positions turn the two halves of a head."""
    rates = 10_000.0 ** (-torch.arange(0, size, 2) / size)
    turns = torch.arange(context)[:, None] * rates
    return torch.stack((turns.cos(), turns.sin()))


def turned(x: Tensor, angle: Tensor) -> Tensor:
    """A head of length one on average, turned by its position."""
    x = functional.rms_norm(x, (x.shape[-1],))
    (a, b), (cos, sin) = x.chunk(2, -1), angle[:, : x.shape[-2]]
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


def block(
    x: Tensor,
    angle: Tensor,
    heads: int,
    norm1: Tensor,
    qkv: Tensor,
    out: Tensor,
    norm2: Tensor,
    up: Tensor,
    down: Tensor,
):
    """Attention and a GELU network, each after RMSNorm and beside the residual stream.

    A function of plain tensors, so that one compilation serves every layer of every model of these shapes.
    """
    batch, length, width = x.shape
    parts = functional.linear(functional.rms_norm(x, (width,), norm1), qkv).view(
        batch, length, 3, heads, width // heads
    )
    q, k, v = (part.transpose(1, 2) for part in parts.unbind(2))
    q, k = turned(q, angle).to(v), turned(k, angle).to(v)
    mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    x = x + functional.linear(mixed.transpose(1, 2).reshape(batch, length, width), out)
    inner = functional.gelu(functional.linear(functional.rms_norm(x, (width,), norm2), up))
    return x + functional.linear(inner, down)


class Block(nn.Module):
    def __init__(self, width: int, heads: int, body: Callable[..., Tensor]) -> None:
        super().__init__()
        self.heads, self.body = heads, body
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor, angle: Tensor) -> Tensor:
        parts = (self.norm1, self.qkv, self.out, self.norm2, self.up, self.down)
        return self.body(x, angle, self.heads, *(part.weight for part in parts))


class GPT(nn.Module):
    """Rotary positions, RMSNorm, also of queries and keys, no biases; the head is the embedding's weights if `tied`."""

    def __init__(
        self, size: Size, *, tied: bool = False, thrifty: bool = False, body: Callable[..., Tensor] = block
    ) -> None:
        super().__init__()
        self.size, self.thrifty = size, thrifty
        self.embedding = nn.Embedding(size.vocabulary, size.width)
        self.register_buffer("angle", angles(size.context, size.width // size.heads), persistent=False)
        self.blocks = nn.ModuleList(Block(size.width, size.heads, body) for _ in range(size.layers))
        self.norm = nn.RMSNorm(size.width)
        self.head = nn.Linear(size.width, size.vocabulary, bias=False)
        for name, p in self.named_parameters():
            if p.ndim == 2:
                deep = name.endswith(("out.weight", "down.weight"))
                nn.init.normal_(p, std=FIRST / (2 * size.layers) ** 0.5 if deep else FIRST)
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        z = self.embedding(x)
        for one in self.blocks:
            z = checkpoint(one, z, self.angle, use_reentrant=False) if self.thrifty else one(z, self.angle)
        return functional.cross_entropy(self.head(self.norm(z)).flatten(0, 1).float(), y.flatten())


def build(size: Size, device: str, seed: int = 0, **options: Any) -> GPT:
    """A model made on its device."""
    torch.manual_seed(seed)
    with torch.device(device):
        return GPT(size, **options)


def parameters(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def loss_of(model: nn.Module, autocast: bool) -> Callable[[Tensor, Tensor], Tensor]:
    """The mean loss of a batch, in bfloat16 where autocast wants it."""

    def loss(x: Tensor, y: Tensor) -> Tensor:
        with torch.autocast(x.device.type, torch.bfloat16) if autocast else contextlib.nullcontext():
            return model(x, y)

    return loss


class Ordinary:
    """One backward pass, then every optimizer steps."""

    def __init__(self, *optimizers: torch.optim.Optimizer) -> None:
        self.optimizers = optimizers

    def step(self, loss: Callable[..., Tensor], batch: tuple[Tensor, ...]) -> Tensor:
        value = loss(*batch)
        value.backward()
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return value.detach()

    @property
    def groups(self) -> list[dict[str, Any]]:
        return [group for optimizer in self.optimizers for group in optimizer.param_groups]


class Ours(Ordinary):
    """The optimizer calls the closure at every point that it needs; with `share`, its batch entrance, k = share * K."""

    def __init__(self, optimizer: torch.optim.Optimizer, share: float | None = None) -> None:
        super().__init__(optimizer)
        self.share = share

    def step(self, loss: Callable[..., Tensor], batch: tuple[Tensor, ...]) -> Tensor:
        (optimizer,) = self.optimizers
        if self.share is not None:
            return optimizer.step(loss, batch=batch, k=round(self.share * len(batch[0])))

        def closure() -> Tensor:
            optimizer.zero_grad(set_to_none=True)
            value = loss(*batch)
            value.backward()
            return value

        return optimizer.step(closure)


def hidden(model: nn.Module) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """The matrices of the blocks, and everything else."""
    named = list(model.named_parameters())
    inner = [p for name, p in named if name.startswith("blocks.") and p.ndim == 2]
    return inner, [p for name, p in named if not (name.startswith("blocks.") and p.ndim == 2)]


def adamw(model: nn.Module, lr: float = 1e-4) -> Ordinary:
    fused = next(model.parameters()).is_cuda
    return Ordinary(torch.optim.AdamW(model.parameters(), lr, betas=(0.9, 0.95), weight_decay=0.0, fused=fused))


def muon(model: nn.Module, lr: float = 1e-2, other: float | None = None) -> Ordinary:
    """torch's Muon on the hidden matrices and AdamW, at a twentieth of its rate unless told, on the rest."""
    inner, rest = hidden(model)
    matrices = torch.optim.Muon(inner, lr, weight_decay=0.0, momentum=0.95, nesterov=True)
    fused = rest[0].is_cuda
    other = lr / 20 if other is None else other
    return Ordinary(matrices, torch.optim.AdamW(rest, other, betas=(0.9, 0.95), weight_decay=0.0, fused=fused))


def storm(model: nn.Module, lr: float = 1e-2, share: float | None = None, **options: Any) -> Ours:
    return Ours(NormalizedStorm(model.parameters(), lr, **options), share)


def spectral(model: nn.Module, lr: float = 1e-2, **options: Any) -> Ours:
    return Ours(spectral_storm(model, lr, **options))


def milliseconds(work: Callable[[], Any], repeats: int, warm: int, device: str) -> list[float]:
    """Times of `work`, by events on a GPU."""
    for _ in range(warm):
        work()
    if device == "cpu":
        return [_seconds(work) * 1e3 for _ in range(repeats)]
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(repeats + 1)]
    torch.cuda.synchronize()
    marks[0].record()
    for mark in marks[1:]:
        work()
        mark.record()
    torch.cuda.synchronize()
    return [a.elapsed_time(b) for a, b in pairwise(marks)]


def _seconds(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def spread(times: list[float]) -> dict[str, float]:
    return {"median": statistics.median(times), "least": min(times), "most": max(times)}


def machine(device: str) -> dict[str, Any]:
    gpu = {"device": torch.cuda.get_device_name()} if device == "cuda" else {}
    return {**gpu, **describe(), "torch": torch.__version__}


def arguments(text: str, name: str) -> argparse.ArgumentParser:
    """The options of every torch benchmark: a device, tiny sizes that only show that it runs, and where to write."""
    parser = argparse.ArgumentParser(description=text.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=("cuda", "cpu"))
    parser.add_argument("--tiny", action="store_true", help="a trial of the script itself; its figures mean nothing")
    parser.add_argument("--out", type=Path, default=RESULTS / name)
    return parser


def write(out: Path, report: dict[str, Any]) -> None:
    dated = {"date": datetime.date.today().isoformat(), **report}
    out.parent.mkdir(parents=True, exist_ok=True)
    partial = out.with_suffix(".part")
    partial.write_text(json.dumps(dated, indent=2) + "\n", encoding="utf-8")
    partial.replace(out)
