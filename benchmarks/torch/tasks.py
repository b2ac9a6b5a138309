"""Two tasks where theory says that the correction pays: robust classification, and a linear head on frozen features.

    python -m benchmarks.torch.tasks [--only dro|head] [--fixed] [--budget 60000] [--seeds 7] [--workers 2] [--out FILE]

dro    chi-square distributionally robust classification of scikit-learn's digits, in its joint dual form: the mean of
       lam psi*((l_i - eta)/lam) + eta, psi*(t) = max(t/2 + 1, 0)^2 - 1, l_i the cross-entropy of a small tanh network
head   a network is trained on the digits 0-4 and frozen; a linear head on its features learns to tell 5-9 apart

Equal sample gradients for everyone: a step costs K, or K + k with two points. Equal tuning: the same number of learning
rates, a factor of 3 apart, times two momenta, one seed; the best setting for each of two measures is then run on fresh
seeds. The rate falls to 0 along a line, or with --fixed stays. Measures: the norm of the full gradient, averaged over
the run, and the full objective at its end. Shown are medians over seeds with the interval that holds the true median
with 95 % probability or more. Every batch of a seed is the same for everyone.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator
from functools import cache, partial
from multiprocessing import get_context
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from benchmarks.torch.parts import Ordinary, Ours, arguments, machine, write
from normstorm.torch import NormalizedStorm

K = 16
LAM, DECAY = 1.0, 1e-3
LOOKS = 60
MOMENTA = (0.9, 0.99)


class Task(NamedTuple):
    """Rows, a fresh model, and the mean loss of some rows under it."""

    data: tuple[Tensor, Tensor]
    model: Callable[[], nn.Module]
    loss: Callable[[nn.Module, Tensor, Tensor], Tensor]


def digits() -> tuple[Tensor, Tensor]:
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    x = torch.tensor(x, dtype=torch.float32) / 16
    return (x - x.mean(0)) / x.std(), torch.tensor(y)


def penalty(model: nn.Module) -> Tensor:
    return DECAY / 2 * sum((p * p).sum() for p in model.parameters() if p.ndim == 2)


class Robust(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 16), nn.Tanh(), nn.Linear(16, 10))
        self.eta = nn.Parameter(torch.zeros(()))


def robust_loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    each = nn.functional.cross_entropy(model.net(x), y, reduction="none")
    t = (each - model.eta) / LAM
    return (LAM * ((t / 2 + 1).clamp(min=0) ** 2 - 1) + model.eta).mean() + penalty(model)


def dro() -> Task:
    return Task(digits(), Robust, robust_loss)


def head() -> Task:
    x, y = digits()
    torch.manual_seed(123)
    body = nn.Sequential(nn.Linear(64, 128), nn.Tanh(), nn.Linear(128, 64), nn.Tanh())
    whole, known = nn.Sequential(body, nn.Linear(64, 5)), y < 5
    optimizer = torch.optim.Adam(whole.parameters(), 1e-3)
    for _ in range(300):
        optimizer.zero_grad()
        nn.functional.cross_entropy(whole(x[known]), y[known]).backward()
        optimizer.step()
    with torch.no_grad():
        features = body(x[~known])
    return Task((features, y[~known] - 5), lambda: nn.Linear(64, 5), plain_loss)


def plain_loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return nn.functional.cross_entropy(model(x), y) + penalty(model)


class Method(NamedTuple):
    make: Callable[[nn.Module, float, float], Ordinary]
    middle: float
    cost: int = K


def storm(model: nn.Module, lr: float, beta: float, k: int = 0) -> Ordinary:
    optimizer = NormalizedStorm(model.parameters(), lr, beta, correction=1.0 if k else 0.0)
    return Ours(optimizer, k / K if k else None)


def adamw(model: nn.Module, lr: float, beta: float) -> Ordinary:
    return Ordinary(torch.optim.AdamW(model.parameters(), lr, betas=(beta, 0.999), weight_decay=0.0))


def sgd(model: nn.Module, lr: float, beta: float) -> Ordinary:
    return Ordinary(torch.optim.SGD(model.parameters(), lr * (1 - beta), momentum=beta))


def muon(model: nn.Module, lr: float, beta: float) -> Ordinary:
    matrices = [p for p in model.parameters() if p.ndim == 2]
    others = [p for p in model.parameters() if p.ndim != 2]
    first = torch.optim.Muon(matrices, lr, weight_decay=0.0, momentum=beta)
    return Ordinary(first, torch.optim.AdamW(others, lr / 5, betas=(beta, 0.999), weight_decay=0.0))


METHODS = {
    "NormalizedStorm, k = K": Method(partial(storm, k=K), 0.1, 2 * K),
    "NormalizedStorm, k = K/4": Method(partial(storm, k=K // 4), 0.1, K + K // 4),
    "NormalizedStorm, correction 0": Method(storm, 0.1),
    "AdamW": Method(adamw, 0.01),
    "SGD with momentum": Method(sgd, 0.3),
    "Muon + AdamW": Method(muon, 0.03),
}
RATES = 7


def rates(method: Method) -> list[float]:
    return [method.middle * 3.0**i for i in range(-(RATES // 2), RATES // 2 + 1)]


def batches(task: Task, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    while True:
        chosen = torch.randint(len(task.data[0]), (K,), generator=generator)
        yield task.data[0][chosen], task.data[1][chosen]


def look(task: Task, model: nn.Module) -> tuple[float, float]:
    """The full gradient's norm and the full objective."""
    value = task.loss(model, *task.data)
    gradient = torch.autograd.grad(value, list(model.parameters()))
    return float(torch.sqrt(sum((g * g).sum() for g in gradient))), float(value.detach())


