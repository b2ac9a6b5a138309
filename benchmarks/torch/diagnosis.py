"""Verdicts of a diagnosis beside what training does.

    python -m benchmarks.torch.diagnosis [--text train.bin.xz] [--device cuda] [--workers 2] [--out ...]

Every row is a task and a step size. The model is first trained by momentum; there the diagnosis is asked, and from
there both methods go on with the same step size and the same number of sample gradients: two points for N steps with K
samples, all of them at both points; momentum for 2 N steps with K samples, and for N steps with 2 K. Each gets the
best of its betas, momentum also the better of its two ways. What counts is the loss over all rows (language: over a
fixed batch of 256 windows), mean of the last tenth of the steps and of the seeds.

Rows of language models need --text and run on --device; the others run on the CPU, in so many processes. digits come
from scikit-learn, or from build/digits.npz where an earlier run left them.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch

from benchmarks.machine import describe
from benchmarks.pages import RESULTS, diagnosis_table, publish
from benchmarks.torch.diagnosis_tasks import TASKS, Task, text
from normstorm.torch import NormalizedStorm, assign
from normstorm.torch.diagnosis import diagnose

MOMENTUM, TWO_POINTS = (0.9, 0.97, 0.99), (0.9, 0.97, 0.99, 0.997)
ROWS = [  # task, geometry, step size, steps of momentum before the question
    ("logistic", "euclidean", 0.3, 500),
    ("logistic", "euclidean", 0.03, 1500),
    ("logistic", "euclidean", 0.003, 3000),
    ("dro", "euclidean", 0.1, 500),
    ("dro", "euclidean", 0.01, 2500),
    ("head", "euclidean", 0.3, 500),
    ("head", "euclidean", 0.02, 1500),
    ("mlp", "euclidean", 0.1, 500),
    ("mlp", "euclidean", 0.003, 3000),
    ("cnn", "euclidean", 0.03, 300),
    ("language", "euclidean", 0.1, 200),
    ("language", "euclidean", 0.003, 400),
    ("language", "spectral", 0.02, 200),
    ("language", "spectral", 0.0005, 200),
]
K = {"language": 8}


def parameters(task: Task, geometry: str) -> Any:
    return assign(task.model) if geometry == "spectral" else task.model.parameters()


def train(task: Task, geometry: str, lr: float, beta: float, correction: float, steps: int, K: int) -> float:
    """Train where the model stands; the mean loss of the last tenth."""
    optimizer = NormalizedStorm(parameters(task, geometry), lr, beta, correction=correction)
    seen = []
    for t in range(1, steps + 1):
        optimizer.step(task.loss, batch=task.draw(K))
        if t > 0.9 * steps and t % max(1, steps // 50) == 0:
            seen.append(task.value())
    return sum(seen) / len(seen)


def one_row(row: tuple[str, str, float, int], steps: int, seeds: int, extra: dict[str, Any]) -> dict[str, Any]:
    torch.set_num_threads(1)
    name, geometry, lr, before = row
    torch.manual_seed(0)
    task, K_ = TASKS[name](0, **extra), K.get(name, 8)
    began = time.perf_counter()
    train(task, geometry, lr, 0.9, 0.0, before, K_)
    kept = {key: value.clone() for key, value in task.model.state_dict().items()}
    here = task.value()
    groups = parameters(task, geometry) if geometry != "euclidean" else None
    found = diagnose(task.model, task.loss, lambda: task.draw(K_), lr, params=groups)
    ways = {"more steps": (MOMENTUM, 0.0, 2 * steps, K_), "larger batches": (MOMENTUM, 0.0, steps, 2 * K_)}
    ways["two points"] = (TWO_POINTS, 1.0, steps, K_)
    ends: dict[str, dict[float, list[float]]] = {way: {} for way in ways}
    for way, (betas, correction, length, size) in ways.items():
        for beta in betas:
            for seed in range(seeds):
                task.draws.manual_seed(100 + seed)
                task.model.load_state_dict(kept)
                ends[way].setdefault(beta, []).append(train(task, geometry, lr, beta, correction, length, size))
    report = {"task": name, "geometry": geometry, "lr": lr, "before": before, "steps": steps, "loss": here}
    report |= {"seconds": time.perf_counter() - began, "diagnosis": found.to_dict(), "ends": ends}
    return report | outcome(ends, found.verdict)


def outcome(ends: dict[str, dict[float, list[float]]], verdict: str) -> dict[str, Any]:
    """Who ends lower, by how much of momentum's loss, and whether the verdict said so.

    A tie: less than two standard errors of the seeds, or less than 0.2 %. It agrees with "does not pay": nothing was
    gained. "too close" neither agrees nor disagrees.
    """
    best = {way: min(runs.items(), key=lambda run: mean(run[1])) for way, runs in ends.items()}
    way = min(("more steps", "larger batches"), key=lambda way: mean(best[way][1]))
    one, two = best[way][1], best["two points"][1]
    gap = (mean(one) - mean(two)) / mean(one)
    error = math.hypot(deviation(one), deviation(two)) / mean(one)
    tie = abs(gap) < max(2 * error, 0.002)
    winner = "tie" if tie else "two points" if gap > 0 else "momentum"
    agrees = {"pays": winner == "two points", "does not pay": winner != "two points", "too close": None}[verdict]
    betas = {"momentum_beta": best[way][0], "two_point_beta": best["two points"][0]}
    losses = {"momentum": mean(one), "momentum_way": way, "two_points": mean(two)}
    return {"verdict": verdict, "winner": winner, "gap": gap, "gap_error": error, "agrees": agrees, **losses, **betas}


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


def deviation(values: list[float]) -> float:
    """The standard error of the mean."""
    n = len(values)
    return math.sqrt(sum((v - mean(values)) ** 2 for v in values) / (n - 1) / n) if n > 1 else 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--text", type=Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--language-steps", type=int, default=100)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--out", type=Path, default=RESULTS / "torch-diagnosis.json")
    given = parser.parse_args()
    TASKS["logistic"](0)  # the digits are in the cache before anybody runs beside
    small = [row for row in ROWS if row[0] != "language"]
    on_gpu = given.device != "cpu"
    size = {"length": 128, "width": 192, "layers": 4} if on_gpu else {"length": 32, "width": 48, "layers": 2}
    with ProcessPoolExecutor(given.workers, multiprocessing.get_context("spawn")) as pool:
        futures = [pool.submit(one_row, row, given.steps, given.seeds, {}) for row in small]
        reports = []
        if given.text is not None:
            extra = {"data": text(given.text), "device": given.device, **size}
            rows = [row for row in ROWS if row[0] == "language"]
            reports = [show(one_row(row, given.language_steps, 1, extra)) for row in rows]
        reports = [show(future.result()) for future in futures] + reports
    counted = [r["agrees"] for r in reports if r["agrees"] is not None]
    print(f"{sum(counted)} of {len(counted)} verdicts agree; {len(reports) - len(counted)} too close to call")
    machine = describe() | ({"gpu": torch.cuda.get_device_name()} if on_gpu else {})
    report = {"machine": machine, "torch": torch.__version__, "language_model": size, "rows": reports}
    publish(given.out, report, "diagnose.md", "torch-diagnosis", diagnosis_table(report))


def show(r: dict[str, Any]) -> dict[str, Any]:
    d = r["diagnosis"]
    print(
        f"{r['task']} {r['geometry']} lr {r['lr']}: {r['verdict']} ({d['reason']}); winner {r['winner']} "
        f"{r['gap']:+.2%} +- {r['gap_error']:.2%}, momentum {r['momentum']:.4f} ({r['momentum_way']}, "
        f"{r['momentum_beta']}), two points {r['two_points']:.4f} ({r['two_point_beta']}); {r['seconds']:.0f} s",
        flush=True,
    )
    return r


if __name__ == "__main__":
    main()
