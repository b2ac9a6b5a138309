"""Tasks on which no threshold of the diagnosis was set: synthetic, small, with noise that stays."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.torch.diagnosis_tasks import Task, _classifier, _task

ROWS = 4000


def _drawn(seed: int = 11) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def poisson(seed: int) -> Task:
    """Counts with a rate exp(w'x): curvature grows with the gradient."""
    draw = _drawn()
    x = torch.randn(ROWS, 20, generator=draw)
    y = torch.poisson((x @ (0.25 * torch.randn(20, 1, generator=draw)) + 0.5).exp(), generator=draw)
    model = nn.Linear(20, 1)
    return _task(model, lambda a, b: functional.poisson_nll_loss(model(a), b, full=True), x, y, seed)


def phase(seed: int) -> Task:
    """Phase retrieval: (x'w)^2 seen with noise."""
    draw = _drawn()
    x = torch.randn(ROWS, 16, generator=draw) / 4
    y = (x @ torch.randn(16, 1, generator=draw)).square() + 0.5 * torch.randn(ROWS, 1, generator=draw)
    model = nn.Linear(16, 1, bias=False)
    return _task(model, lambda a, b: 0.25 * functional.mse_loss(model(a).square(), b), x, y, seed)


def factors(seed: int) -> Task:
    """A matrix of rank 3 from noisy entries."""
    draw = _drawn()
    i = torch.randint(60, (ROWS, 2), generator=draw)
    u, v = torch.randn(60, 3, generator=draw), torch.randn(60, 3, generator=draw)
    y = (u[i[:, 0]] * v[i[:, 1]]).sum(1) + torch.randn(ROWS, generator=draw)
    model = nn.ModuleList([nn.Embedding(60, 3), nn.Embedding(60, 3)])
    return _task(
        model, lambda a, b: 0.5 * functional.mse_loss((model[0](a[:, 0]) * model[1](a[:, 1])).sum(1), b), i, y, seed
    )


def autoencoder(seed: int) -> Task:
    draw = _drawn()
    x = torch.randn(ROWS, 4, generator=draw) @ torch.randn(4, 24, generator=draw)
    x = torch.tanh(x) + 0.5 * torch.randn(ROWS, 24, generator=draw)
    model = nn.Sequential(nn.Linear(24, 6), nn.Tanh(), nn.Linear(6, 24))
    return _task(model, lambda a, b: functional.mse_loss(model(a), b), x, x, seed)


def clusters(seed: int) -> Task:
    """A network of one hidden layer on overlapping clusters."""
    draw = _drawn()
    y = torch.randint(6, (ROWS,), generator=draw)
    x = torch.randn(6, 16, generator=draw)[y] + 1.5 * torch.randn(ROWS, 16, generator=draw)
    return _classifier(nn.Sequential(nn.Linear(16, 24), nn.Tanh(), nn.Linear(24, 6)), x, y, seed)


def robust(seed: int) -> Task:
    """Huber's loss with heavy tails."""
    draw = _drawn()
    x = torch.randn(ROWS, 25, generator=draw)
    tails = torch.randn(ROWS, 1, generator=draw) / torch.randn(ROWS, 1, generator=draw).abs().clamp(min=0.1)
    y = x @ torch.randn(25, 1, generator=draw) + tails
    model = nn.Linear(25, 1)
    return _task(model, lambda a, b: functional.smooth_l1_loss(model(a), b), x, y, seed)


def location(seed: int) -> Task:
    """The centre of a cloud with heavy tails, by Huber's loss: the same curvature for nearly all samples."""
    draw = _drawn()
    y = torch.randn(ROWS, 40, generator=draw) / torch.rand(ROWS, 1, generator=draw).clamp(min=0.05).sqrt()
    model = nn.Embedding(1, 40)
    zeros = torch.zeros(ROWS, dtype=torch.long)
    return _task(model, lambda a, b: functional.smooth_l1_loss(model(a), b, beta=3.0), zeros, y, seed)


def deconvolution(seed: int) -> Task:
    """A signal behind a fixed blur, each sample with its own noise: no curvature noise at all."""
    draw = _drawn()
    near = (torch.arange(40)[:, None] - torch.arange(40)).abs()
    blur = torch.exp(-near / 2.0) / 3
    y = blur @ torch.randn(40, generator=draw) + 2 * torch.randn(ROWS, 40, generator=draw)
    model = nn.Embedding(1, 40)
    zeros = torch.zeros(ROWS, dtype=torch.long)
    return _task(model, lambda a, b: 0.5 * functional.mse_loss(model(a) @ blur, b), zeros, y, seed)


def classes(seed: int) -> Task:
    """Softmax regression on bounded features; four labels of ten are drawn at random."""
    draw = _drawn()
    x = torch.tanh(torch.randn(ROWS, 8, generator=draw) @ torch.randn(8, 48, generator=draw))
    y = (x @ torch.randn(48, 6, generator=draw)).argmax(1)
    y = torch.where(torch.rand(ROWS, generator=draw) < 0.4, torch.randint(6, (ROWS,), generator=draw), y)
    return _classifier(nn.Linear(48, 6), x, y, seed)


def chain(seed: int) -> Task:
    """A small attention model of a Markov chain of 12 letters."""
    draw = _drawn()
    P = torch.softmax(2 * torch.randn(12, 12, generator=draw), 1)
    z = torch.randint(12, (1000, 1), generator=draw)
    for _ in range(8):
        z = torch.cat([z, torch.multinomial(P[z[:, -1]], 1, generator=draw)], 1)
    model = Letters()
    return _task(
        model, lambda a, b: functional.cross_entropy(model(a).flatten(0, 1), b.flatten()), z[:, :-1], z[:, 1:], seed
    )


class Letters(nn.Module):
    def __init__(self, letters: int = 12, width: int = 16) -> None:
        super().__init__()
        self.embed, self.mix = nn.Embedding(letters, width), nn.Linear(width, 3 * width)
        self.up, self.down, self.head = nn.Linear(width, 32), nn.Linear(32, width), nn.Linear(width, letters)

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x)
        q, k, v = (part[:, None] for part in self.mix(h).chunk(3, -1))
        h = h + functional.scaled_dot_product_attention(q, k, v, is_causal=True)[:, 0]
        return self.head(h + self.down(functional.gelu(self.up(h))))


