"""One process of test_distributed.py: runs its share, compares with copies in one process, writes what it found.

- `checks FOLDER`: every check; then the first half of two runs, and their state; then a run that saves every step and
  in which one process dies. The second attempt takes up that run alone.
- `resume FOLDER`: checks of geometries; then the second half of the two runs
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from collections.abc import Callable
from contextlib import nullcontext
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from pairwise import every, pairwise
from reference import Reference
from small import ENTRANCES, batches, grouped, loss_of, network, pure_loss, with_tensors
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from normstorm.torch import NormalizedStorm, directions, hooks

SIZE, STEPS, LR = 6, 6, 0.05
Batch = tuple[Tensor, ...]


def wrapped(kind: str, model: nn.Module) -> nn.Module:
    if kind == "ddp":
        return DistributedDataParallel(model)
    if kind == "ddp views":
        return DistributedDataParallel(model, gradient_as_bucket_view=True)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in (model[0], model[3], model[5]):
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def begin(kind: str, geometry: str = "euclidean", **options: Any) -> tuple[nn.Module, NormalizedStorm]:
    model = wrapped(kind, network())
    groups = with_tensors(model, grouped(model, geometry))
    return model, NormalizedStorm(groups, LR, spectral_dtype=torch.float64, **options)


def slow_path(geometry: str = "euclidean", **options: Any) -> Reference:
    model = network()
    return Reference(list(model.parameters()), pure_loss(model), grouped(model, geometry, lr=LR, **options))


def local(batch: Batch) -> Batch:
    return tuple(part.chunk(dist.get_world_size())[dist.get_rank()] for part in batch)


def whole(p: Tensor) -> Tensor:
    return (p.full_tensor() if isinstance(p, DTensor) else p).detach()


def apart(model: nn.Module, slow: Reference) -> float:
    """On the process where it is largest."""
    far = torch.stack([(whole(p) - x).abs().max() for p, x in zip(model.parameters(), slow.x, strict=True)]).max()
    dist.all_reduce(far, dist.ReduceOp.MAX)
    return float(far)


def follow(kind: str, geometry: str, entrance: str = "closure", k: int | None = None, **options: Any) -> float:
    """k samples of every process at both points; the reference sees all heads first, then all tails."""
    memory = {"memory": options.pop("memory", "fast")}
    model, opt = begin(kind, geometry, **memory, **options)
    slow, worst = slow_path(geometry, **options), 0.0
    world, mine = dist.get_world_size(), SIZE // dist.get_world_size()
    k = mine if k is None else k
    for batch in batches(STEPS, SIZE):
        ENTRANCES[entrance](opt, loss_of(model), local(batch), k)
        parts = [part.reshape(world, mine, *part.shape[1:]) for part in batch]
        ordered = [torch.cat([p[:, :k].flatten(0, 1), p[:, k:].flatten(0, 1)]) for p in parts]
        slow.step(*ordered, k=k * world)
        worst = max(worst, apart(model, slow))
    return worst


def accumulated(kind: str, memory: str) -> float:
    """Two micro-batches a pass, and only the second one is exchanged."""
    model, opt = begin(kind, memory=memory)
    slow, loss, worst = slow_path(), loss_of(model), 0.0

    def backward(batch: Batch) -> None:
        cut = len(batch[0]) // 2 or 1
        halves = [tuple(p[:cut] for p in batch), tuple(p[cut:] for p in batch)]
        for i, half in enumerate(halves):
            if kind == "fsdp":
                model.set_requires_gradient_sync(i == 1)
            with model.no_sync() if kind != "fsdp" and i == 0 else nullcontext():
                (loss(*half) * len(half[0]) / len(batch[0])).backward()

    for batch in batches(STEPS, SIZE):
        with opt.old_point(backwards=2):
            backward(local(batch))
        with opt.new_point(backwards=2):
            backward(local(batch))
        opt.step()
        slow.step(*batch)
        worst = max(worst, apart(model, slow))
    return worst


def overflow(kind: str, memory: str, which: int) -> float:
    """One process alone has an infinity, in pass `which` of a step; all of them leave that step out."""
    model, opt = begin(kind, memory=memory)
    slow, worst, calls = slow_path(), 0.0, 0

    def loss(x: Tensor, y: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        spoiled = calls == bad and dist.get_rank() == dist.get_world_size() - 1
        return loss_of(model)(x, y) * (torch.inf if spoiled else 1)

    for t, batch in enumerate(batches(STEPS, SIZE)):
        calls, bad = 0, which if t == 3 else 0
        ENTRANCES["scaler"](opt, loss, local(batch), SIZE // dist.get_world_size())
        if t != 3:
            slow.step(*batch)
        worst = max(worst, apart(model, slow))
    return worst


OPTIONS = {
    "kind": ("ddp", "fsdp"),
    "geometry": ("euclidean", "sign", "spectral", "row", "column"),
    "memory": ("fast", "lean"),
}


def of_geometries(cases: list[dict[str, Any]]) -> dict[str, Callable[[], float]]:
    return {", ".join(case.values()): partial(follow, **case) for case in cases}


CHECKS = of_geometries(every(OPTIONS))
for kind in ("ddp", "fsdp"):
    for memory in ("fast", "lean"):
        CHECKS |= {
            f"{kind}, {memory}, k < K": lambda k=kind, m=memory: follow(k, "euclidean", "batch", 1, memory=m),
            f"{kind}, {memory}, phases": lambda k=kind, m=memory: follow(k, "euclidean", "phases", 1, memory=m),
            f"{kind}, {memory}, scaler": lambda k=kind, m=memory: follow(k, "euclidean", "scaler", memory=m),
            f"{kind}, {memory}, one point, ahead": lambda k=kind, m=memory: follow(
                k, "spectral", memory=m, correction=0.0, nesterov=True, weight_decay=0.1
            ),
            f"{kind}, {memory}, ahead": lambda k=kind, m=memory: follow(k, "euclidean", memory=m, nesterov=True),
            f"{kind}, {memory}, accumulation": lambda k=kind, m=memory: accumulated(k, m),
            f"{kind}, {memory}, overflow at the old point": lambda k=kind, m=memory: overflow(k, m, 1),
            f"{kind}, {memory}, overflow at the new point": lambda k=kind, m=memory: overflow(k, m, 2),
        }
CHECKS["fsdp, tensor"] = lambda: follow("fsdp", "tensor")
CHECKS["fsdp, rms"] = lambda: follow("fsdp", "rms")
CHECKS["fsdp, adam"] = lambda: follow("fsdp", "adam", correction=0.0, nesterov=True)
CHECKS["fsdp, neurons"] = lambda: follow("fsdp", "spectral", memory="lean", neurons=True)
CHECKS["ddp, views"] = lambda: follow("ddp views", "euclidean")
CHECKS["ddp, views, lean"] = lambda: follow("ddp views", "euclidean", memory="lean")


def save(model: nn.Module, opt: NormalizedStorm, folder: Path) -> None:
    weights, state = get_state_dict(model, opt)
    dcp.save({"model": weights, "optimizer": state}, checkpoint_id=folder)


def load(model: nn.Module, opt: NormalizedStorm, folder: Path) -> None:
    weights, state = get_state_dict(model, opt)
    stored = {"model": weights, "optimizer": state}
    dcp.load(stored, checkpoint_id=folder)
    set_state_dict(model, opt, model_state_dict=stored["model"], optim_state_dict=stored["optimizer"])


def halves(folder: Path, resumed: bool) -> dict[str, float]:
    """Some steps and a checkpoint, or more from it: with another number of processes and the other memory."""
    found = {}
    for kind in ("fsdp", "ddp"):
        model, opt = begin(kind, memory="lean" if resumed else "fast", nesterov=True)
        slow = slow_path(nesterov=True)
        if resumed:
            load(model, opt, folder / f"state-{kind}")
        for t, batch in enumerate(batches(STEPS, SIZE)):
            slow.step(*batch)
            if (t >= STEPS // 2) == resumed:
                ENTRANCES["closure"](opt, loss_of(model), local(batch), SIZE // dist.get_world_size())
        if resumed:
            found[f"{kind}, resumed"] = apart(model, slow)
        else:
            save(model, opt, folder / f"state-{kind}")
    return found


def survive(folder: Path) -> dict[str, Any]:
    model, opt = begin("fsdp")
    folder = folder / "survive"
    attempt = attempt_of()
    done = max((int(f.parent.name) for f in folder.glob("*/.metadata")), default=0)
    if done:
        load(model, opt, folder / str(done))
    slow = slow_path()
    for t, batch in enumerate(batches(STEPS, SIZE), 1):
        slow.step(*batch)
        if t <= done:
            continue
        if attempt == 0 and t == 4 and dist.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        ENTRANCES["closure"](opt, loss_of(model), local(batch), SIZE // dist.get_world_size())
        save(model, opt, folder / str(t))
    return {"attempt": attempt, "resumed from": done, "apart": apart(model, slow)}


def attempt_of() -> int:
    return int(os.environ["TORCHELASTIC_RESTART_COUNT"])


def checked(checks: dict[str, Callable[[], float]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, check in checks.items():
        try:
            found[name] = check()
        except Exception:
            found[name] = traceback.format_exc(limit=-4)
    return found


def write(found: dict[str, Any], file: Path) -> None:
    if dist.get_rank() == 0:
        file.write_text(json.dumps(found), encoding="utf-8")


def join() -> None:
    """A place in the store for every attempt: the agent keeps it, with the addresses of processes that have died."""
    place, world, wait = os.environ, int(os.environ["WORLD_SIZE"]), timedelta(seconds=60)
    store = dist.TCPStore(place["MASTER_ADDR"], int(place["MASTER_PORT"]), world, is_master=False, timeout=wait)
    store = dist.PrefixStore(f"attempt {place['TORCHELASTIC_RESTART_COUNT']}", store)
    dist.init_process_group("gloo", store=store, rank=int(place["RANK"]), world_size=world, timeout=wait)


def main(job: str, folder: Path) -> None:
    torch.set_num_threads(1)
    hooks.FEW, directions.TOGETHER = 1, 30  # as in conftest.py
    join()
    if job == "resume":
        write(checked(of_geometries(pairwise(OPTIONS))) | halves(folder, resumed=True), folder / "resume.json")
    else:
        if attempt_of() == 0:
            write(checked(CHECKS) | halves(folder, resumed=False), folder / "before.json")
        write(survive(folder), folder / "checks.json")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
