"""Normalized STORM: parameters and a proven bound from what is known of a problem, and runs that keep it."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .theory import AnytimePlan as AnytimePlan
from .theory import Constants as Constants
from .theory import Plan as Plan
from .theory import plan as plan

if TYPE_CHECKING:
    from .solve import Result as Result
    from .solve import minimize as minimize
    from .solve.certify import certify as certify

__version__ = "0.1.0"
_LATER = {"minimize": "solve", "Result": "solve", "certify": "solve"}  # they need JAX


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_LATER[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATER})
