"""The same pass twice: random numbers are drawn again, and statistics that a module keeps are changed once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.module import register_module_forward_pre_hook


class RandomState:
    """Torch's random numbers, on the CPU and on the devices of the given tensors, as they stood when this was made."""

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        self.cpu = torch.get_rng_state()
        devices = {tensor.device for tensor in tensors if tensor.device.type not in ("cpu", "meta")}
        self.others = {device: torch.get_device_module(device).get_rng_state(device) for device in devices}

    def restore(self) -> None:
        torch.set_rng_state(self.cpu)
        for device, state in self.others.items():
            torch.get_device_module(device).set_rng_state(state, device)


class _Still:
    """Modules whose running statistics stand still, and how to let them go again."""

    def __init__(self) -> None:
        self.held: dict[_NormBase, tuple[float | None, Tensor | None]] = {}

    def called(self, module: nn.Module, *_: Any) -> None:
        """A compiled module calls its layers without hooks, so that all of them have to be held with it."""
        for layer in module.modules() if hasattr(module, "_orig_mod") else (module,):
            self.hold(layer)

    def hold(self, module: nn.Module) -> None:
        if isinstance(module, _NormBase) and module.track_running_stats and module not in self.held:
            count = module.num_batches_tracked
            self.held[module] = module.momentum, None if count is None else count.clone()
            module.momentum = 0.0

    def release(self) -> None:
        for module, (momentum, count) in self.held.items():
            module.momentum = momentum
            if count is not None and module.num_batches_tracked is not None:
                module.num_batches_tracked.copy_(count)


@contextmanager
def frozen_statistics(module: nn.Module | None) -> Iterator[None]:
    """BatchNorm and its kin normalise by the batch as ever, but their running statistics do not move.

    With a module, its layers are held; without one, every layer that is called meanwhile. A compiled function, or a
    module compiled in place, calls its layers unseen.
    """
    still = _Still()
    hook = None
    if module is None:
        hook = register_module_forward_pre_hook(still.called)
    else:
        for layer in module.modules():
            still.hold(layer)
    try:
        yield
    finally:
        if hook is not None:
            hook.remove()
        still.release()