def run(task: Task, method: Method, rate: float, beta: float, seed: int, budget: int, fixed: bool) -> dict[str, float]:
    torch.manual_seed(seed)
    model = task.model()
    entrant = method.make(model, rate, beta)
    base = [group["lr"] for group in entrant.groups]
    steps, norms, value = budget // method.cost, [], 0.0
    for step, batch in zip(range(steps), batches(task, seed), strict=False):
        for group, own in zip(entrant.groups, base, strict=True):
            group["lr"] = own * (1 if fixed else 1 - step / steps)
        if step * LOOKS // steps != (step - 1) * LOOKS // steps:
            norms.append(look(task, model)[0])
        entrant.step(partial(task.loss, model), batch)
    last, value = look(task, model)
    return {"mean_gradient_norm": statistics.fmean(norms), "last_gradient_norm": last, "objective": value}


MEASURES = ("mean_gradient_norm", "objective")
TASKS = {"dro": dro, "head": head}


class Order(NamedTuple):
    """One run, for a worker."""

    task: str
    method: str
    rate: float
    momentum: float
    seed: int
    budget: int
    fixed: bool


@cache
def task_of(name: str) -> Task:
    torch.set_num_threads(1)
    return TASKS[name]()


def serve(order: Order) -> dict[str, float]:
    method = METHODS[order.method]
    return run(task_of(order.task), method, *order[2:])


def best(trials: list[tuple[Order, dict[str, float]]], measure: str) -> Order:
    return min((t for t in trials if math.isfinite(t[1][measure])), key=lambda trial: trial[1][measure])[0]


def interval(values: list[float]) -> dict[str, float]:
    """The median, and the inner-most order statistics between which the true median lies with 95 % probability."""
    values = sorted(values)
    n, outside, edge = len(values), 0.0, -1
    while edge + 1 < n // 2 and 2 * (outside + math.comb(n, edge + 1) * 0.5**n) <= 0.05:
        edge += 1
        outside += math.comb(n, edge) * 0.5**n
    edge = max(edge, 0)
    return {"median": statistics.median(values), "low": values[edge], "high": values[n - 1 - edge]}


def compare(name: str, options: Any, serve_all: Callable[..., list[dict[str, float]]]) -> list[dict[str, Any]]:
    orders = [
        Order(name, method, rate, momentum, 0, options.budget, options.fixed)
        for method in METHODS
        for momentum in MOMENTA
        for rate in rates(METHODS[method])
    ]
    trials = list(zip(orders, serve_all(serve, orders, 1), strict=True))
    rows, known = [], {}
    for method in METHODS:
        own = [trial for trial in trials if trial[0].method == method]
        for measure in MEASURES:
            chosen = best(own, measure)
            if chosen not in known:
                known[chosen] = serve_all(
                    serve, [chosen._replace(seed=seed) for seed in range(1, 1 + options.seeds)], 1
                )
            seen = known[chosen]
            edge = chosen.rate in (rates(METHODS[method])[0], rates(METHODS[method])[-1])
            row = {"method": method, "tuned_for": measure, "rate": chosen.rate, "momentum": chosen.momentum}
            row |= {"at_the_edge": edge} | {key: interval([one[key] for one in seen]) for key in seen[0]}
            rows.append(row)
            print(name, row, flush=True)
    return rows


def main() -> None:
    parser = arguments(__doc__, "torch-tasks.json")
    parser.add_argument("--only", choices=TASKS)
    parser.add_argument("--fixed", action="store_true", help="keep the learning rate")
    parser.add_argument("--budget", type=int, default=60_000, help="sample gradients of a run")
    parser.add_argument("--seeds", type=int, default=7)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    budget = options.budget // 100 if options.tiny else options.budget
    report = {"machine": machine("cpu"), "tiny": options.tiny, "budget": budget, "seeds": options.seeds, "K": K}
    report |= {"rates": RATES, "momenta": MOMENTA, "fixed": options.fixed, "tasks": {}}
    options.budget, started = budget, time.perf_counter()
    with get_context("spawn").Pool(options.workers) as pool:
        for name in TASKS:
            if options.only in (None, name):
                report["tasks"][name] = compare(name, options, pool.map)
                report["seconds"] = time.perf_counter() - started
                write(options.out, report)
    print(f"{time.perf_counter() - started:.0f} s; written: {options.out}")


if __name__ == "__main__":
    main()
