"""Time of one update of 10^9 parameters on a GPU, against the time that moving the words must take.

    python -m benchmarks.torch.update [--repeats 15] [--out benchmarks/results/torch-update.json]

Weights of a GPT-like model and random gradients in float32; no forward or backward pass. The floor is the words that an
update must move (read g and m, write m, then read m and x, write x: 6; with two points 8) at the speed of a large copy
measured in the same run. Events on the device, medians. Before any timing the fused update is compared with the
recursion written out in float64.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.torch.parts import Size, arguments, build, hidden, machine, milliseconds, parameters, spread, write
from normstorm.torch import NormalizedStorm, spectral_storm

SIZE, TINY = Size(18, 2048, 16, 50_304, 1024), Size(2, 64, 2, 256, 64)
BETA, LR = 0.9, 1e-3


def copy_speed(device: str, words: int) -> float:
    """Bytes a second, read and written, of one large copy."""
    a, b = torch.randn(words, device=device), torch.empty(words, device=device)
    times = milliseconds(lambda: b.copy_(a), 20, 5, device)
    return 8 * words / (spread(times)["median"] * 1e-3)


def given(model: nn.Module, fill: float = 1.0) -> list[Tensor]:
    return [torch.randn_like(p) * fill for p in model.parameters()]


def hand(model: nn.Module, gradients: list[Tensor]) -> None:
    for p, g in zip(model.parameters(), gradients, strict=True):
        p.grad = g


def one_point(optimizers: list[Any], model: nn.Module) -> Callable[[], None]:
    hand(model, given(model))

    def work() -> None:
        for optimizer in optimizers:
            optimizer.step()

    return work


def two_points(optimizer: Any, model: nn.Module) -> Callable[[], None]:
    old, new = given(model), given(model)

    def work() -> None:
        with optimizer.old_point():
            hand(model, old)
        with optimizer.new_point():
            hand(model, new)
        optimizer.step()

    return work


def contenders(fused: bool) -> dict[str, tuple[int | None, Callable[[nn.Module], Callable[[], None]]]]:
    """Name: words that the update must move, and what makes the work from a model."""

    def ours(**options: Any) -> Callable[[nn.Module], Callable[[], None]]:
        return lambda m: one_point([NormalizedStorm(m.parameters(), LR, BETA, correction=0.0, **options)], m)

    def muon(model: nn.Module) -> Callable[[], None]:
        inner, rest = hidden(model)
        return one_point([torch.optim.Muon(inner, LR), torch.optim.AdamW(rest, LR, fused=fused)], model)

    def adamw(model: nn.Module) -> Callable[[], None]:
        return one_point([torch.optim.AdamW(model.parameters(), LR, fused=fused)], model)

    def sgd(model: nn.Module) -> Callable[[], None]:
        return one_point([torch.optim.SGD(model.parameters(), LR, momentum=BETA, foreach=True)], model)

    return {
        "NormalizedStorm, correction 0": (6, ours()),
        "NormalizedStorm, correction 0, without the kernel": (6, ours(fused=False)),
        "NormalizedStorm, correction 1": (8, lambda m: two_points(NormalizedStorm(m.parameters(), LR, BETA), m)),
        "AdamW (fused)": (7, adamw),
        "SGD with momentum (foreach)": (5, sgd),
        "spectral_storm, correction 0": (None, lambda m: one_point([spectral_storm(m, LR)], m)),
        "Muon + AdamW": (None, muon),
    }


def exactness(device: str, steps: int = 6) -> dict[str, float]:
    """Largest relative difference of weights after a few updates from the recursion in float64."""
    return {str(c): _difference(device, c, steps) for c in (0.0, 1.0)}


def _difference(device: str, correction: float, steps: int) -> float:
    model = build(Size(2, 256, 4, 512, 64), device)
    optimizer = NormalizedStorm(model.parameters(), 0.5, BETA, correction=correction)
    x = [p.detach().double() for p in model.parameters()]
    m: list[Tensor] | None = None
    for _ in range(steps):
        g, old = given(model), given(model)
        if correction and m is not None:
            x = _moved(x, m)
        if m is None:
            m = [a.double() for a in g]
        else:
            m = [
                BETA * a + (1 - BETA) * b.double() + correction * BETA * (b.double() - o.double())
                for a, b, o in zip(m, g, old, strict=True)
            ]
        if not correction:
            x = _moved(x, m)
            hand(model, g)
            optimizer.step()
            continue
        with optimizer.old_point():
            hand(model, old)
        with optimizer.new_point():
            hand(model, g)
        optimizer.step()
    errors = [float((p.detach().double() - a).norm() / a.norm()) for p, a in zip(model.parameters(), x, strict=True)]
    return max(errors)


def _moved(x: list[Tensor], m: list[Tensor]) -> list[Tensor]:
    size = torch.sqrt(sum((a * a).sum() for a in m))
    return [a - 0.5 * b / size for a, b in zip(x, m, strict=True)]


def main() -> None:
    parser = arguments(__doc__, "torch-update.json")
    parser.add_argument("--repeats", type=int, default=15)
    options = parser.parse_args()
    device, size = options.device, TINY if options.tiny else SIZE
    errors = exactness(device)
    print("difference from float64:", errors, flush=True)
    if not max(errors.values()) < 1e-5:
        raise SystemExit("update: the update is not the recursion")
    speed = copy_speed(device, 1_000_000 if options.tiny else 1_000_000_000)
    rows, report = [], {"machine": machine(device), "tiny": options.tiny, "copy_bytes_per_second": speed}
    for name, (words, make) in contenders(device == "cuda").items():
        model = build(size, device, tied=True)
        count, work = parameters(model), make(model)
        found = spread(milliseconds(work, options.repeats, 4, device))
        floor = None if words is None else 4 * words * count / speed * 1e3
        rows.append({"name": name, "words": words, "floor_ms": floor, "ms": found})
        rows[-1]["over_floor"] = None if floor is None else found["median"] / floor
        over = "" if floor is None else f", floor {floor:.3g}: {found['median'] / floor:.3f}x"
        print(f"{name}: {found['median']:.3f} ms{over}", flush=True)
        report |= {"parameters": count, "repeats": options.repeats, "difference_from_float64": errors, "rows": rows}
        write(options.out, report)
        del model, work
        gc.collect()
    print(f"copy {speed / 1e12:.3f} TB/s; written: {options.out}")


if __name__ == "__main__":
    main()
