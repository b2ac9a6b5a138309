"""Parameters that are spread over processes (DTensor: FSDP2, tensor parallelism).

Whatever works coordinate by coordinate works on the shard that a process holds. A sum over a tensor is the sum over the
shards; a matrix is gathered where its direction needs all of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

if dist.is_available():
    from torch.distributed.tensor import DTensor, Replicate
else:  # a build of torch without distributed: no tensor is spread

    class DTensor(Tensor):  # type: ignore[no-redef]
        """Stands for a class of which there are no objects."""


def spread(tensor: Tensor) -> bool:
    return isinstance(tensor, DTensor)


def local(tensor: Tensor) -> Tensor:
    """The shard that this process holds: a view, which may be changed in place."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def reduced_elsewhere(tensor: Tensor) -> bool:
    """Whether its gradient may still have to be averaged over processes when its backward hook is called (DDP)."""
    return not spread(tensor) and dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def squares(tensors: Sequence[Tensor]) -> Tensor:
    """The sum of squares of every tensor, as one vector: over all shards, on the first tensor's device."""
    device = local(tensors[0]).device
    parts = [local(tensor) for tensor in tensors]
    wide = torch.float64 if any(part.dtype == torch.float64 for part in parts) else torch.float32
    norms = torch._foreach_norm(parts, 2, dtype=wide) if _alike(parts) else [_norm(part, wide) for part in parts]
    sums = torch.stack([norm.to(device) for norm in norms]).square()
    for mesh, axis, members in _collectives(tensors):
        part = sums[members]
        dist.all_reduce(part, group=mesh.get_group(axis))
        sums[members] = part
    return sums


def _norm(part: Tensor, dtype: torch.dtype) -> Tensor:
    norm: Tensor = torch.linalg.vector_norm(part, dtype=dtype)
    return norm


def _alike(parts: Sequence[Tensor]) -> bool:
    """Whether one call may take them all: an empty shard or a second device has to be looked at alone."""
    return all(part.numel() > 0 and part.device == parts[0].device for part in parts)


def _collectives(tensors: Sequence[Tensor]) -> list[tuple[DeviceMesh, int, list[int]]]:
    """(mesh, axis, which tensors are cut along it), in an order that is the same in every process."""
    found: dict[tuple[int, int], tuple[DeviceMesh, int, list[int]]] = {}
    for i, tensor in enumerate(tensors):
        if isinstance(tensor, DTensor):
            for axis, placement in enumerate(tensor.placements):
                if placement.is_shard():
                    key = (id(tensor.device_mesh), axis)
                    found.setdefault(key, (tensor.device_mesh, axis, []))[2].append(i)
    return list(found.values())


def on_whole(function: Callable[[list[Tensor]], list[Tensor]], tensors: Sequence[Tensor]) -> list[Tensor]:
    """function(the whole tensors), cut back to what this process holds."""
    wholes = [tensor.full_tensor() if isinstance(tensor, DTensor) else tensor for tensor in tensors]
    return [_cut(result, tensor) for result, tensor in zip(function(wholes), tensors, strict=True)]


def _cut(whole: Tensor, like: Tensor) -> Tensor:
    if not isinstance(like, DTensor):
        return whole
    mesh = like.device_mesh
    everywhere = DTensor.from_local(whole, mesh, [Replicate()] * mesh.ndim, run_check=False)
    return everywhere.redistribute(mesh, like.placements).to_local()
