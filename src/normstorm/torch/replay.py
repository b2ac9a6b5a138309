"""The same pass twice: random numbers are drawn again, and statistics that a module keeps are changed once."""

from __future__ import annotations

import copy
import functools
import random
import types
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.module import register_module_forward_pre_hook


class RandomState:
    """Random numbers as they stood when this was made: torch's, on the CPU and on the devices of the given tensors,
    those of `random` and of NumPy, and those of generators that a function holds."""

    def __init__(self, tensors: Iterable[Tensor], generators: Iterable[Any] = ()) -> None:
        self.cpu = torch.get_rng_state()
        devices = {tensor.device for tensor in tensors if tensor.device.type not in ("cpu", "meta")}
        self.others = {device: torch.get_device_module(device).get_rng_state(device) for device in devices}
        self.plain = random.getstate(), np.random.get_state()
        self.held = [(generator, _state(generator)) for generator in generators]

    def restore(self) -> None:
        torch.set_rng_state(self.cpu)
        for device, state in self.others.items():
            torch.get_device_module(device).set_rng_state(state, device)
        random.setstate(self.plain[0])
        np.random.set_state(self.plain[1])
        for generator, state in self.held:
            _set_state(generator, state)


def seed_all(seed: int) -> None:
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)


DEPTH = 4  # functions that call functions
GENERATORS = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)


def _state(generator: Any) -> Any:
    if isinstance(generator, torch.Generator):
        return generator.get_state()
    if isinstance(generator, random.Random):
        return generator.getstate()
    return (
        copy.deepcopy(generator.bit_generator.state)
        if isinstance(generator, np.random.Generator)
        else (generator.get_state())
    )


def _set_state(generator: Any, state: Any) -> None:
    if isinstance(generator, random.Random):
        generator.setstate(state)
    elif isinstance(generator, np.random.Generator):
        generator.bit_generator.state = state
    else:
        generator.set_state(state)


def generators_of(*roots: Any) -> list[Any]:
    """Generators that a function draws from: its own variables, globals that it names, attributes of its object and of
    modules, and so on through the functions and modules that it names."""
    found: dict[int, Any] = {}
    waiting, seen = [(root, 0) for root in roots], set()
    while waiting:
        thing, depth = waiting.pop()
        if isinstance(thing, GENERATORS):
            found[id(thing)] = thing
        elif id(thing) not in seen and depth <= DEPTH:
            seen.add(id(thing))
            waiting += [(part, depth + 1) for part in _parts(thing)]
    return list(found.values())


def _parts(thing: Any) -> list[Any]:
    if isinstance(thing, functools.partial):
        return [thing.func, *thing.args, *thing.keywords.values()]
    if isinstance(thing, types.MethodType):
        return [thing.__func__, *vars(thing.__self__).values()] if hasattr(thing.__self__, "__dict__") else []
    if isinstance(thing, nn.Module):
        return [value for module in thing.modules() for value in vars(module).values() if isinstance(value, GENERATORS)]
    if isinstance(thing, types.FunctionType):
        cells = [cell.cell_contents for cell in thing.__closure__ or () if _filled(cell)]
        named = [thing.__globals__[name] for name in thing.__code__.co_names if name in thing.__globals__]
        return [*cells, *named, *(thing.__defaults__ or ())]
    return []


def _filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False


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
