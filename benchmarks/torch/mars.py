"""MARS-AdamW in its one-gradient form, written for the benchmark from the published recursion.

    c_t = g_t + gamma beta1 / (1 - beta1) (g_t - g_{t-1});   c_t <- c_t / max(1, ||c_t||)      for each tensor
    m_t = beta1 m_{t-1} + (1 - beta1) c_t;   v_t = beta2 v_{t-1} + (1 - beta2) c_t^2
    x_{t+1} = x_t - lr m_t / (1 - beta1^t) / (sqrt(v_t / (1 - beta2^t)) + eps)

g_{t-1} is the gradient of the step before on its own batch, and g_0 = g_1. Matrices only; vectors take AdamW, as in the
authors' recipe. Source: Yuan, Liu, Wu, Zhou and Gu, MARS: unleashing the power of variance reduction for training large
models, 2024. Departures: no weight decay, as for every contender of the race.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor


class MarsAdamW(torch.optim.Optimizer):
    """Words of state per weight: m, v and the last gradient."""

    def __init__(
        self,
        params: Iterable[Tensor],
        lr: float = 3e-3,
        betas: tuple[float, float] = (0.95, 0.99),
        gamma: float = 0.025,
        eps: float = 1e-8,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "gamma": gamma, "eps": eps, "t": 0})

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            group["t"] += 1
            (b1, b2), t = group["betas"], group["t"]
            weights = [p for p in group["params"] if p.grad is not None]
            g = [p.grad for p in weights]
            m, v, last = ([self._state(p, name) for p in weights] for name in ("m", "v", "last"))
            if t == 1:
                torch._foreach_copy_(last, g)
            c = torch._foreach_lerp(last, g, 1 + group["gamma"] * b1 / (1 - b1))  # g + (weight - 1) (g - last)
            torch._foreach_copy_(last, g)
            torch._foreach_div_(c, torch._foreach_clamp_min(torch._foreach_norm(c), 1.0))
            torch._foreach_lerp_(m, c, 1 - b1)
            torch._foreach_mul_(v, b2)
            torch._foreach_addcmul_(v, c, c, 1 - b2)
            size = torch._foreach_sqrt(torch._foreach_div(v, 1 - b2**t))
            torch._foreach_add_(size, group["eps"])
            torch._foreach_addcdiv_(weights, m, size, -group["lr"] / (1 - b1**t))

    def _state(self, p: Tensor, name: str) -> Tensor:
        state = self.state[p]
        if name not in state:
            state[name] = torch.zeros_like(p)
        return state[name]
