"""The recursion with explicit copies, in float64, slow and plain; it shares nothing with the package.

    m_1 = g_K(x_1), or (1 - beta) g_K(x_1) if the start is zero
    m_t = beta m_{t-1} + (1 - beta) g_K(x_t) + c beta (g_k(x_t) - g_k(x_{t-1}))
    n_t = beta m_t + (1 - beta) g_K(x_t) with nesterov, m_t without
    x_{t+1} = (1 - lr weight_decay) x_t - lr scale u(n_t)

A step at two points leaves the move by m_t to the next call, which brings the lr of that move. A step at one point,
which is enough where c or beta is 0 in all groups, makes it at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

Loss = Callable[..., Tensor]  # (list of parameters, *batch) -> mean over the samples
DEFAULTS: dict[str, Any] = {
    "beta": 0.9,
    "geometry": "euclidean",
    "correction": 1.0,
    "weight_decay": 0.0,
    "nesterov": False,
    "scale": 1.0,
    "start": "first",
    "maximize": False,
}


def zero_over_zero(top: Tensor, bottom: Tensor) -> Tensor:
    return torch.where(bottom > 0, top / torch.where(bottom > 0, bottom, torch.ones_like(bottom)), 0 * top)


def flat(n: Tensor) -> Tensor:
    assert n.ndim >= 2
    return n.reshape(n.shape[0], -1)


def newton_schulz(n: Tensor) -> Tensor:
    """Five steps of X <- 3.4445 X - 4.7750 (X X^T) X + 2.0315 (X X^T)^2 X from n / (||n|| + 1e-7), as in Muon."""
    rows, columns = n.shape
    X = n.T if rows > columns else n
    X = X / (X.pow(2).sum().sqrt() + 1e-7)
    for _ in range(5):
        A = X @ X.T
        X = 3.4445 * X - 4.7750 * A @ X + 2.0315 * A @ A @ X
    return max(1, rows / columns) ** 0.5 * (X.T if rows > columns else X)


def alone(geometry: str, n: Tensor) -> Tensor:
    """u(n) of one tensor."""
    if geometry == "tensor":
        return zero_over_zero(n, n.pow(2).sum().sqrt())
    if geometry == "sign":
        return (n > 0).to(n.dtype) - (n < 0).to(n.dtype)
    if geometry == "rms":
        return zero_over_zero(n, n.pow(2).mean().sqrt())
    if geometry == "row":
        return zero_over_zero(flat(n), flat(n).pow(2).sum(1, keepdim=True).sqrt()).reshape(n.shape)
    if geometry == "column":
        return zero_over_zero(flat(n), flat(n).pow(2).sum(0, keepdim=True).sqrt()).reshape(n.shape)
    assert geometry == "spectral"
    return newton_schulz(flat(n)).reshape(n.shape)


class Reference:
    """`groups`: dictionaries with "params", numbers of parameters, and options; `lr` is read when a move is made."""

    def __init__(self, start: Sequence[Tensor], loss: Loss, groups: list[dict[str, Any]], difference: str = "exact"):
        self.x = [p.detach().clone().double() for p in start]
        self.old: list[Tensor] | None = None
        self.loss, self.difference = loss, difference
        self.groups = [DEFAULTS | group for group in groups]
        self.option = {i: group for group in self.groups for i in group["params"]}
        self.two_points = difference != "stale" and any(g["correction"] * g["beta"] > 0 for g in self.groups)
        self.m: list[Tensor] | None = None
        self.fresh: list[Tensor] = []
        self.asked = 0

    def gradient(self, x: list[Tensor], part: Sequence[Tensor]) -> list[Tensor]:
        self.asked += len(part[0])
        points = [v.clone().requires_grad_() for v in x]
        found = torch.autograd.grad(self.loss(points, *part), points)
        return [-g if self.option[i]["maximize"] else g for i, g in enumerate(found)]

    def curvature(self, x: list[Tensor], direction: list[Tensor], part: Sequence[Tensor]) -> list[Tensor]:
        points = [v.clone().requires_grad_() for v in x]
        slopes = torch.autograd.grad(self.loss(points, *part), points, create_graph=True)
        along = sum((g * v).sum() for g, v in zip(slopes, direction, strict=True))
        found = torch.autograd.grad(along, points)
        return [-h if self.option[i]["maximize"] else h for i, h in enumerate(found)]

    def step(self, *batch: Tensor, k: int | None = None) -> None:
        K = len(batch[0])
        head = [part[: K if k is None else k] for part in batch]
        if self.two_points and self.m is not None:
            self.move()
        fresh = self.gradient(self.x, batch)
        if self.m is None:
            weights = [1 - o["beta"] if o["start"] == "zero" else 1 for _, o in sorted(self.option.items())]
            self.m = [weight * g for weight, g in zip(weights, fresh, strict=True)]
        else:
            self.m = [
                self.mixed(i, *terms) for i, terms in enumerate(zip(self.m, fresh, self.change(head), strict=True))
            ]
        self.last, self.fresh = fresh, fresh
        if not self.two_points:
            self.move()

    def mixed(self, i: int, m: Tensor, fresh: Tensor, change: Tensor) -> Tensor:
        beta, c = self.option[i]["beta"], self.option[i]["correction"]
        return beta * m + (1 - beta) * fresh + c * beta * change

    def change(self, head: Sequence[Tensor]) -> list[Tensor]:
        """g_k(x_t) - g_k(x_{t-1}), or what is put in its place."""
        if self.difference == "hvp":
            assert self.old is not None
            return self.curvature(self.x, [a - b for a, b in zip(self.x, self.old, strict=True)], head)
        if self.difference == "stale":
            here = self.gradient(self.x, head)
            return [a - b for a, b in zip(here, self.last, strict=True)]
        if not self.two_points:
            return [torch.zeros_like(v) for v in self.x]
        assert self.old is not None
        here, there = self.gradient(self.x, head), self.gradient(self.old, head)
        return [a - b for a, b in zip(here, there, strict=True)]

    def directions(self) -> list[Tensor]:
        assert self.m is not None
        n = []
        for i, (m, g) in enumerate(zip(self.m, self.fresh, strict=True)):
            beta = self.option[i]["beta"]
            n.append(beta * m + (1 - beta) * g if self.option[i]["nesterov"] else m)
        together = [i for i in range(len(n)) if self.option[i]["geometry"] == "euclidean"]
        size = sum((n[i].pow(2).sum() for i in together), torch.zeros((), dtype=torch.float64)).sqrt()
        return [
            zero_over_zero(v, size) if i in together else alone(self.option[i]["geometry"], v) for i, v in enumerate(n)
        ]

    def move(self) -> None:
        self.old = self.x
        self.x = []
        for i, (x, u) in enumerate(zip(self.old, self.directions(), strict=True)):
            o = self.option[i]
            self.x.append((1 - o["lr"] * o["weight_decay"]) * x - o["lr"] * o["scale"] * u)
