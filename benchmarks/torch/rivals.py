"""Rivals of the race, written for it from the published recursions.

Muon, for matrices; equal shapes go through Newton-Schulz together, and queries, keys and values are split:

    m_t = mu m_{t-1} + (1 - mu) g_t,   n_t = mu m_t + (1 - mu) g_t,   O_t = NewtonSchulz(n_t), five steps in bfloat16
    x_{t+1} = x_t - lr sqrt(max(1, rows / columns)) O_t

NorMuon   v_t = beta2 v_{t-1} + (1 - beta2) mean of O_t^2 over each row;  O_t / sqrt(v_t), scaled to the norm of O_t
MARS-M    g_t is replaced by c_t = g_t + gamma mu / (1 - mu) (g_t - g_{t-1}), divided by max(1, its norm), and n_t
          by m_t (g_{t-1} is the gradient of the step before on its own batch)

Schedule-free AdamW, for everything; gradients are taken at y, and the loss is that at x:

    z_{t+1} = z_t - lr_t g(y_t) / (sqrt(v_t / (1 - beta2^t)) + eps),   c_t = lr_t^2 / sum of lr_s^2 up to t
    x_{t+1} = (1 - c_t) x_t + c_t z_{t+1},   y_{t+1} = (1 - beta) z_{t+1} + beta x_{t+1}

Prodigy, for everything; d is what it knows of the distance to go, from 1e-6 on, and no rate is left to tune (lr = 1):

    m_t = beta m_{t-1} + (1 - beta) d_t g_t,   v_t = beta2 v_{t-1} + (1 - beta2) d_t^2 g_t^2
    r_t = sqrt(beta2) r_{t-1} + d_t^2 lr <g_t, x_1 - x_t>,   s_t = sqrt(beta2) s_{t-1} + d_t^2 lr g_t
    x_{t+1} = x_t - lr d_t m_t / (sqrt(v_t) + d_t eps),   d_{t+1} = max{d_t, r_t / ||s_t||_1}

Source: Jordan et al. 2024; Li et al. 2025, NorMuon; Liu et al. 2025, MARS-M; Defazio et al. 2024, The road less
scheduled; Mishchenko and Defazio 2024, Prodigy.
Departures: no weight decay, as for every contender; the three of Muon's kind keep its scale, so that rates mean the
same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

FLOOR = 1e-7


def orthogonal(batch: Tensor) -> Tensor:
    """(n, rows, columns); singular values end near 1."""
    X = batch.bfloat16()
    if tall := X.shape[1] > X.shape[2]:
        X = X.mT
    X = X / (X.norm(dim=(1, 2), keepdim=True) + FLOOR)
    for _ in range(5):
        A = X @ X.mT
        X = torch.baddbmm(X, torch.baddbmm(A, A, A, beta=-4.7750, alpha=2.0315), X, beta=3.4445)
    return X.mT if tall else X


class Muon(torch.optim.Optimizer):
    """`neurons`: NorMuon's beta2; `gamma`: MARS-M's. A group's `blocks`: how many matrices its tensors hold."""

    def __init__(self, params: Any, lr: float, mu: float = 0.95, neurons: float = 0.0, gamma: float = 0.0) -> None:
        super().__init__(params, {"lr": lr, "mu": mu, "neurons": neurons, "gamma": gamma, "blocks": 1})

    @torch.no_grad()
    def step(self) -> None:
        shapes: dict[tuple[int, ...], list[tuple[Tensor, Tensor, Tensor]]] = {}
        for group in self.param_groups:
            for p, n in zip(group["params"], self._estimates(group), strict=True):
                M, X = (t.view(group["blocks"], t.shape[0] // group["blocks"], -1) for t in (n, p))
                shapes.setdefault(tuple(M.shape[1:]), []).append((p, M, X))
        group = self.param_groups[0]
        for (rows, columns), members in shapes.items():
            U = orthogonal(torch.cat([M for _, M, _ in members])).float()
            if group["neurons"]:
                U = self._by_neurons(members[0][0], U, group["neurons"])
            parts = list(U.split([len(M) for _, M, _ in members]))
            length = group["lr"] * max(1.0, rows / columns) ** 0.5
            torch._foreach_add_([X for _, _, X in members], parts, alpha=-length)

    def _estimates(self, group: dict[str, Any]) -> list[Tensor]:
        g, mu = [p.grad for p in group["params"]], group["mu"]
        if group["gamma"]:
            last = [self._kept(p, "last", lambda p=p: p.grad.clone()) for p in group["params"]]
            c = torch._foreach_lerp(last, g, 1 + group["gamma"] * mu / (1 - mu))  # g + (weight - 1) (g - last)
            torch._foreach_copy_(last, g)
            torch._foreach_div_(c, torch._foreach_clamp_min(torch._foreach_norm(c), 1.0))
            g = c
        m = [self._kept(p, "m", lambda p=p: torch.zeros_like(p)) for p in group["params"]]
        torch._foreach_lerp_(m, g, 1 - mu)
        return m if group["gamma"] else list(torch._foreach_lerp(g, m, mu))

    def _by_neurons(self, owner: Tensor, U: Tensor, beta2: float) -> Tensor:
        """Second moments of all rows of one shape, kept with the first of its tensors."""
        mean = U.square().mean(2, keepdim=True)
        v = self._kept(owner, "v", lambda: mean.clone())
        v.lerp_(mean, 1 - beta2)
        found = U / (v.sqrt() + FLOOR)
        return found * (U.norm(dim=(1, 2), keepdim=True) / found.norm(dim=(1, 2), keepdim=True))

    def _kept(self, p: Tensor, name: str, first: Callable[[], Tensor]) -> Tensor:
        state = self.state[p]
        if name not in state:
            state[name] = first()
        return state[name]


class ScheduleFree(torch.optim.Optimizer):
    """Parameters hold y; `swap` puts x in their place, or y back."""

    def __init__(
        self, params: Iterable[Any], lr: float, betas: tuple[float, float] = (0.9, 0.95), eps: float = 1e-8
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "t": 0, "weight": 0.0})

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            group["t"] += 1
            (beta, beta2), lr, y = group["betas"], group["lr"], group["params"]
            group["weight"] += lr**2
            c = lr**2 / group["weight"] if group["weight"] else 1.0
            g = [p.grad for p in y]
            z, v = ([self._kept(p, name) for p in y] for name in ("z", "v"))
            torch._foreach_mul_(v, beta2)
            torch._foreach_addcmul_(v, g, g, 1 - beta2)
            size = torch._foreach_sqrt(v)
            torch._foreach_add_(size, group["eps"])
            u = torch._foreach_div(g, size)
            torch._foreach_mul_(u, math.sqrt(1 - beta2 ** group["t"]))
            # y moves as x and z do: towards z by c, and by lr (beta (1 - c) - 1) along u
            torch._foreach_lerp_(y, z, c)
            torch._foreach_add_(y, u, alpha=lr * (beta * (1 - c) - 1))
            torch._foreach_add_(z, u, alpha=-lr)

    def _kept(self, p: Tensor, name: str) -> Tensor:
        state = self.state[p]
        if name not in state:
            state[name] = p.detach().clone() if name == "z" else torch.zeros_like(p)
        return state[name]

    @torch.no_grad()
    def swap(self, to_x: bool) -> None:
        """x = (y - (1 - beta) z) / beta, and back."""
        for group in self.param_groups:
            beta = group["betas"][0]
            z = [self._kept(p, "z") for p in group["params"]]
            torch._foreach_lerp_(group["params"], z, 1 - 1 / beta if to_x else 1 - beta)


class Prodigy(torch.optim.Optimizer):
    """Adam whose length is found on the way."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1.0,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        first: float = 1e-6,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps})
        self.d, self.first, self.gone = first, first, 0.0

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """All groups share one d. r and s are divided by `first`^2, lest their squares vanish in float32."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        d, ahead, long = self.d, 0.0, 0.0
        for group in self.param_groups:
            (beta, beta2), lr, x = group["betas"], group["lr"], group["params"]
            forget, weight = math.sqrt(beta2), group["lr"] * (d / self.first) ** 2
            g = [p.grad for p in x]
            start, m, v, s = ([self._kept(p, name) for p in x] for name in ("start", "m", "v", "s"))
            gone = torch._foreach_mul(torch._foreach_sub(start, x), g)
            ahead += weight * float(torch.stack([part.sum() for part in gone]).sum())
            torch._foreach_mul_(s, forget)
            torch._foreach_add_(s, g, alpha=weight)
            long += float(torch.stack(torch._foreach_norm(s, 1)).sum())
            torch._foreach_mul_(m, beta)
            torch._foreach_add_(m, g, alpha=(1 - beta) * d)
            torch._foreach_mul_(v, beta2)
            torch._foreach_addcmul_(v, g, g, (1 - beta2) * d * d)
            size = torch._foreach_sqrt(v)
            torch._foreach_add_(size, d * group["eps"])
            torch._foreach_addcdiv_(x, m, size, -lr * d)
        self.gone = forget * self.gone + ahead
        if long > 0:
            self.d = max(d, self.gone / long)
        return loss

    def _kept(self, p: Tensor, name: str) -> Tensor:
        state = self.state[p]
        if name not in state:
            state[name] = p.detach().clone() if name == "start" else torch.zeros_like(p)
        return state[name]
