"""A race on byte-level text: GPTs of 25 and 120 million parameters, equal tokens and equal wall-clock.

    python -m benchmarks.torch.race --data DIR [--size 25] [--by tokens seconds] [--only NAME ...] [--stop 540]
                                    [--warm SHARE] [--embedding DEVIATION] [--anew] [--settings REPORT]
    python -m benchmarks.torch.race --data DIR --only spectral stale exact exact-usual euclidean euclidean-exact
                                    euclidean-exact-usual --ratios 1 --out benchmarks/results/torch-correction.json

DIR holds train.bin.xz and val.bin.xz, plain bytes. 64 windows of 512 bytes a step, bfloat16 autocast, compiled blocks.
Everyone has two numbers to tune on seed 0, a learning rate and the ratio of the companion's rate to it (embeddings,
head and vectors; of AdamW too): three rates at the usual ratio, one more beyond if the best is at the edge, and other
ratios at the best rate. The best is run on seed 1. That is done by tokens. By seconds, everyone runs with what was
best by tokens, for as many steps as the time holds at its own pace: the median over rounds of steps in which everyone
takes turns, since one and the same run varies by up to fifteen per cent in speed on a machine that others use too.

The rate warms up over the first part of the run and falls to 0 along a cosine; schedule-free keeps it. With 120 million
parameters the first part is longer and embeddings begin larger, for everyone: `benchmarks.torch.start` has the reason.
No weight decay for anyone; AdamW and schedule-free clip gradients at norm 1. The validation loss is the mean over
windows spread evenly over val.bin.

The report is rewritten after every run, and runs that it already holds are not repeated, so that the race can be
stopped at any moment and continued; `--stop` starts no run after so many seconds. `--anew` measures all paces again and
puts the runs by seconds aside as an earlier attempt. `--settings` takes the best of another report and tunes nothing.
"""

from __future__ import annotations

import gc
import json
import lzma
import math
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.torch.parts import (
    FIRST,
    GPT,
    Ordinary,
    Ours,
    Size,
    arguments,
    block,
    build,
    hidden,
    loss_of,
    machine,
    parameters,
    write,
)
from benchmarks.torch.rivals import Muon, ScheduleFree
from normstorm.torch import NormalizedStorm, assign

SIZES = {"25": Size(8, 512, 8, 256, 512), "120": Size(17, 768, 12, 256, 512)}
TINY = Size(2, 64, 2, 256, 64)
STEPS = {"25": 610, "120": 200}  # 20 and 6.6 million tokens
SECONDS = {"25": 10.0, "120": 12.0}
BATCH, WINDOWS = 64, 512
ROUNDS, STRETCH = 9, 20  # turns of everyone when the pace is measured, steps of a turn
KEPT = ("runs", "pace", "earlier_by_seconds", "explored")  # what a race that goes on keeps of its report
WARM = {"25": 0.05, "120": 0.2}  # 30 and 40 steps
EMBEDDING = {"25": 0.02, "120": 1.0}  # standard deviation at the start; 1 is torch's own
SEEDS = (0, 1)


class Clipped(Ordinary):
    """Gradients of norm 1 at most, over all parameters."""

    def step(self, loss: Callable[..., Tensor], batch: tuple[Tensor, ...]) -> Tensor:
        value = loss(*batch)
        value.backward()
        nn.utils.clip_grad_norm_([p for group in self.groups for p in group["params"]], 1.0, foreach=True)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return value.detach()


def two_rates(model: nn.Module, lr: float, ratio: float) -> list[dict[str, Any]]:
    inner, rest = hidden(model)
    return [{"params": inner, "lr": lr}, {"params": rest, "lr": lr * ratio}]


def adamw(model: nn.Module, lr: float, ratio: float) -> Ordinary:
    groups = two_rates(model, lr, ratio)
    fused = groups[0]["params"][0].is_cuda
    return Clipped(torch.optim.AdamW(groups, lr, betas=(0.9, 0.95), weight_decay=0.0, fused=fused))


def schedule_free(model: nn.Module, lr: float, ratio: float) -> Ordinary:
    return Clipped(ScheduleFree(two_rates(model, lr, ratio), lr))


