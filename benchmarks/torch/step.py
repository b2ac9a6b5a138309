"""Time of a whole step (forward, backward, update) of a GPT of 354 million parameters, against AdamW's.

    python -m benchmarks.torch.step [--compile] [--repeats 8] [--out benchmarks/results/torch-step.json]

bfloat16 autocast, 32 sequences of 1024 tokens a step, no activation checkpointing. Two points cost K + k sample
gradients: 2x with k = K, 1.25x with k = K/4. AdamW is timed first and last; the difference is the noise of the ratios.
`--compile` compiles the blocks.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

from benchmarks.torch.parts import (
    Ordinary,
    Size,
    adamw,
    arguments,
    block,
    build,
    loss_of,
    machine,
    milliseconds,
    muon,
    parameters,
    spectral,
    spread,
    storm,
    write,
)

SIZE, TINY = Size(24, 1024, 16, 50_304, 1024), Size(2, 64, 2, 256, 32)
BATCH = 32
CONTENDERS: dict[str, tuple[float | None, Callable[[nn.Module], Ordinary]]] = {
    "AdamW (fused)": (None, adamw),
    "NormalizedStorm, correction 0, fast": (1.05, partial(storm, correction=0.0, memory="fast")),
    "NormalizedStorm, correction 0, lean": (1.05, partial(storm, correction=0.0, memory="lean")),
    "NormalizedStorm, k = K, fast": (2.1, partial(storm, memory="fast")),
    "NormalizedStorm, k = K, lean": (2.1, partial(storm, memory="lean")),
    "NormalizedStorm, k = K/4, fast": (1.35, partial(storm, share=0.25, memory="fast")),
    "NormalizedStorm, k = K/4, lean": (1.35, partial(storm, share=0.25, memory="lean")),
    "spectral_storm, correction 0, fast": (None, partial(spectral, memory="fast")),
    "spectral_storm, correction 0, lean": (None, partial(spectral, memory="lean")),
    "Muon + AdamW": (None, muon),
    "AdamW (fused), again": (None, adamw),
}


def measure(make: Callable[[nn.Module], Ordinary], options: Any, body: Callable[..., Any]) -> dict[str, Any]:
    device, size = options.device, TINY if options.tiny else SIZE
    model = build(size, device, tied=True, body=body)
    tokens = torch.randint(size.vocabulary, (BATCH, size.context + 1), device=device)
    batch, loss, contender = (tokens[:, :-1], tokens[:, 1:]), loss_of(model, True), make(model)
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    times = milliseconds(lambda: contender.step(loss, batch), options.repeats, 3, device)
    found = {"ms": spread(times), "parameters": parameters(model)}
    if device == "cuda":
        found["peak_bytes"] = torch.cuda.max_memory_allocated()
    return found


def main() -> None:
    parser = arguments(__doc__, "torch-step.json")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--repeats", type=int, default=8)
    options = parser.parse_args()
    body = torch.compile(block) if options.compile else block
    report = {"machine": machine(options.device), "tiny": options.tiny, "compiled": options.compile}
    report |= {"batch": BATCH, "repeats": options.repeats, "rows": []}
    for name, (wanted, make) in CONTENDERS.items():
        row = {"name": name, "wanted": wanted, **measure(make, options, body)}
        first = report["rows"][0] if report["rows"] else row
        row["over_adamw"] = row["ms"]["median"] / first["ms"]["median"]
        report["rows"].append(row)
        print(f"{name}: {row['ms']['median']:.2f} ms, {row['over_adamw']:.3f}x (wanted {wanted})", flush=True)
        write(options.out, report)
        gc.collect()
    print(f"written: {options.out}")


if __name__ == "__main__":
    main()
