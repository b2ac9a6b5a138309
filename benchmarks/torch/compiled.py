"""Time of torch.compile(optimizer.step) beside the plain step, and how many graphs it takes.

    python -m benchmarks.torch.compiled [--repeats 20] [--out benchmarks/results/torch-compiled.json]

Twenty ordinary steps with zero_grad and fresh random gradients come first; graphs are counted over them. Then only
`step()` is timed, plain and compiled in turns, on a GPT of 25 million parameters; medians.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch._dynamo.utils import counters

from benchmarks.torch.parts import Size, arguments, build, machine, milliseconds, parameters, spread, write
from normstorm.torch import NormalizedStorm, spectral_storm

SIZE, TINY = Size(8, 512, 8, 256, 512), Size(2, 64, 2, 256, 64)
STEPS, TURNS = 20, 3
CONTENDERS: dict[str, Callable[[nn.Module], Any]] = {
    "NormalizedStorm, correction 0": lambda model: NormalizedStorm(model.parameters(), 1e-3, correction=0.0),
    "spectral_storm, correction 0": lambda model: spectral_storm(model, 1e-3),
    "AdamW (foreach)": lambda model: torch.optim.AdamW(model.parameters(), 1e-3, foreach=True),
}


def give(model: nn.Module) -> None:
    for p in model.parameters():
        p.grad = torch.randn_like(p)


def measure(make: Callable[[nn.Module], Any], options: Any) -> dict[str, Any]:
    size = TINY if options.tiny else SIZE
    models = [build(size, options.device) for _ in range(2)]
    optimizers = [make(model) for model in models]
    torch._dynamo.reset()
    counters.clear()
    steps = [optimizers[0].step, torch.compile(optimizers[1].step, backend=options.backend)]
    start = time.perf_counter()
    for _ in range(STEPS):
        for model, optimizer, step in zip(models, optimizers, steps, strict=True):
            optimizer.zero_grad()
            give(model)
            step()
    found = {"graphs": counters["stats"]["unique_graphs"], "first_seconds": time.perf_counter() - start}
    times: list[list[float]] = [[], []]
    for _ in range(TURNS):
        for own, step in zip(times, steps, strict=True):
            own += milliseconds(step, options.repeats, 2, options.device)
    eager, compiled = map(spread, times)
    ratio = compiled["median"] / eager["median"]
    return found | {"parameters": parameters(models[0]), "eager_ms": eager, "compiled_ms": compiled, "ratio": ratio}


def main() -> None:
    parser = arguments(__doc__, "torch-compiled.json")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--backend", default="inductor")
    options = parser.parse_args()
    report = {"machine": machine(options.device), "tiny": options.tiny, "backend": options.backend, "rows": []}
    report |= {"steps": STEPS, "repeats": TURNS * options.repeats}
    for name, make in CONTENDERS.items():
        row = {"name": name, **measure(make, options)}
        report["rows"].append(row)
        words = f"{row['eager_ms']['median']:.3f} ms, compiled {row['compiled_ms']['median']:.3f}"
        print(f"{name}: {words}, {row['ratio']:.2f}x, {row['graphs']} graphs", flush=True)
        write(options.out, report)
        gc.collect()


if __name__ == "__main__":
    main()
