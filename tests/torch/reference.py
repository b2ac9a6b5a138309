"""The recursion with explicit copies, in float64, slow and plain; it shares nothing with the package.

    m_1 = g_K(x_1), or (1 - beta) g_K(x_1) if the start is zero
    m_t = beta m_{t-1} + (1 - beta) g_K(x_t) + c beta (g_k(x_t) - g_k(x_{t-1}))
    n_t = beta m_t + (1 - beta) g_K(x_t) with nesterov, m_t without
    x_{t+1} = (1 - lr weight_decay) x_t - lr scale u(n_t)
    v_1 = q_1, v_t = beta2 v_{t-1} + (1 - beta2) q_t, q the squares of g_K(x_t), or of m_t at two points
    u = n / sqrt(v) in the geometry adam

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
    "beta2": 0.95,
    "blocks": 1,
    "neurons": False,
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


def held(n: Tensor, blocks: int) -> list[Tensor]:
    """The matrices of a tensor: a stack, or one below the other."""
    if n.ndim == 3 and 1 < blocks == len(n):
        return list(n)
    return [flat(one) for one in n.chunk(blocks)]


def evened(u: Tensor, squares: Tensor) -> Tensor:
    """Rows over the roots of their average squares, and the norm that the matrix had."""
    found = u / squares.sqrt()[:, None]
    return found * u.norm() / found.norm()


class Reference:
    """`groups`: dictionaries with "params", numbers of parameters, and options; `lr` is read when a move is made.

    A parameter that no sample of a step has touched keeps its estimate, and has no further move due.
    """

    def __init__(self, start: Sequence[Tensor], loss: Loss, groups: list[dict[str, Any]], difference: str = "exact"):
        self.x = [p.detach().clone().double() for p in start]
        self.old = self.x
        self.loss, self.difference = loss, difference
        self.groups = [DEFAULTS | group for group in groups]
        self.option = {i: group for group in self.groups for i in group["params"]}
        self.two_points = difference != "stale" and any(g["correction"] * g["beta"] > 0 for g in self.groups)
        self.asked = 0
        self.begin_anew()

    def begin_anew(self) -> None:
        """Forget every estimate, and what was due."""
        self.m: list[Tensor] = [torch.zeros_like(v) for v in self.x]
        self.fresh = self.v = self.m
        self.known, self.due = set[int](), set[int]()
        self.rows: dict[tuple[int, int], Tensor] = {}

    def gradient(self, x: list[Tensor], part: Sequence[Tensor]) -> list[Tensor]:
        """Also where nothing depends on a parameter: zeros."""
        self.asked += len(part[0])
        points = [v.clone().requires_grad_() for v in x]
        found = torch.autograd.grad(self.loss(points, *part), points, allow_unused=True)
        self.touched = {i for i, g in enumerate(found) if g is not None}
        dense = [torch.zeros_like(v) if g is None else g for v, g in zip(x, found, strict=True)]
        return [-g if self.option[i]["maximize"] else g for i, g in enumerate(dense)]

    def curvature(self, x: list[Tensor], direction: list[Tensor], part: Sequence[Tensor]) -> list[Tensor]:
        points = [v.clone().requires_grad_() for v in x]
        slopes = torch.autograd.grad(self.loss(points, *part), points, create_graph=True)
        along = sum((g * v).sum() for g, v in zip(slopes, direction, strict=True))
        found = torch.autograd.grad(along, points)
        return [-h if self.option[i]["maximize"] else h for i, h in enumerate(found)]

    def step(self, *batch: Tensor, k: int | None = None) -> None:
        K = len(batch[0])
        head = [part[: K if k is None else k] for part in batch]
        corrected = bool(self.due) or not self.two_points
        if self.two_points:
            self.move()
        fresh = self.gradient(self.x, batch)
        touched = self.touched
        change = self.change(head) if corrected and self.known else [torch.zeros_like(v) for v in self.x]
        self.m = [self.mixed(i, fresh[i], change[i]) if i in touched else m for i, m in enumerate(self.m)]
        self.fresh = fresh
        self.v = [self.second(i, self.m[i] if self.two_points else fresh[i], touched) for i in range(len(fresh))]
        self.known, self.due = self.known | touched, touched
        if not self.two_points:
            self.move()

    def second(self, i: int, value: Tensor, touched: set[int]) -> Tensor:
        beta2 = self.option[i]["beta2"]
        fresh = beta2 * self.v[i] + (1 - beta2) * value**2 if i in self.known else value**2
        return fresh if i in touched else self.v[i]

    def mixed(self, i: int, fresh: Tensor, change: Tensor) -> Tensor:
        beta, c = self.option[i]["beta"], self.option[i]["correction"]
        if i not in self.known:
            return (1 - beta) * fresh if self.option[i]["start"] == "zero" else fresh
        return beta * self.m[i] + (1 - beta) * fresh + c * beta * change

    def change(self, head: Sequence[Tensor]) -> list[Tensor]:
        """g_k(x_t) - g_k(x_{t-1}), or what is put in its place."""
        if self.difference == "hvp":
            return self.curvature(self.x, [a - b for a, b in zip(self.x, self.old, strict=True)], head)
        if not self.two_points and self.difference != "stale":
            return [torch.zeros_like(v) for v in self.x]
        here = self.gradient(self.x, head)
        there = self.fresh if self.difference == "stale" else self.gradient(self.old, head)
        return [a - b for a, b in zip(here, there, strict=True)]

    def directions(self) -> dict[int, Tensor]:
        n = {}
        for i in self.due:
            beta = self.option[i]["beta"]
            n[i] = beta * self.m[i] + (1 - beta) * self.fresh[i] if self.option[i]["nesterov"] else self.m[i]
        together = [i for i in n if self.option[i]["geometry"] == "euclidean"]
        size = sum((n[i].pow(2).sum() for i in together), torch.zeros((), dtype=torch.float64)).sqrt()
        return {i: zero_over_zero(v, size) if i in together else self.direction(i, v) for i, v in n.items()}

    def direction(self, i: int, n: Tensor) -> Tensor:
        geometry = self.option[i]["geometry"]
        if geometry == "adam":
            return zero_over_zero(n, self.v[i].sqrt())
        if geometry != "spectral":
            return alone(geometry, n)
        parts = [newton_schulz(matrix) for matrix in held(n, self.option[i]["blocks"])]
        if self.option[i]["neurons"]:
            parts = [self.by_neurons((i, j), u, self.option[i]["beta2"]) for j, u in enumerate(parts)]
        return torch.cat(parts).reshape(n.shape)

    def by_neurons(self, key: tuple[int, int], u: Tensor, beta2: float) -> Tensor:
        mean = u.pow(2).mean(1)
        self.rows[key] = beta2 * self.rows[key] + (1 - beta2) * mean if key in self.rows else mean
        return evened(u, self.rows[key])

    def move(self) -> None:
        """By what is due."""
        self.old, self.x = self.x, list(self.x)
        for i, u in self.directions().items():
            o = self.option[i]
            self.x[i] = (1 - o["lr"] * o["weight_decay"]) * self.x[i] - o["lr"] * o["scale"] * u
