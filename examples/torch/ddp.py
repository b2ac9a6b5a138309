"""DistributedDataParallel: every process has its own samples; gradients are averaged in both passes.

    torchrun --nproc-per-node 2 examples/torch/ddp.py

It runs on CPUs with gloo; with GPUs, put model and data on the process's device and take nccl.
"""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from normstorm.torch import NormalizedStorm


def train() -> list[float]:
    torch.manual_seed(0)
    x = torch.randn(2048, 10)
    y = torch.tanh(x @ torch.randn(10, 1))
    model = DistributedDataParallel(nn.Sequential(nn.Linear(10, 32), nn.Tanh(), nn.Linear(32, 1)))
    optimizer = NormalizedStorm(model.parameters(), lr=0.05, beta=0.9)
    own = torch.Generator().manual_seed(dist.get_rank())

    losses = []
    for step in range(100):
        chosen = torch.randint(len(x), (64,), generator=own)

        def closure(chosen: torch.Tensor = chosen) -> torch.Tensor:
            optimizer.zero_grad()
            value = nn.functional.mse_loss(model(x[chosen]), y[chosen])
            value.backward()
            return value

        value = optimizer.step(closure).detach()
        dist.all_reduce(value)
        losses.append(value.item() / dist.get_world_size())
        if step % 20 == 0 and dist.get_rank() == 0:
            print(f"step {step:3d}  loss {losses[-1]:.4f}")
    return losses


torch.set_num_threads(1)
dist.init_process_group("gloo")
losses = train()
if dist.get_rank() == 0:
    print(f"step {len(losses)}  loss {losses[-1]:.4f}")
dist.barrier()
dist.destroy_process_group()
sys.exit(0 if losses[-1] < losses[0] / 2 else "the loss did not fall")
