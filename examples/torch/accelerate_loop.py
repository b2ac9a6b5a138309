"""Accelerate: the prepared optimizer takes a closure, and `optimizer.optimizer` has the phases.

python examples/torch/accelerate_loop.py
"""

import sys

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from normstorm.torch import NormalizedStorm

torch.manual_seed(0)
x = torch.randn(2048, 10)
data = DataLoader(TensorDataset(x, torch.tanh(x @ torch.randn(10, 1))), batch_size=64, shuffle=True)
model = nn.Sequential(nn.Linear(10, 32), nn.Tanh(), nn.Linear(32, 1))
optimizer = NormalizedStorm(model.parameters(), lr=0.05, beta=0.9)
accelerator = Accelerator(cpu=not torch.cuda.is_available())
model, optimizer, data = accelerator.prepare(model, optimizer, data)
storm = optimizer.optimizer

losses = []
for epoch in range(4):
    for batch in data:

        def loss(batch: list[torch.Tensor] = batch) -> torch.Tensor:
            value = nn.functional.mse_loss(model(batch[0]), batch[1])
            accelerator.backward(value)
            losses.append(value.item())
            return value

        if epoch < 2:
            optimizer.step(loss)
        else:
            with storm.old_point():
                loss()
            with storm.new_point():
                loss()
            optimizer.step()
    print(f"epoch {epoch}  loss {losses[-1]:.4f}")

sys.exit(0 if losses[-1] < losses[0] / 2 else "the loss did not fall")
