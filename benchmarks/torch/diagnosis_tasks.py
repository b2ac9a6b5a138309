"""Small training tasks: a model, its loss on a batch, fresh batches, and the loss that counts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

CACHE = Path(__file__).parents[2] / "build" / "digits.npz"
WRONG = 0.2  # of the labels are drawn at random, so that noise stays


@dataclass
class Task:
    """`draw(n)` is a fresh batch from `draws`, `value()` the loss over all `rows`."""

    model: nn.Module
    loss: Callable[..., Tensor]
    draw: Callable[[int], tuple[Tensor, Tensor]]
    value: Callable[[], float]
    draws: torch.Generator
    rows: tuple[Tensor, Tensor]


def digits(cache: Path = CACHE) -> tuple[Tensor, Tensor]:
    """scikit-learn's 1,797 digits in a fixed order; from the cache where there is one."""
    if not cache.exists():
        from sklearn.datasets import load_digits

        found = load_digits()
        cache.parent.mkdir(parents=True, exist_ok=True)
        np.savez(cache, images=found.data, labels=found.target)
    with np.load(cache) as kept:
        images, labels = kept["images"], kept["labels"]
    order = np.random.default_rng(0).permutation(len(labels))
    return torch.tensor(images[order] / 16, dtype=torch.float32), torch.tensor(labels[order])


def with_wrong_labels(labels: Tensor) -> Tensor:
    draw = torch.Generator().manual_seed(5)
    wrong = torch.rand(len(labels), generator=draw) < WRONG
    return torch.where(wrong, torch.randint(10, labels.shape, generator=draw), labels)


def _task(model: nn.Module, loss: Callable[..., Tensor], x: Tensor, y: Tensor, seed: int) -> Task:
    draws = torch.Generator().manual_seed(seed + 1)

    def draw(n: int) -> tuple[Tensor, Tensor]:
        i = torch.randint(len(y), (n,), generator=draws)
        return x[i], y[i]

    def value() -> float:
        with torch.no_grad():
            return float(loss(x, y))

    return Task(model, loss, draw, value, draws, (x, y))


def _classifier(model: nn.Module, x: Tensor, y: Tensor, seed: int) -> Task:
    return _task(model, lambda inputs, labels: functional.cross_entropy(model(inputs), labels), x, y, seed)


def logistic(seed: int) -> Task:
    x, y = digits()
    return _classifier(nn.Linear(64, 10), x, with_wrong_labels(y), seed)


def mlp(seed: int) -> Task:
    x, y = digits()
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    return _classifier(model, x, with_wrong_labels(y), seed)


def cnn(seed: int) -> Task:
    """With the right labels: everything can be fitted."""
    first = nn.Sequential(nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 16, 3), nn.ReLU())
    return _classifier(nn.Sequential(first, nn.Flatten(), nn.Linear(256, 10)), *digits(), seed)


def dro(seed: int, lam: float = 0.5) -> Task:
    """Chi-square DRO of a linear classifier: lam psi*((l - eta)/lam) + eta, psi*(t) = (t/2 + 1)_+^2 - 1."""
    x, y = digits()
    model = nn.Linear(64, 10)
    model.eta = nn.Parameter(torch.zeros(()))

    def loss(inputs: Tensor, labels: Tensor) -> Tensor:
        each = functional.cross_entropy(model(inputs), labels, reduction="none")
        return (lam * (((each - model.eta) / (2 * lam) + 1).clamp(min=0) ** 2 - 1) + model.eta).mean()

    return _task(model, loss, x, with_wrong_labels(y), seed)


def head(seed: int) -> Task:
    """A new linear head on features that were trained for other classes: digits 5 to 9 on features of 0 to 4."""
    x, y = digits()
    body = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 5))
    optimizer = torch.optim.Adam(body.parameters(), 1e-2)
    for _ in range(150):
        optimizer.zero_grad()
        functional.cross_entropy(body(x[y < 5]), y[y < 5]).backward()
        optimizer.step()
    y = with_wrong_labels(y)
    with torch.no_grad():
        features = body[:2](x[y >= 5])
    return _classifier(nn.Linear(64, 5), features, y[y >= 5] - 5, seed)


TASKS: dict[str, Callable[..., Any]] = {
    "logistic": logistic,
    "dro": dro,
    "head": head,
    "mlp": mlp,
    "cnn": cnn,
}
