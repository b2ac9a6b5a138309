"""The preset on small networks of four kinds, beside AdamW and Muon at equal steps.

    python -m benchmarks.torch.presets [--steps 150] [--seeds 2] [--out ...]

ViT      class token and positions as raw parameters; which of two marks on an image comes first
experts  a mixture of four experts, weights (E, inputs, outputs); a function that differs from region to region
GPT-2    of Hugging Face (Conv1D), toy size; sequences that count by three
CNN      convolutions on images of bars with noise

Each method has three learning rates; the best mean loss on fresh samples counts. `moved` is the least root mean square
change of any tensor of the network: a tensor that does not train would show.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.machine import describe
from benchmarks.pages import RESULTS, publish
from benchmarks.torch.pages import presets_table
from normstorm.torch import spectral_storm
from normstorm.torch.roles import places

BATCH = 32
Draw = Callable[[int, torch.Generator], tuple[Tensor, Tensor]]


class ViT(nn.Module):
    def __init__(self, patches: int = 8, width: int = 16) -> None:
        super().__init__()
        self.patch, self.norm, self.head = nn.Linear(4, width), nn.LayerNorm(width), nn.Linear(width, 2)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, width))
        self.pos_embed = nn.Parameter(0.02 * torch.randn(1, patches + 1, width))
        self.layer = nn.TransformerEncoderLayer(width, 2, 2 * width, 0.0, batch_first=True, norm_first=True)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat([self.cls_token.expand(len(x), 1, -1), self.patch(x)], 1) + self.pos_embed
        return self.head(self.norm(self.layer(x))[:, 0])


def marks(n: int, draw: torch.Generator) -> tuple[Tensor, Tensor]:
    where = torch.rand(n, 8, generator=draw).argsort(1)[:, :2]
    x = 0.3 * torch.randn(n, 8, 4, generator=draw)
    for i in range(2):
        x[torch.arange(n), where[:, i], i] += 2
    return x, (where[:, 0] < where[:, 1]).long()


class Experts(nn.Module):
    def __init__(self, experts: int = 4, width: int = 8, hidden: int = 16) -> None:
        super().__init__()
        self.router = nn.Linear(width, experts)
        self.w1 = nn.Parameter(torch.randn(experts, width, hidden) / width**0.5)
        self.w2 = nn.Parameter(torch.randn(experts, hidden, width) / hidden**0.5)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        share = self.router(x).softmax(-1)
        hidden = torch.einsum("nd,edh->neh", x, self.w1).relu()
        return self.head(self.norm(x + torch.einsum("neh,ehd,ne->nd", hidden, self.w2, share)))


def regions(n: int, draw: torch.Generator) -> tuple[Tensor, Tensor]:
    x = torch.randn(n, 8, generator=draw)
    y = torch.where(x[:, 0] > 0, x[:, 1] * x[:, 2] > 0, x[:, 3] * x[:, 4] > 0).long() + (x[:, 5] > 1).long()
    return x, y


def gpt2() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    ends = {"bos_token_id": 0, "eos_token_id": 0, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}

    class Logits(GPT2LMHeadModel):  # type: ignore[misc]
        def forward(self, x: Tensor) -> Tensor:
            found: Tensor = super().forward(x).logits
            return found.transpose(1, 2)

    return Logits(GPT2Config(vocab_size=32, n_positions=12, n_embd=32, n_layer=2, n_head=2, **ends))


def counting(n: int, draw: torch.Generator) -> tuple[Tensor, Tensor]:
    tokens = (torch.randint(32, (n, 1), generator=draw) + 3 * torch.arange(13)) % 32
    wrong = torch.rand(tokens.shape, generator=draw) < 0.05
    tokens = torch.where(wrong, torch.randint(32, tokens.shape, generator=draw), tokens)
    return tokens[:, :-1], tokens[:, 1:]


def cnn() -> nn.Module:
    first = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2))
    second = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1, groups=8), nn.Conv2d(8, 16, 1), nn.ReLU(), nn.Flatten())
    return nn.Sequential(first, second, nn.Linear(256, 4))


def bars(n: int, draw: torch.Generator) -> tuple[Tensor, Tensor]:
    y, at = torch.randint(4, (n,), generator=draw), torch.randint(6, (n,), generator=draw)
    x = torch.randn(n, 1, 8, 8, generator=draw)
    for i in range(n):
        line, upright = slice(int(at[i]), int(at[i]) + (2 if y[i] < 2 else 1)), bool(y[i] % 2)
        x[(i, 0, line) if upright else (i, 0, slice(None), line)] += 1.5
    return x, y


TASKS: dict[str, tuple[Callable[[], nn.Module], Draw]] = {
    "ViT": (ViT, marks),
    "experts": (Experts, regions),
    "GPT-2": (gpt2, counting),
    "CNN": (cnn, bars),
}


def muon(model: nn.Module, lr: float) -> list[Any]:
    """torch's Muon takes matrices of two axes; all else, tables, heads and convolutions, is AdamW's."""
    inner = [
        place.parameter for place in places(model, None, {}) if place.role == "matrix" and place.parameter.ndim == 2
    ]
    rest = [p for p in model.parameters() if not any(p is other for other in inner)]
    first = torch.optim.Muon(inner, lr, weight_decay=0.0) if inner else None
    return [one for one in (first, torch.optim.AdamW(rest, 0.15 * lr, weight_decay=0.0)) if one is not None]


METHODS: dict[str, tuple[Callable[[nn.Module, float], list[Any]], tuple[float, ...]]] = {
    "spectral_storm": (lambda model, lr: [spectral_storm(model, lr)], (0.01, 0.02, 0.04)),
    "AdamW": (lambda model, lr: [torch.optim.AdamW(model.parameters(), lr, weight_decay=0.0)], (0.001, 0.003, 0.01)),
    "Muon + AdamW": (muon, (0.01, 0.02, 0.04)),
}


def train(task: str, method: str, lr: float, steps: int, seed: int) -> tuple[float, float]:
    """Loss on fresh samples, and the least change of a tensor."""
    make, data = TASKS[task]
    torch.manual_seed(seed)
    model, draw = make(), torch.Generator().manual_seed(seed + 1)
    start = [p.detach().clone() for p in model.parameters()]
    optimizers = METHODS[method][0](model, lr)
    for _ in range(steps):
        x, y = data(BATCH, draw)
        model.zero_grad()
        functional.cross_entropy(model(x), y).backward()
        for optimizer in optimizers:
            optimizer.step()
    x, y = data(1024, torch.Generator().manual_seed(99))
    with torch.no_grad():
        loss = float(functional.cross_entropy(model.eval()(x), y))
    moved = [float((p.detach() - old).square().mean().sqrt()) for p, old in zip(model.parameters(), start, strict=True)]
    return loss, min(moved)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--out", type=Path, default=RESULTS / "torch-presets.json")
    given = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for task in TASKS:
        for method, (_, rates) in METHODS.items():
            for lr in rates:
                runs = [train(task, method, lr, given.steps, seed) for seed in range(given.seeds)]
                losses, moved = zip(*runs, strict=True)
                rows.append({"task": task, "method": method, "lr": lr, "losses": losses, "moved": min(moved)})
                print(rows[-1], flush=True)
    report = {"machine": describe(), "torch": torch.__version__, "steps": given.steps, "batch": BATCH, "rows": rows}
    publish(given.out, report, "pytorch.md", "torch-presets", presets_table(report))


if __name__ == "__main__":
    main()
