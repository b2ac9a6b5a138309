"""Verdicts of a diagnosis beside what training does, on tasks on which none of its thresholds was set.

    python -m benchmarks.torch.diagnosis [--rows fresh] [--steps 400] [--seeds 3] [--probes 8]

Every row is a task and a step size. The model is first trained by momentum; there the diagnosis is asked, with several
seeds of its own, and from there both methods go on with the same step size and the same number of sample gradients:
two points for N steps with K samples, all of them at both points; momentum for 2 N steps with K samples, and for N
steps with 2 K. Each gets the best of its betas, momentum also the better of its two ways. What counts is the loss over
all rows, mean of the second half of the steps and of the seeds. N is the horizon that the diagnosis is asked about.

--rows floor: a second set of such tasks, half of the rows at fixed rates near the noise floor.
--rows design: the tasks on digits that the rules were thought out on. They come from scikit-learn, or from
build/digits.npz where an earlier run left them.
"""

from __future__ import annotations

import argparse
import math
import time
from collections import Counter
from typing import Any

import torch

from benchmarks.machine import describe
from benchmarks.pages import RESULTS, diagnosis_table, publish
from benchmarks.torch.diagnosis_floor import FLOOR, FLOOR_ROWS
from benchmarks.torch.diagnosis_fresh import FRESH, FRESH_ROWS
from benchmarks.torch.diagnosis_tasks import TASKS, Task
from normstorm.torch import Diagnosis, NormalizedStorm, diagnose

MOMENTUM, TWO_POINTS = (0.5, 0.8, 0.9, 0.97), (0.8, 0.9, 0.97, 0.99)
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
]
K = 8


def train(task: Task, geometry: str, lr: float, beta: float, correction: float, steps: int, size: int) -> float:
    """Train where the model stands; the mean loss of the second half."""
    optimizer = NormalizedStorm(task.model.parameters(), lr, beta, geometry=geometry, correction=correction)
    seen = []
    for t in range(1, steps + 1):
        optimizer.step(task.loss, batch=task.draw(size))
        if t > 0.5 * steps and t % max(1, steps // 50) == 0:
            seen.append(task.value())
    return sum(seen) / len(seen)


def one_row(row: tuple[str, str, float, int], steps: int, seeds: int, probes: int) -> dict[str, Any]:
    name, geometry, lr, before = row
    torch.manual_seed(0)
    task = (FRESH | FLOOR | TASKS)[name](0)
    began = time.perf_counter()
    train(task, geometry, lr, 0.9, 0.0, before, K)
    kept = {key: value.clone() for key, value in task.model.state_dict().items()}
    here = task.value()

    def asked(seed: int) -> Diagnosis:
        task.draws.manual_seed(1000 + seed)
        return diagnose(task.model, task.loss, lambda: task.draw(K), lr, geometry=geometry, steps=steps, seed=seed)

    found = [asked(seed) for seed in range(probes)]
    ways = {"more steps": (MOMENTUM, 0.0, 2 * steps, K), "larger batches": (MOMENTUM, 0.0, steps, 2 * K)}
    ways["two points"] = (TWO_POINTS, 1.0, steps, K)
    ends: dict[str, dict[float, list[float]]] = {way: {} for way in ways}
    for way, (betas, correction, length, size) in ways.items():
        for beta in betas:
            for seed in range(seeds):
                task.draws.manual_seed(100 + seed)
                task.model.load_state_dict(kept)
                ends[way].setdefault(beta, []).append(train(task, geometry, lr, beta, correction, length, size))
    report = {"task": name, "geometry": geometry, "lr": lr, "before": before, "steps": steps, "loss": here}
    report |= {"seconds": time.perf_counter() - began, "diagnosis": found[0].to_dict(), "ends": ends}
    report["verdicts"] = [one.verdict for one in found]
    return report | outcome(ends, found[0].verdict)


def outcome(ends: dict[str, dict[float, list[float]]], verdict: str) -> dict[str, Any]:
    """Who ends lower, by how much of momentum's loss, and whether the verdict said so.

    A tie: less than two standard errors of the seeds, or less than 0.2 %. It agrees with "does not pay": nothing was
    gained.
    """
    best = {way: min(runs.items(), key=lambda run: mean(run[1])) for way, runs in ends.items()}
    way = min(("more steps", "larger batches"), key=lambda way: mean(best[way][1]))
    one, two = best[way][1], best["two points"][1]
    gap = (mean(one) - mean(two)) / mean(one)
    error = math.hypot(deviation(one), deviation(two)) / mean(one)
    tie = abs(gap) < max(2 * error, 0.002)
    winner = "tie" if tie else "two points" if gap > 0 else "momentum"
    agrees = (verdict == "pays") == (winner == "two points")
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
    parser.add_argument("--rows", choices=["fresh", "floor", "design"], default="fresh")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--probes", type=int, default=8)
    given = parser.parse_args()
    torch.set_num_threads(1)
    rows = {"fresh": FRESH_ROWS, "floor": FLOOR_ROWS, "design": ROWS}[given.rows]
    reports = [show(one_row(row, given.steps, given.seeds, given.probes)) for row in rows]
    report = {"machine": describe(), "torch": torch.__version__, "rows": reports}
    name = {"fresh": "torch-diagnosis", "floor": "torch-diagnosis-floor"}.get(given.rows)
    if name is not None:
        publish(RESULTS / f"{name}.json", report, "diagnose.md", name, diagnosis_table(report))
    print(diagnosis_table(report))


def show(r: dict[str, Any]) -> dict[str, Any]:
    d = r["diagnosis"]
    print(
        f"{r['task']} {r['geometry']} lr {r['lr']}: {dict(Counter(r['verdicts']))} ({d['reason']}); "
        f"winner {r['winner']} "
        f"{r['gap']:+.2%} +- {r['gap_error']:.2%}, momentum {r['momentum']:.4f} ({r['momentum_way']}, "
        f"{r['momentum_beta']}), two points {r['two_points']:.4f} ({r['two_point_beta']}); {r['seconds']:.0f} s",
        flush=True,
    )
    return r


if __name__ == "__main__":
    main()
