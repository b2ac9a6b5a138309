"""More tasks on which no threshold of the diagnosis was set; half of the rows at a rate near the noise floor.

Samples of the first three agree about curvature or nearly so, and the models are trained for long before the question:
there a second point has the most to give.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.torch.diagnosis_fresh import ROWS, _drawn
from benchmarks.torch.diagnosis_tasks import Task, _task

SEED = 23
NOTHING = torch.zeros(ROWS, dtype=torch.long)


def force(seed: int) -> Task:
    """A quadratic with curvatures from 1 to .03 that every sample pushes its own way; the least loss is 0."""
    bend = torch.logspace(0, -1.5, 50)
    push = torch.randn(ROWS, 50, generator=_drawn(SEED))
    model = nn.Embedding(1, 50)
    return _task(
        model,
        lambda a, b: (0.5 * bend * model(a).square() + b * model(a)).sum(1).mean(),
        NOTHING,
        push - push.mean(0),
        seed,
    )


def angles(seed: int) -> Task:
    """Thirty directions from noisy ones."""
    draw = _drawn(SEED)
    y = 2 * torch.randn(30, generator=draw) + 0.8 * torch.randn(ROWS, 30, generator=draw)
    model = nn.Embedding(1, 30)
    return _task(model, lambda a, b: (1 - torch.cos(model(a) - b)).mean(), NOTHING, y, seed)


def expectile(seed: int) -> Task:
    """Expectiles at .7 of forty heavy-tailed numbers."""
    draw = _drawn(SEED)
    y = torch.randn(ROWS, 40, generator=draw) / torch.rand(ROWS, 1, generator=draw).clamp(min=0.1).sqrt()
    model = nn.Embedding(1, 40)

    def loss(a: Tensor, b: Tensor) -> Tensor:
        apart = b - model(a)
        return (torch.where(apart > 0, 0.7, 0.3) * apart.square()).mean()

    return _task(model, loss, NOTHING, y, seed)


def ridge(seed: int) -> Task:
    """Least squares with features of one length and a small penalty."""
    draw = _drawn(SEED)
    x = functional.normalize(torch.randn(ROWS, 15, generator=draw), dim=1)
    y = x @ (3 * torch.randn(15, 1, generator=draw)) + 0.5 * torch.randn(ROWS, 1, generator=draw)
    model = nn.Linear(15, 1)
    return _task(model, lambda a, b: functional.mse_loss(model(a), b) + 0.01 * model.weight.square().sum(), x, y, seed)


def soft(seed: int) -> Task:
    """Softmax regression on soft labels."""
    draw = _drawn(SEED)
    x = torch.rand(ROWS, 20, generator=draw) - 0.5
    y = torch.softmax(x @ (4 * torch.randn(20, 5, generator=draw)) + torch.randn(ROWS, 5, generator=draw), 1)
    model = nn.Linear(20, 5)
    return _task(model, lambda a, b: functional.cross_entropy(model(a), b), x, y, seed)


def network(seed: int) -> Task:
    """Regression by a tanh network of one hidden layer."""
    draw = _drawn(SEED)
    x = torch.randn(ROWS, 12, generator=draw)
    y = torch.sin(x @ torch.randn(12, 1, generator=draw)) + 0.3 * torch.randn(ROWS, 1, generator=draw)
    model = nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 1))
    return _task(model, lambda a, b: functional.mse_loss(model(a), b), x, y, seed)


def sensing(seed: int) -> Task:
    """A matrix of rank 2 from noisy products with random ones, as the square of its factor."""
    draw = _drawn(SEED)
    x = torch.randn(ROWS, 10, 10, generator=draw) / 10
    u = torch.randn(10, 2, generator=draw)
    y = (x * (u @ u.T)).sum((1, 2)) + 0.2 * torch.randn(ROWS, generator=draw)
    model = nn.Linear(2, 10, bias=False)

    def loss(a: Tensor, b: Tensor) -> Tensor:
        return functional.mse_loss((a * (model.weight @ model.weight.T)).sum((1, 2)), b)

    return _task(model, loss, x, y, seed)


def hinge(seed: int) -> Task:
    """A smooth hinge; one label of ten is wrong."""
    draw = _drawn(SEED)
    x = torch.randn(ROWS, 18, generator=draw) / 3
    y = torch.sign(x @ torch.randn(18, 1, generator=draw))
    y = torch.where(torch.rand(ROWS, 1, generator=draw) < 0.1, -y, y)
    model = nn.Linear(18, 1)
    return _task(model, lambda a, b: functional.softplus(4 * (1 - b * model(a))).mean() / 4, x, y, seed)


FLOOR: dict[str, Callable[[int], Task]] = {
    "force": force,
    "angles": angles,
    "expectile": expectile,
    "ridge": ridge,
    "soft": soft,
    "network": network,
    "sensing": sensing,
    "hinge": hinge,
}
FLOOR_ROWS = [  # task, geometry, step size, steps of momentum before the question
    ("force", "euclidean", 0.5, 500),
    ("force", "euclidean", 0.1, 1500),
    ("angles", "euclidean", 0.3, 500),
    ("angles", "euclidean", 0.05, 1500),
    ("expectile", "euclidean", 0.3, 500),
    ("expectile", "euclidean", 0.05, 1500),
    ("ridge", "euclidean", 0.05, 1500),
    ("soft", "euclidean", 0.05, 1500),
    ("ridge", "euclidean", 0.3, 300),
    ("soft", "euclidean", 0.5, 300),
    ("network", "euclidean", 0.1, 500),
    ("network", "euclidean", 0.01, 1000),
    ("sensing", "euclidean", 0.1, 500),
    ("sensing", "euclidean", 0.01, 1000),
    ("hinge", "euclidean", 0.2, 500),
    ("hinge", "euclidean", 0.02, 1500),
]
