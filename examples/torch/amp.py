"""Mixed precision: a GradScaler scales both passes of a step, and an overflow in either leaves everything as it was.

    python examples/torch/amp.py

float16 on a GPU. On a CPU autocast takes bfloat16; the scaler does its work all the same.
"""

import sys

import torch
from torch import nn

from normstorm.torch import NormalizedStorm

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
x = torch.randn(2048, 10, device=device)
y = torch.tanh(x @ torch.randn(10, 1, device=device))
model = nn.Sequential(nn.Linear(10, 32), nn.Tanh(), nn.Linear(32, 1)).to(device)
optimizer = NormalizedStorm(model.parameters(), lr=0.03, beta=0.9)
scaler = torch.amp.GradScaler(device, init_scale=2.0**10)


def loss(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    with torch.autocast(device, torch.float16 if device == "cuda" else torch.bfloat16):
        return nn.functional.mse_loss(model(x).float(), y)


losses = []
for step in range(200):
    chosen = torch.randint(len(x), (64,), device=device)
    batch = x[chosen], y[chosen]
    with optimizer.old_point(scaler=scaler):
        scaler.scale(loss(*batch)).backward()
    with optimizer.new_point():
        value = loss(*batch)
        scaler.scale(value).backward()
    scaler.step(optimizer)
    scaler.update()
    losses.append(value.item())
    if step % 40 == 0:
        print(f"step {step:3d}  loss {losses[-1]:.4f}")

print(f"step {len(losses)}  loss {losses[-1]:.4f}")
sys.exit(0 if losses[-1] < losses[0] / 2 else "the loss did not fall")
