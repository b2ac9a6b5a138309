"""KalmanStorm, which has no learning rate, beside AdamW with five of them.

    python -m benchmarks.torch.kalman [--only digits letters bytes] [--gradients 2000] [--seeds 1]

digits: a network of one hidden layer on 8 x 8 digits, all labels right. letters: an attention model of a Markov chain.
bytes: a transformer of two blocks on sources of this package. Equal gradients: whatever a step asks is counted. Batches
of 32; the loss over all rows at the end, and the most of the last tenth of the way.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.machine import describe
from benchmarks.pages import RESULTS
from benchmarks.torch.diagnosis_fresh import chain
from benchmarks.torch.diagnosis_tasks import Task, _classifier, _task, digits
from benchmarks.torch.parts import GPT, Size, write
from normstorm.torch import KalmanStorm

BATCH = 32
RATES = tuple(3e-4 * 10 ** (i / 2) for i in range(5))  # the second is about torch's default
SIZE = Size(2, 32, 2, 128, 32)


def network(seed: int) -> Task:
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    return _classifier(model, *digits(), seed)


def sources(seed: int) -> Task:
    """Windows of 32 bytes."""
    files = sorted((Path(__file__).parents[2] / "src" / "normstorm" / "torch").glob("*.py"))
    text = "".join(file.read_text(encoding="utf-8") for file in files).encode("ascii", "replace")
    z = torch.tensor(list(text[: 33 * 1500])).view(-1, 33)
    model = GPT(SIZE)
    return _task(model, model, z[:, :-1], z[:, 1:], seed)


TASKS: dict[str, Callable[[int], Task]] = {"digits": network, "letters": chain, "bytes": sources}
OURS: dict[str, dict[str, Any]] = {
    "KalmanStorm": {},
    "KalmanStorm, spectral": {"geometry": "spectral"},
    "KalmanStorm, spectral, longer": {"geometry": "spectral", "longer": True},
}


def train(name: str, seed: int, gradients: int, make: Callable[[Any], torch.optim.Optimizer]) -> dict[str, Any]:
    torch.manual_seed(seed)
    task = TASKS[name](seed)
    optimizer, asked, ends, every = make(task.model.parameters()), 0, [], max(1, gradients // 50)
    while asked < gradients:
        batch, before = task.draw(BATCH), asked

        def closure(batch: Any = batch) -> torch.Tensor:
            nonlocal asked
            asked += 1
            optimizer.zero_grad()
            loss = task.loss(*batch)
            loss.backward()
            return loss

        optimizer.step(closure)
        if asked > 0.9 * gradients and asked // every > before // every:
            ends.append(task.value())
    if isinstance(optimizer, KalmanStorm):
        optimizer.finish()
    return {"seed": seed, "loss": task.value(), "most": max(ends)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--gradients", type=int, default=2000)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--out", type=Path, default=RESULTS / "torch-kalman.json")
    given = parser.parse_args()
    torch.set_num_threads(1)
    report: dict[str, Any] = {"machine": describe(), "torch": torch.__version__, "gradients": given.gradients}
    report |= {"batch": BATCH, "rates": RATES, "rows": []}
    for task in given.only:
        rows = [(name, None, lambda params, o=o: KalmanStorm(params, **o)) for name, o in OURS.items()]
        rows += [("AdamW", lr, lambda params, lr=lr: torch.optim.AdamW(params, lr, weight_decay=0.0)) for lr in RATES]
        for name, lr, make in rows:
            began = time.process_time()
            runs = [train(task, seed, given.gradients, make) for seed in range(given.seeds)]
            row = {"task": task, "name": name, "lr": lr, "runs": runs, "cpu_seconds": time.process_time() - began}
            report["rows"].append(row)
            print(
                task,
                name,
                lr,
                [(f"{r['loss']:.3g}", f"{r['most']:.3g}") for r in runs],
                f"{row['cpu_seconds']:.0f} s",
                flush=True,
            )
            write(given.out, report)


if __name__ == "__main__":
    main()
