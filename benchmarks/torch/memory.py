"""Bytes per parameter that training takes on a GPU, and the largest model that fits.

    python -m benchmarks.torch.memory [--cap 24] [--out benchmarks/results/torch-memory.json]

A GPT with activation checkpointing and one short sequence a step, float32, without autocast and with bfloat16 autocast
(whose cache of bfloat16 weights takes 2 bytes more). Peak: the most that was allocated during three steps, over the
number of parameters; `rest` is the part that no optimizer can change: activations and one gradient, measured with a
backward pass that drops each gradient as it arrives. The largest model is found by bisection over layers, three steps
each, with the process held to `--cap` gigabytes.
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
    build,
    loss_of,
    machine,
    muon,
    parameters,
    spectral,
    storm,
    write,
)

SIZE, TINY = Size(40, 2048, 16, 1024, 128), Size(2, 64, 2, 256, 32)
STEPS = 3
CONTENDERS: dict[str, Callable[[nn.Module], Ordinary]] = {
    "NormalizedStorm, correction 1, lean": partial(storm, memory="lean"),
    "NormalizedStorm, correction 1, fast": partial(storm, memory="fast"),
    "NormalizedStorm, correction 0, lean": partial(storm, correction=0.0, memory="lean"),
    "spectral_storm, correction 0, lean": partial(spectral, memory="lean"),
    "spectral_storm, correction 0, fast": partial(spectral, memory="fast"),
    "AdamW (fused)": adamw,
    "Muon + AdamW": muon,
}
LARGEST = ("AdamW (fused)", "NormalizedStorm, correction 1, lean", "spectral_storm, correction 0, lean")
TRIAL_LIMIT = 3  # layers that "fit" in a trial without a GPU


def batch_for(size: Size, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    tokens = torch.randint(size.vocabulary, (1, size.context + 1), device=device)
    return tokens[:, :-1], tokens[:, 1:]


def train(make: Callable[[nn.Module], Ordinary], size: Size, device: str, autocast: bool) -> int:
    """Three steps; the number of parameters."""
    model = build(size, device, thrifty=True)
    contender, batch, loss = make(model), batch_for(size, device), loss_of(model, autocast)
    for _ in range(STEPS):
        value = contender.step(loss, batch)
    if not torch.isfinite(value):
        raise RuntimeError("memory: the loss is not finite")
    return parameters(model)


def clear(device: str) -> None:
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def peak(device: str) -> int:
    return torch.cuda.max_memory_allocated() if device == "cuda" else 0


def rest(size: Size, device: str, autocast: bool) -> float:
    """Bytes per parameter of activations and one gradient."""
    model = build(size, device, thrifty=True)
    for p in model.parameters():
        p.register_post_accumulate_grad_hook(lambda p: setattr(p, "grad", None))
    clear(device)
    loss_of(model, autocast)(*batch_for(size, device)).backward()
    return peak(device) / parameters(model) - 4


def bytes_per_parameter(size: Size, device: str) -> list[dict[str, Any]]:
    rows = []
    for autocast in (False, True):
        other = rest(size, device, autocast)
        for name, make in CONTENDERS.items():
            clear(device)
            count = train(make, size, device, autocast)
            rows.append({"name": name, "autocast": autocast, "parameters": count})
            rows[-1] |= {"peak_bytes_per_parameter": peak(device) / count, "rest_bytes_per_parameter": other}
            print(rows[-1], flush=True)
    return rows


def fits(make: Callable[[nn.Module], Ordinary], size: Size, device: str) -> int | None:
    """The number of parameters of a model that could be trained, or None if memory ran out."""
    clear(device)
    try:
        if device == "cpu" and size.layers > TRIAL_LIMIT:
            raise torch.OutOfMemoryError
        return train(make, size, device, autocast=False)
    except torch.OutOfMemoryError:
        return None


def largest(make: Callable[[nn.Module], Ordinary], size: Size, device: str, high: int) -> dict[str, int]:
    """Bisection: `high` layers must not fit."""
    low, count = 0, 0
    while high - low > 1:
        middle = (low + high) // 2
        found = fits(make, size._replace(layers=middle), device)
        low, high, count = (low, middle, count) if found is None else (middle, high, found)
    return {"layers": low, "parameters": count}


def main() -> None:
    parser = arguments(__doc__, "torch-memory.json")
    parser.add_argument("--cap", type=float, default=24.0, help="gigabytes for the largest model")
    options = parser.parse_args()
    device, size = options.device, TINY if options.tiny else SIZE
    report = {"machine": machine(device), "tiny": options.tiny, "steps": STEPS, "size": size._asdict()}
    report["rows"] = bytes_per_parameter(size, device)
    write(options.out, report)
    clear(device)
    if device == "cuda":
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(options.cap * 1e9 / total)
    layer = 12 * size.width**2
    high = 2 + (4 * TRIAL_LIMIT if device == "cpu" else int(options.cap * 1e9 / (8 * layer)))
    report |= {"cap_gigabytes": options.cap, "largest": {}}
    for name in LARGEST:
        found = largest(CONTENDERS[name], size, device, high)
        report["largest"][name] = found
        found["over_adamw"] = found["parameters"] / report["largest"][LARGEST[0]]["parameters"]
        print(f"largest in {options.cap:g} GB, {name}: {found}", flush=True)
        write(options.out, report)
    print(f"written: {options.out}")


if __name__ == "__main__":
    main()
