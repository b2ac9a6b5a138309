"""A race on byte-level text: a GPT of 25 million parameters, the same wall-clock for every optimizer.

    python -m benchmarks.torch.race --data DIR [--only NAME ...] [--seconds 15] [--stop 540] [--out FILE]

DIR holds train.bin.xz and val.bin.xz, plain bytes. 64 windows of 512 bytes a step, bfloat16 autocast, compiled blocks.
The clock runs during training only: compilation, the first steps of a throw-away optimizer and evaluation are outside.
The rate warms up over the first 5 % of the time and falls to 0 along a cosine of the elapsed share. Everyone has three
learning rates on seed 0; if the best is the first or the last of them, one more beyond it; the best is run on seed 1.
No weight decay for anyone. The validation loss is the mean over windows spread evenly over val.bin.

The report is rewritten after every run, and runs that it already holds are not repeated, so that the race can be
stopped at any moment and continued; `--stop` starts no run after so many seconds.
"""

from __future__ import annotations

import gc
import json
import lzma
import math
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.torch.mars import MarsAdamW
from benchmarks.torch.parts import (
    GPT,
    Ordinary,
    Size,
    adamw,
    arguments,
    block,
    build,
    loss_of,
    machine,
    muon,
    parameters,
    spectral,
    storm,
    write,
)

SIZE, TINY = Size(8, 512, 8, 256, 512), Size(2, 64, 2, 256, 64)
BATCH, WINDOWS, WARM = 64, 512, 0.05
SEEDS = (0, 1)


def mars(model: nn.Module, lr: float) -> Ordinary:
    matrices = [p for p in model.parameters() if p.ndim == 2]
    vectors = [p for p in model.parameters() if p.ndim != 2]
    rest = torch.optim.AdamW(vectors, lr, betas=(0.9, 0.95), weight_decay=0.0, fused=vectors[0].is_cuda)
    return Ordinary(MarsAdamW(matrices, lr), rest)


class Entrant(NamedTuple):
    make: Callable[[nn.Module, float], Ordinary]
    rates: tuple[float, float, float]
    passes: int = 1


ENTRANTS = {
    "AdamW": Entrant(adamw, (1e-3, 2e-3, 4e-3)),
    "Muon": Entrant(muon, (0.02, 0.04, 0.08)),
    "MARS": Entrant(mars, (1.5e-3, 3e-3, 6e-3)),
    "spectral-0": Entrant(partial(spectral, correction=0.0, nesterov=True), (0.01, 0.02, 0.04)),
    "spectral-0-lean": Entrant(partial(spectral, correction=0.0, nesterov=True, memory="lean"), (0.01, 0.02, 0.04)),
    "spectral-1": Entrant(partial(spectral, correction=1.0, beta=0.9, nesterov=False), (0.005, 0.01, 0.02), 2),
    "euclidean-0": Entrant(partial(storm, correction=0.0, beta=0.95, start="zero"), (0.25, 0.5, 1.0)),
    "euclidean-1": Entrant(partial(storm, correction=1.0, beta=0.9), (0.125, 0.25, 0.5), 2),
}


class Text:
    """Bytes on the device; batches by seed and step, the same for every optimizer."""

    def __init__(self, folder: Path, context: int, device: str) -> None:
        self.train, self.val = (self._load(folder / f"{part}.bin.xz", device) for part in ("train", "val"))
        self.window = torch.arange(context + 1, device=device)
        self.context = context

    @staticmethod
    def _load(file: Path, device: str) -> Tensor:
        raw = lzma.decompress(file.read_bytes())
        return torch.from_numpy(np.frombuffer(raw, np.uint8).copy()).to(device)

    def batch(self, generator: torch.Generator, count: int) -> tuple[Tensor, Tensor]:
        last = len(self.train) - self.context
        starts = torch.randint(last, (count, 1), generator=generator, device=self.train.device)
        return self._pair(self.train, starts)

    def windows(self, count: int, each: int) -> list[tuple[Tensor, Tensor]]:
        starts = torch.linspace(0, len(self.val) - self.context - 1, count, device=self.val.device).long()[:, None]
        return [self._pair(self.val, part) for part in starts.split(each)]

    def _pair(self, data: Tensor, starts: Tensor) -> tuple[Tensor, Tensor]:
        tokens = data[starts + self.window].long()
        return tokens[:, :-1], tokens[:, 1:]


class Clock:
    """Wall-clock seconds of the work that is done; the host runs at most two steps ahead of the device."""

    def __init__(self, device: str) -> None:
        self.cuda, self.marks = device == "cuda", []
        self._wait()
        self.start = time.perf_counter()

    def _wait(self) -> None:
        if self.cuda:
            torch.cuda.synchronize()

    def tick(self) -> float:
        if self.cuda:
            self.marks.append(torch.cuda.Event())
            self.marks[-1].record()
            if len(self.marks) > 2:
                self.marks.pop(0).synchronize()
        return time.perf_counter() - self.start

    def stop(self) -> float:
        self._wait()
        return time.perf_counter() - self.start


def factor(share: float) -> float:
    """The learning rate's course over the elapsed share of the time."""
    return share / WARM if share < WARM else 0.5 * (1 + math.cos(math.pi * min(1.0, (share - WARM) / (1 - WARM))))


