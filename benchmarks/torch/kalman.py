"""KalmanStorm, which has no learning rate, beside Prodigy, which has none either, and AdamW with five of them.

    python -m benchmarks.torch.kalman [--only digits letters bytes] [--gradients 6000] [--seeds 3] [--jobs 1] [--ours]

digits: a network of one hidden layer on 8 x 8 digits, all labels right. letters: an attention model of a Markov chain.
bytes: a transformer of two blocks on sentences of a small grammar, which are the same everywhere. Equal gradients:
whatever a step asks is counted. Batches of 32; the loss over all rows at the end, and the most of the last tenth of the
way. Nobody's rate falls. With `--ours` KalmanStorm alone runs, and the other rows of the report stay.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from multiprocessing import get_context
from typing import Any, NamedTuple

import torch
from torch import nn

from benchmarks.torch.diagnosis_fresh import chain
from benchmarks.torch.diagnosis_tasks import Task, _classifier, _task, digits
from benchmarks.torch.parts import GPT, Size, arguments, machine, write
from benchmarks.torch.rivals import Prodigy
from normstorm.torch import KalmanStorm

BATCH = 32
RATES = tuple(3e-4 * 10 ** (i / 2) for i in range(5))  # the second is about torch's default
SIZE = Size(2, 32, 2, 128, 32)
GRAMMAR = {  # a capital stands for one of its words
    "S": ("N V N.", "N V N, and N V N.", "if N V N, then S", "N says that S", "'S' says N."),
    "N": ("the A W", "the W", "a W", "a A W that V N", "every W of N"),
    "V": ("sees", "follows", "paints", "has forgotten", "would carry", "never sold"),
    "A": ("old", "quiet", "green", "seventh", "hollow", "very A", "unknown"),
    "W": ("river", "painter", "clock", "window", "letter", "sailor", "orchard", "number", "bridge", "fox"),
}


def network(seed: int) -> Task:
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    return _classifier(model, *digits(), seed)


def sentences(count: int) -> str:
    """So many letters; drawn with `random()` alone, which Python promises to keep."""
    draw, text, waiting = random.Random(0).random, "", []
    while len(text) < count:
        letter = waiting.pop() if waiting else "S"
        words = GRAMMAR.get(letter)
        if words is None:
            text += letter
        else:
            waiting += reversed(words[int(draw() * len(words))])
        if not waiting:
            text += " "
    return text[:count]


def grammar(seed: int) -> Task:
    """Windows of 32 bytes."""
    z = torch.tensor(list(sentences(33 * 1500).encode("ascii"))).view(-1, 33)
    model = GPT(SIZE)
    return _task(model, model, z[:, :-1], z[:, 1:], seed)


TASKS: dict[str, Callable[[int], Task]] = {"digits": network, "letters": chain, "bytes": grammar}
OURS: dict[str, dict[str, Any]] = {
    "KalmanStorm": {},
    "KalmanStorm, spectral": {"geometry": "spectral"},
    "KalmanStorm, spectral, longer": {"geometry": "spectral", "longer": True},
}


class Job(NamedTuple):
    task: str
    name: str
    lr: float | None
    seed: int
    gradients: int
    device: str

    def optimizer(self, params: Any) -> torch.optim.Optimizer:
        if self.name in OURS:
            return KalmanStorm(params, **OURS[self.name])
        if self.name == "Prodigy":
            return Prodigy(params)
        return torch.optim.AdamW(params, self.lr, weight_decay=0.0)


def train(job: Job) -> dict[str, Any]:
    torch.set_num_threads(1)
    torch.manual_seed(job.seed)
    began, task = time.perf_counter(), TASKS[job.task](job.seed)
    task.model.to(job.device)
    rows = tuple(part.to(job.device) for part in task.rows)
    optimizer, asked, ends, every = job.optimizer(task.model.parameters()), 0, [], max(1, job.gradients // 50)

    def value() -> float:
        with torch.no_grad():
            return float(task.loss(*rows))

    while asked < job.gradients:
        batch, before = [part.to(job.device) for part in task.draw(BATCH)], asked

        def closure(batch: Any = batch) -> torch.Tensor:
            nonlocal asked
            asked += 1
            optimizer.zero_grad()
            loss = task.loss(*batch)
            loss.backward()
            return loss

        optimizer.step(closure)
        if asked > 0.9 * job.gradients and asked // every > before // every:
            ends.append(value())
    if isinstance(optimizer, KalmanStorm):
        optimizer.finish()
    found = {"seed": job.seed, "loss": value(), "most": max(ends), "seconds": time.perf_counter() - began}
    print(job.task, job.name, job.lr, found, flush=True)
    return found


def main() -> None:
    parser = arguments(__doc__, "torch-kalman.json")
    parser.add_argument("--only", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--gradients", type=int, default=6000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=1, help="runs beside each other")
    parser.add_argument("--ours", action="store_true", help="KalmanStorm alone; the others' rows stay")
    given = parser.parse_args()
    gradients, seeds = (60, 1) if given.tiny else (given.gradients, given.seeds)
    digits()  # before many look for them
    names = [*((name, None) for name in (*OURS, "Prodigy")), *(("AdamW", rate) for rate in RATES)]
    names = names[: len(OURS)] if given.ours else names
    wanted = [(task, name, lr) for task in given.only for name, lr in names]
    jobs = [Job(*row, seed, gradients, given.device) for row in wanted for seed in range(seeds)]
    with get_context("spawn").Pool(given.jobs) as pool:
        runs = pool.map(train, jobs, chunksize=1)
    report: dict[str, Any] = {"machine": machine(given.device), "tiny": given.tiny, "gradients": gradients}
    report |= {"batch": BATCH, "rates": RATES, "rows": []}
    for i, (task, name, lr) in enumerate(wanted):
        report["rows"].append({"task": task, "name": name, "lr": lr, "runs": runs[i * seeds : (i + 1) * seeds]})
    if given.ours and given.out.exists():
        old = json.loads(given.out.read_text(encoding="utf-8"))
        report["others"] = old.get("others", old["machine"])
        report["rows"] += [row for row in old["rows"] if (row["task"], row["name"], row["lr"]) not in wanted]
    write(given.out, report)


if __name__ == "__main__":
    main()
