"""Hugging Face Trainer: correction 0 needs nothing but the optimizer; two points need a training step of two phases.

    python examples/torch/hugging_face_trainer.py

A GPT-2 of toy size, made from a configuration; nothing is fetched. One batch is one step: leave accumulation and the
clipping of gradients off, since clipping the two gradients apart would break their difference.
"""

import sys
import tempfile

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from normstorm.torch import NormalizedStorm, spectral_storm


class TwoPoints(Trainer):
    """Each batch is evaluated before and after the move; dropout draws the same masks."""

    def training_step(self, *args, **kwargs) -> torch.Tensor:
        storm = self.optimizer.optimizer  # inside Accelerate's wrapper
        with storm.old_point():
            super().training_step(*args, **kwargs)
        with storm.new_point():
            return super().training_step(*args, **kwargs)


def data() -> list[dict[str, torch.Tensor]]:
    starts = torch.randint(64, (512, 1))
    tokens = (starts + 3 * torch.arange(16)) % 64
    return [{"input_ids": row, "labels": row} for row in tokens]


def model() -> GPT2LMHeadModel:
    ends = {"bos_token_id": 0, "eos_token_id": 0}
    return GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=16, n_embd=32, n_layer=1, n_head=2, **ends))


torch.manual_seed(0)
arguments = TrainingArguments(
    output_dir=tempfile.gettempdir(), max_steps=60, per_device_train_batch_size=16, learning_rate=0.05, max_grad_norm=0,
    logging_steps=10, save_strategy="no", report_to="none", disable_tqdm=True, use_cpu=not torch.cuda.is_available(),
)  # fmt: skip
for kind, make in ((Trainer, spectral_storm), (TwoPoints, lambda m, lr: NormalizedStorm(m.parameters(), lr=2 * lr))):
    net = model()
    trainer = kind(net, arguments, train_dataset=data(), optimizers=(make(net, lr=arguments.learning_rate), None))
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    print(f"{kind.__name__}: loss {losses[0]}, then {losses[-1]}")
    if float(losses[-1]) > 0.8 * float(losses[0]):
        sys.exit("the loss did not fall")