class Race:
    def __init__(self, options: Any) -> None:
        self.options, self.device = options, options.device
        self.size = TINY if options.tiny else SIZE
        self.count, self.windows = (4, 8) if options.tiny else (BATCH, WINDOWS)
        self.text = Text(options.data, self.size.context, self.device)
        self.body = block if options.tiny and not options.compile else torch.compile(block)
        self.began = time.perf_counter()
        self.report = {"machine": machine(self.device), "tiny": options.tiny, "seconds": options.seconds, "runs": []}
        self.report |= {"batch": self.count, "context": self.size.context, "windows": self.windows, "warm": WARM}
        if options.out.exists():
            old = json.loads(options.out.read_text(encoding="utf-8"))
            same = all(
                old.get(key) == self.report[key] for key in ("tiny", "seconds", "batch", "context", "windows", "warm")
            )
            self.report["runs"] = old["runs"] if same else []

    def model(self, seed: int) -> GPT:
        return build(self.size, self.device, seed, body=self.body)

    def late(self) -> bool:
        return time.perf_counter() - self.began > self.options.stop

    def enter(self, name: str) -> None:
        """Three rates, one beyond the edge if the best is there, and the best on the other seeds."""
        rates = list(ENTRANTS[name].rates)
        for rate in rates:
            self.once(name, rate, 0)
        best = self.best(name)
        if best in (rates[0], rates[-1]):
            step = rates[1] / rates[0]
            self.once(name, best / step if best == rates[0] else best * step, 0)
        for seed in SEEDS[1:]:
            self.once(name, self.best(name), seed)

    def best(self, name: str) -> float | None:
        runs = [run for run in self.report["runs"] if run["name"] == name and run["seed"] == 0]
        return min(runs, key=lambda run: (run["loss"] is None, run["loss"] or 0.0))["rate"] if runs else None

    def once(self, name: str, rate: float | None, seed: int) -> None:
        known = {(run["name"], run["rate"], run["seed"]) for run in self.report["runs"]}
        if rate is None or (name, rate, seed) in known or self.late():
            return
        run = {"name": name, "rate": rate, "seed": seed, "passes": ENTRANTS[name].passes}
        run |= self.train(name, rate, seed)
        self.report["runs"].append(run)
        self.report["parameters"] = run.pop("parameters")
        write(self.options.out, self.report)
        print(" ".join(f"{key} {value}" for key, value in run.items()), flush=True)

    def train(self, name: str, rate: float, seed: int) -> dict[str, Any]:
        self.warm(name)
        model = self.model(seed)
        entrant, loss = ENTRANTS[name].make(model, rate), loss_of(model, True)
        base = [group["lr"] for group in entrant.groups]
        generator = torch.Generator(self.device).manual_seed(1000 + seed)
        if self.device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        steps, elapsed, seconds, clock = 0, 0.0, self.options.seconds, Clock(self.device)
        while elapsed < seconds:
            for group, own in zip(entrant.groups, base, strict=True):
                group["lr"] = own * factor(elapsed / seconds)
            entrant.step(loss, self.text.batch(generator, self.count))
            steps += 1
            elapsed = clock.tick()
        found = {"steps": steps, "trained_seconds": clock.stop(), "tokens": steps * self.count * self.size.context}
        if self.device == "cuda":
            found["peak_bytes"] = torch.cuda.max_memory_allocated()
        value = self.evaluate(loss)
        states = [state for optimizer in entrant.optimizers for state in optimizer.state.values()]
        kept = sum(t.nbytes for state in states for t in state.values() if torch.is_tensor(t))
        found |= {"loss": value if math.isfinite(value) else None, "parameters": parameters(model)}
        return found | {"state_bytes_per_parameter": kept / parameters(model)}

    def warm(self, name: str) -> None:
        """Compile whatever this entrant needs, on a model that is thrown away."""
        model = self.model(99)
        entrant, loss = ENTRANTS[name].make(model, 1e-4), loss_of(model, True)
        generator = torch.Generator(self.device).manual_seed(99)
        for _ in range(3):
            entrant.step(loss, self.text.batch(generator, self.count))
        self.evaluate(loss, 1)
        gc.collect()

    @torch.no_grad()
    def evaluate(self, loss: Callable[[Tensor, Tensor], Tensor], batches: int | None = None) -> float:
        parts = self.text.windows(self.windows, self.count)[:batches]
        return float(torch.stack([loss(*part) for part in parts]).mean())


def summary(report: dict[str, Any]) -> list[str]:
    lines = []
    for name in ENTRANTS:
        runs = [run for run in report["runs"] if run["name"] == name and run["loss"] is not None]
        if runs:
            best = min((run for run in runs if run["seed"] == 0), key=lambda run: run["loss"])
            shown = " ".join(f"{run['loss']:.4f}" for run in runs if run["rate"] == best["rate"])
            lines.append(f"{name:15s} rate {best['rate']:g}: {shown}  tokens {best['tokens'] / 1e6:.1f} M")
    return lines


def main() -> None:
    parser = arguments(__doc__, "torch-race.json")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--only", nargs="+", choices=ENTRANTS, default=list(ENTRANTS))
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--stop", type=float, default=540.0, help="start no run after so many seconds")
    parser.add_argument("--compile", action="store_true", help="compile the blocks in a trial too")
    options = parser.parse_args()
    race = Race(options)
    for name in options.only:
        race.enter(name)
    print("\n".join(summary(race.report)))


if __name__ == "__main__":
    main()