def muon(model: nn.Module, lr: float, ratio: float, **options: Any) -> Ordinary:
    inner, rest = hidden(model)
    fused = {p for name, p in model.named_parameters() if name.endswith("qkv.weight")}
    groups = [
        {"params": [p for p in inner if p in fused], "blocks": 3},
        {"params": [p for p in inner if p not in fused]},
    ]
    other = torch.optim.AdamW(rest, lr * ratio, betas=(0.9, 0.95), weight_decay=0.0, fused=rest[0].is_cuda)
    return Ordinary(Muon(groups, lr, **options), other)


def ours(model: nn.Module, lr: float, ratio: float, **options: Any) -> Ordinary:
    """`spectral_storm` with the companion's scale; `assign` splits queries, keys and values."""
    groups = [group | ({"scale": ratio} if group["geometry"] == "adam" else {}) for group in assign(model)]
    usual = {"beta": 0.95, "correction": 0.0, "nesterov": True, "start": "zero", "module": model}
    return Ours(NormalizedStorm(groups, lr, **(usual | options)))


def whole(model: nn.Module, lr: float, ratio: float, **options: Any) -> Ordinary:
    """`NormalizedStorm` as the paper has it: one length for all parameters, so that no ratio is there to tune."""
    return Ours(NormalizedStorm(model.parameters(), lr, **({"beta": 0.95, "correction": 0.0} | options)))


class Entrant(NamedTuple):
    make: Callable[[nn.Module, float, float], Ordinary]
    rates: dict[str, tuple[float, float, float]]
    ratios: tuple[float, ...] = (0.15, 0.3, 0.075)
    passes: int = 1
    scheduled: bool = True
    like: str | None = None  # takes its rates from another, whose arithmetic it shares