FRESH: dict[str, Callable[[int], Task]] = {
    "poisson": poisson,
    "phase": phase,
    "factors": factors,
    "autoencoder": autoencoder,
    "clusters": clusters,
    "robust": robust,
    "chain": chain,
    "location": location,
    "deconvolution": deconvolution,
    "classes": classes,
}
FRESH_ROWS = [  # task, geometry, step size, steps of momentum before the question
    ("poisson", "euclidean", 0.01, 1500),
    ("phase", "euclidean", 0.02, 2000),
    ("factors", "euclidean", 0.3, 1000),
    ("factors", "euclidean", 0.05, 2000),
    ("autoencoder", "euclidean", 0.1, 1000),
    ("autoencoder", "euclidean", 0.01, 1000),
    ("clusters", "euclidean", 0.1, 1000),
    ("clusters", "euclidean", 0.01, 1000),
    ("robust", "euclidean", 0.1, 500),
    ("robust", "euclidean", 0.02, 2000),
    ("chain", "euclidean", 0.1, 500),
    ("chain", "euclidean", 0.01, 1000),
    ("location", "euclidean", 0.2, 500),
    ("location", "euclidean", 0.05, 1500),
    ("deconvolution", "euclidean", 0.5, 500),
    ("deconvolution", "euclidean", 0.1, 1500),
    ("classes", "euclidean", 0.1, 500),
    ("classes", "euclidean", 0.02, 2000),
]
