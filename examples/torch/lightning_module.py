"""Lightning: with automatic optimisation its closure is called at both points; manual optimisation says so in words.

    python examples/torch/lightning_module.py

In manual optimisation take the optimizer itself (use_pl_optimizer=False): Lightning's wrapper hides the two phases.
"""

import sys

import torch
from lightning import LightningModule, Trainer
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from normstorm.torch import NormalizedStorm


class Automatic(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(10, 32), nn.Tanh(), nn.Linear(32, 1))
        self.losses: list[float] = []

    def loss(self, batch: list[torch.Tensor]) -> torch.Tensor:
        return nn.functional.mse_loss(self.net(batch[0]), batch[1])

    def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
        value = self.loss(batch)
        self.losses.append(value.item())
        return value

    def configure_optimizers(self) -> NormalizedStorm:
        return NormalizedStorm(self.parameters(), lr=0.05, beta=0.9)


class Manual(Automatic):
    automatic_optimization = False

    def training_step(self, batch: list[torch.Tensor], _: int) -> None:
        optimizer = self.optimizers(use_pl_optimizer=False)
        with optimizer.old_point():
            self.manual_backward(self.loss(batch))
        with optimizer.new_point():
            value = self.loss(batch)
            self.manual_backward(value)
        optimizer.step()
        self.losses.append(value.item())


torch.manual_seed(0)
x = torch.randn(2048, 10)
data = DataLoader(TensorDataset(x, torch.tanh(x @ torch.randn(10, 1))), batch_size=64, shuffle=True)
quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
for module in (Automatic(), Manual()):
    Trainer(max_epochs=3, accelerator="cpu", devices=1, **quiet).fit(module, data)
    print(f"{type(module).__name__}: loss {module.losses[0]:.4f}, then {module.losses[-1]:.4f}")
    if module.losses[-1] > module.losses[0] / 2:
        sys.exit("the loss did not fall")
