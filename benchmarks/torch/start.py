"""Why a doubled rate can ruin a run of 200 steps with 120 million parameters: the start, changed one thing at a time.

    python -m benchmarks.torch.start --data DIR [--stop 170] [--out benchmarks/results/torch-start.json]

The race's model, text and seed 0. What changes: the share of the run over which the rate rises, the deviation with
which embeddings begin, the companion's ratio, and a clip that lets no matrix change by more than a share of its length
in a step. `curve` is the training loss, means of five steps.
"""

from __future__ import annotations

import gc
import time
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from benchmarks.torch.parts import arguments, hidden, loss_of, machine, write
from benchmarks.torch.race import ENTRANTS, SECONDS, STEPS, Race, factor


class Start(NamedTuple):
    name: str
    rate: float
    ratio: float = 0.15
    warm: float = 0.05
    embedding: float = 0.02
    clip: float | None = None


ROWS = [
    Start("spectral", 0.02),
    Start("spectral", 0.04),
    Start("spectral", 0.04, ratio=0.0375),
    Start("spectral", 0.04, clip=0.05),
    Start("spectral", 0.04, warm=0.2),
    Start("spectral", 0.02, embedding=1.0),
    Start("spectral", 0.04, embedding=1.0),
    Start("muon", 0.04, embedding=1.0),
    Start("adamw", 0.002, ratio=1.0, embedding=1.0),
]


def clipped(params: list[Tensor], old: list[Tensor], most: float) -> None:
    """Take back what is more than the share `most` of a tensor's length."""
    moved = torch._foreach_sub(params, old)
    lengths = torch.stack(torch._foreach_norm(moved)).clamp_min(1e-12)
    parts = (most * torch.stack(torch._foreach_norm(old)) / lengths).clamp_max(1.0)
    torch._foreach_mul_(moved, list(parts.unbind()))
    torch._foreach_copy_(params, torch._foreach_add(old, moved))


def run(race: Race, row: Start) -> dict[str, Any]:
    options, device = race.options, race.device
    options.warm, options.embedding = row.warm, row.embedding
    race.warm(row.name)
    gc.collect()
    model = race.model(0)
    inner, loss = hidden(model)[0], loss_of(model, True)
    entrant = ENTRANTS[row.name].make(model, row.rate, row.ratio)
    base = [group["lr"] for group in entrant.groups]
    generator, seen = torch.Generator(device).manual_seed(1000), []
    for step in range(options.steps):
        for group, own in zip(entrant.groups, base, strict=True):
            group["lr"] = own * factor(step / options.steps, row.warm, True)
        old = [p.detach().clone() for p in inner] if row.clip else None
        seen.append(entrant.step(loss, race.text.batch(generator, race.count)).detach())
        if row.clip and old is not None:
            with torch.no_grad():
                clipped(inner, old, row.clip)
    curve = [float(part.mean()) for part in torch.stack(seen).float().split(5)]
    return {**row._asdict(), "loss": race.evaluate(loss), "curve": curve}


def main() -> None:
    parser = arguments(__doc__, "torch-start.json")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=STEPS["120"])
    parser.add_argument("--stop", type=float, default=170.0, help="start no run after so many seconds")
    parser.add_argument("--compile", action="store_true", help="compile the blocks in a trial too")
    options = parser.parse_args()
    began, asked, options.out = time.perf_counter(), options.out, options.out.with_suffix(".none")
    vars(options).update(size="120", warm=0.05, embedding=0.02, seconds=SECONDS["120"], anew=False, settings=None)
    race = Race(options)
    report = {"machine": machine(options.device), "tiny": options.tiny, "steps": options.steps, "rows": []}
    for row in ROWS:
        if time.perf_counter() - began < options.stop:
            report["rows"].append(run(race, row))
            print({name: value for name, value in report["rows"][-1].items() if name != "curve"}, flush=True)
            write(asked, report)


if __name__ == "__main__":
    main()
