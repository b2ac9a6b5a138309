"""Normalized STORM: parameters and a proven bound from what is known of a problem, and runs that keep it."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .solve import Result as Result
    from .solve import minimize as minimize
    from .solve.certify import certify as certify
    from .theory import AnytimePlan as AnytimePlan
    from .theory import Constants as Constants
    from .theory import Plan as Plan
    from .theory import plan as plan

import_module("._shared.xla_flags", __name__)  # which must come before JAX starts

__version__ = "0.1.0"
# A name is imported when it is asked for: the command answers Ctrl-C before NumPy is there, and theory needs no JAX.
_ROOMS = {"theory": ("AnytimePlan", "Constants", "Plan", "plan"), "solve": ("Result", "certify", "minimize")}
_ROOM = {name: room for room, names in _ROOMS.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _ROOM:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_ROOM[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_ROOM})
