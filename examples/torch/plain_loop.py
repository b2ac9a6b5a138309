"""A plain loop: the optimizer evaluates the loss of a batch at two points and calls backward itself.

    python examples/torch/plain_loop.py

The first half of the run takes all K samples of a batch at both points, the second half a quarter of them (k = K/4).
"""

import sys

import torch
from torch import nn

from normstorm.torch import NormalizedStorm

torch.manual_seed(0)
x = torch.randn(2048, 10)
y = torch.tanh(x @ torch.randn(10, 1))
model = nn.Sequential(nn.Linear(10, 32), nn.Tanh(), nn.Linear(32, 1))
optimizer = NormalizedStorm(model.parameters(), lr=0.05, beta=0.9)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 200)


def loss(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return nn.functional.mse_loss(model(x), y)


losses = []
for step in range(200):
    chosen = torch.randint(len(x), (64,))
    value = optimizer.step(loss, batch=(x[chosen], y[chosen]), k=64 if step < 100 else 16)
    schedule.step()
    losses.append(value.item())
    if step % 40 == 0:
        print(f"step {step:3d}  loss {losses[-1]:.4f}")

print(f"step {len(losses)}  loss {losses[-1]:.4f}")
sys.exit(0 if losses[-1] < losses[0] / 2 else "the loss did not fall")
