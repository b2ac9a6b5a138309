"""Gradient accumulation: a batch in four pieces, every piece at both points, and one step.

    python examples/torch/accumulation.py

With memory="lean" gradients are taken up during the last backward of a pass, so `backwards` says how many there are.
"""

import sys

import torch
from torch import nn

from normstorm.torch import NormalizedStorm

PIECES = 4
torch.manual_seed(0)
x = torch.randn(2048, 10)
y = torch.tanh(x @ torch.randn(10, 1))
model = nn.Sequential(nn.Linear(10, 32), nn.Tanh(), nn.Linear(32, 1))
optimizer = NormalizedStorm(model.parameters(), lr=0.05, beta=0.9, memory="lean")


def accumulate(chosen: torch.Tensor) -> float:
    total = 0.0
    for piece in chosen.chunk(PIECES):
        value = nn.functional.mse_loss(model(x[piece]), y[piece]) / PIECES
        value.backward()
        total += value.item()
    return total


losses = []
for step in range(150):
    chosen = torch.randint(len(x), (64,))
    with optimizer.old_point(backwards=PIECES):
        accumulate(chosen)
    with optimizer.new_point(backwards=PIECES):
        losses.append(accumulate(chosen))
    optimizer.step()
    if step % 30 == 0:
        print(f"step {step:3d}  loss {losses[-1]:.4f}")

print(f"step {len(losses)}  loss {losses[-1]:.4f}")
sys.exit(0 if losses[-1] < losses[0] / 2 else "the loss did not fall")
