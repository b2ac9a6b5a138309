"""What the entrants of the race hold where activations are small, as with activation checkpoints or small portions.

    python -m benchmarks.torch.race_memory

The models of the race, one window of 64 bytes a step in place of 64 of 512, bfloat16 autocast, not compiled: the peak
of the third step, everything included, in bytes per parameter; `before` is what is allocated without a model (the
libraries' own). In the race itself activations are most of the peak.
"""

from __future__ import annotations

import gc
from typing import Any

import torch

from benchmarks.torch.parts import arguments, build, loss_of, machine, parameters, write
from benchmarks.torch.race import ENTRANTS, SIZES

NAMES = ("neurons", "spectral", "neurons-lean", "spectral-lean", "muon", "normuon", "mars", "adamw", "schedule-free")
WINDOW, STEPS = 64, 3


def peak(name: str, size: str) -> dict[str, Any]:
    model = build(SIZES[size], "cuda")
    entrant, loss = ENTRANTS[name].make(model, 1e-4, 0.1), loss_of(model, True)
    tokens = torch.randint(256, (1, WINDOW + 1), device="cuda")
    for _ in range(STEPS):
        torch.cuda.reset_peak_memory_stats()
        entrant.step(loss, (tokens[:, :-1], tokens[:, 1:]))
    found = torch.cuda.max_memory_allocated() / parameters(model)
    return {"name": name, "size": size, "parameters": parameters(model), "peak_bytes_per_parameter": found}


def main() -> None:
    given = arguments(__doc__, "torch-race-memory.json").parse_args()
    report: dict[str, Any] = {"machine": machine("cuda"), "window": WINDOW, "rows": []}
    for size in SIZES:
        for name in NAMES:
            gc.collect()
            torch.cuda.empty_cache()
            before = torch.cuda.memory_allocated()
            report["rows"].append(peak(name, size) | {"before": before})
            print(report["rows"][-1], flush=True)
            write(given.out, report)


if __name__ == "__main__":
    main()