SPECTRAL = {"25": (0.01, 0.02, 0.04), "120": (0.02, 0.04, 0.08)}
EXACT = {"25": (0.005, 0.01, 0.02), "120": (0.01, 0.02, 0.04)}
ADAMW = {"25": (1e-3, 2e-3, 4e-3), "120": (1e-3, 2e-3, 4e-3)}
WHOLE = {"25": (0.125, 0.25, 0.5), "120": (0.125, 0.25, 0.5)}
FREE = {"25": (2e-3, 4e-3, 8e-3), "120": (1e-3, 2e-3, 4e-3)}
ENTRANTS = {
    "spectral": Entrant(ours, SPECTRAL),
    "spectral-lean": Entrant(partial(ours, memory="lean"), SPECTRAL, like="spectral"),
    "neurons": Entrant(partial(ours, neurons=True), SPECTRAL),
    "neurons-lean": Entrant(partial(ours, neurons=True, memory="lean"), SPECTRAL, like="neurons"),
    "stale": Entrant(partial(ours, difference="stale", correction=0.05), SPECTRAL),
    "exact": Entrant(partial(ours, correction=1.0, nesterov=False, beta=0.9), EXACT, passes=2),
    "exact-usual": Entrant(partial(ours, correction=1.0), EXACT, passes=2),
    "euclidean": Entrant(whole, WHOLE),
    "euclidean-exact": Entrant(partial(whole, correction=1.0, beta=0.9), WHOLE, passes=2),
    "euclidean-exact-usual": Entrant(partial(whole, correction=1.0), WHOLE, passes=2),
    "muon": Entrant(muon, SPECTRAL),
    "normuon": Entrant(partial(muon, neurons=0.95), SPECTRAL),
    "mars": Entrant(partial(muon, gamma=0.025), SPECTRAL),
    "adamw": Entrant(adamw, ADAMW, (1.0, 0.5, 2.0)),
    "schedule-free": Entrant(schedule_free, FREE, (1.0, 0.5, 2.0), scheduled=False),
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

    def tick(self) -> None:
        if self.cuda:
            self.marks.append(torch.cuda.Event())
            self.marks[-1].record()
            if len(self.marks) > 2:
                self.marks.pop(0).synchronize()

    def stop(self) -> float:
        self._wait()
        return time.perf_counter() - self.start


def factor(share: float, warm: float, falls: bool) -> float:
    """The learning rate's course over the elapsed share of the run."""
    if share < warm or not falls:
        return min(1.0, share / warm)
    return 0.5 * (1 + math.cos(math.pi * min(1.0, (share - warm) / (1 - warm))))


class Setting(NamedTuple):
    rate: float
    ratio: float


def tuned(report: dict[str, Any], name: str) -> Setting | None:
    """The best by tokens on seed 0."""
    name = ENTRANTS[name].like or name
    runs = [run for run in report["runs"] if run["name"] == name and run["seed"] == 0 and run["by"] == "tokens"]
    runs = [run for run in runs if run["loss"] is not None]
    best = min(runs, key=lambda run: run["loss"]) if runs else None
    return Setting(best["rate"], best["ratio"]) if best else None


class Race:
    def __init__(self, options: Any) -> None:
        self.options, self.device = options, options.device
        self.size = TINY if options.tiny else SIZES[options.size]
        self.count, self.windows = (4, 8) if options.tiny else (BATCH, WINDOWS)
        self.text = Text(options.data, self.size.context, self.device)
        self.body = block if options.tiny and not options.compile else torch.compile(block)
        self.began, self.warmed, self.by = time.perf_counter(), set[str](), ""
        self.report = {"machine": machine(self.device), "tiny": options.tiny, "size": options.size, "runs": []}
        self.report["pace"] = {}
        self.report |= {"steps": options.steps, "seconds": options.seconds, "batch": self.count}
        self.report |= {"context": self.size.context, "windows": self.windows}
        self.report |= {"warm": options.warm, "embedding": options.embedding}
        if options.out.exists():
            old = json.loads(options.out.read_text(encoding="utf-8"))
            same = all(old.get(key) == value for key, value in self.report.items() if key not in ("machine", *KEPT))
            self.report |= {key: old[key] for key in KEPT if same and key in old}
        if options.anew:
            self.put_aside()

    def model(self, seed: int) -> GPT:
        model = build(self.size, self.device, seed, body=self.body)
        with torch.no_grad():
            model.embedding.weight.mul_(self.options.embedding / FIRST)
        return model

    @property
    def known(self) -> dict[str, Any]:
        """The report that says what is best."""
        other = self.options.settings
        return json.loads(other.read_text(encoding="utf-8")) if other else self.report

    def put_aside(self) -> None:
        """Runs by seconds belong to the machine on which the paces were measured."""
        before = [run for run in self.report["runs"] if run["by"] == "seconds"]
        self.report["runs"] = [run for run in self.report["runs"] if run["by"] != "seconds"]
        self.report["earlier_by_seconds"] = [*self.report.get("earlier_by_seconds", []), *([before] if before else [])]
        self.report["pace"] = {}

    def late(self) -> bool:
        return time.perf_counter() - self.began > self.options.stop

    def run(self, by: str) -> None:
        """By tokens all are tuned first; then everyone has one seed after the other."""
        self.by, names = by, self.options.only
        if by == "tokens":
            names = [name for name in names if ENTRANTS[name].like is None]
            for name in names if self.options.settings is None else ():
                self.tune(name)
        else:
            self.measure([name for name in names if tuned(self.known, name)])
        for seed in SEEDS[: self.options.seeds]:
            for name in names:
                if best := tuned(self.known, name):
                    self.once(name, best, seed)

    def tune(self, name: str) -> None:
        rates = ENTRANTS[name].rates[self.options.size]
        usual, *others = ENTRANTS[name].ratios[: self.options.ratios]
        for rate in rates:
            self.once(name, Setting(rate, usual), 0)
        if best := tuned(self.report, name):
            if best.rate in (rates[0], rates[-1]):
                self.once(name, best._replace(rate=best.rate * (0.5 if best.rate == rates[0] else 2)), 0)
            best = tuned(self.report, name)
            for ratio in others:
                self.once(name, best._replace(ratio=ratio), 0)

    def once(self, name: str, setting: Setting, seed: int) -> None:
        key = {"name": name, "by": self.by, **setting._asdict(), "seed": seed}
        if self.late() or any(key.items() <= run.items() for run in self.report["runs"]):
            return
        run = key | {"passes": ENTRANTS[name].passes} | self.train(name, setting, seed)
        self.report["parameters"] = run.pop("parameters")
        self.report["runs"].append(run)
        write(self.options.out, self.report)
        print(" ".join(f"{key} {value}" for key, value in run.items()), flush=True)

    def measure(self, names: list[str]) -> None:
        """Seconds of a step: everyone takes ROUNDS turns of STRETCH steps, one after the other."""
        names = [name for name in names if name not in self.report["pace"]]
        if not names:
            return
        own = {name: self.warm(name) for name in names}
        generator = torch.Generator(self.device).manual_seed(99)
        seen: dict[str, list[float]] = {name: [] for name in names}
        for _ in range(ROUNDS):
            for name, (entrant, loss) in own.items():
                clock = Clock(self.device)
                for _ in range(STRETCH):
                    entrant.step(loss, self.text.batch(generator, self.count))
                    clock.tick()
                seen[name].append(clock.stop() / STRETCH)
        self.report["pace"] |= seen
        write(self.options.out, self.report)
        print("pace", {name: f"{statistics.median(own) * 1e3:.2f} ms" for name, own in seen.items()}, flush=True)

    def pace(self, name: str) -> float:
        return statistics.median(self.report["pace"][name])

    def train(self, name: str, setting: Setting, seed: int) -> dict[str, Any]:
        if name not in self.warmed:
            self.warm(name)
        gc.collect()  # what the run before has left
        model = self.model(seed)
        entrant, loss = ENTRANTS[name].make(model, *setting), loss_of(model, True)
        base = [group["lr"] for group in entrant.groups]
        generator = torch.Generator(self.device).manual_seed(1000 + seed)
        if self.device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        steps, clock = self.options.steps, Clock(self.device)
        if self.by == "seconds":
            steps = max(1, round(self.options.seconds / self.pace(name)))
        for i in range(steps):
            for group, own in zip(entrant.groups, base, strict=True):
                group["lr"] = own * factor(i / steps, self.options.warm, ENTRANTS[name].scheduled)
            entrant.step(loss, self.text.batch(generator, self.count))
            clock.tick()
        found = {"steps": steps, "trained_seconds": clock.stop(), "tokens": steps * self.count * self.size.context}
        if self.device == "cuda":
            found["peak_bytes"] = torch.cuda.max_memory_allocated()
        value = self.final(entrant, loss)
        states = [state for optimizer in entrant.optimizers for state in optimizer.state.values()]
        kept = sum(t.nbytes for state in states for t in state.values() if torch.is_tensor(t))
        found |= {"loss": value if math.isfinite(value) else None, "parameters": parameters(model)}
        return found | {"state_bytes_per_parameter": kept / parameters(model)}

    def final(self, entrant: Ordinary, loss: Callable[[Tensor, Tensor], Tensor]) -> float:
        """Where the optimizer hands out another point than it trains at, the loss there."""
        for optimizer in entrant.optimizers:
            if isinstance(optimizer, ScheduleFree):
                optimizer.swap(to_x=True)
        return self.evaluate(loss)

    def warm(self, name: str) -> tuple[Ordinary, Callable[[Tensor, Tensor], Tensor]]:
        """Compile whatever this entrant needs, on a model of its own."""
        model = self.model(99)
        entrant, loss = ENTRANTS[name].make(model, 1e-4, 0.1), loss_of(model, True)
        generator = torch.Generator(self.device).manual_seed(99)
        for _ in range(3):
            entrant.step(loss, self.text.batch(generator, self.count))
        self.evaluate(loss, 1)
        self.warmed.add(name)
        return entrant, loss

    @torch.no_grad()
    def evaluate(self, loss: Callable[[Tensor, Tensor], Tensor], batches: int | None = None) -> float:
        parts = self.text.windows(self.windows, self.count)[:batches]
        return float(torch.stack([loss(*part) for part in parts]).mean())


def main() -> None:
    parser = arguments(__doc__, "torch-race.json")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--size", choices=SIZES, default="25")
    parser.add_argument("--by", nargs="+", choices=("tokens", "seconds"), default=("tokens", "seconds"))
    parser.add_argument("--only", nargs="+", choices=ENTRANTS, default=list(ENTRANTS))
    parser.add_argument("--steps", type=int)
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--warm", type=float, help="share of the run over which the rate rises")
    parser.add_argument("--embedding", type=float, help="standard deviation with which embeddings begin")
    parser.add_argument("--seeds", type=int, default=len(SEEDS))
    parser.add_argument("--ratios", type=int, default=3, help="how many ratios of the companion's rate to try")
    parser.add_argument("--stop", type=float, default=540.0, help="start no run after so many seconds")
    parser.add_argument("--anew", action="store_true", help="measure paces again, and run all by seconds again")
    parser.add_argument("--settings", type=Path, help="a report whose best settings are taken")
    parser.add_argument("--compile", action="store_true", help="compile the blocks in a trial too")
    options = parser.parse_args()
    options.warm = options.warm or WARM[options.size]
    options.embedding = options.embedding or EMBEDDING[options.size]
    options.steps = options.steps or STEPS[options.size]
    options.seconds = options.seconds or SECONDS[options.size]
    race = Race(options)
    for by in options.by:
        race.run(by)


if __name__ == "__main__":
    main()
