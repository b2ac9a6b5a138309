"""Normalized STORM: parameters and a proven bound from what is known of a problem, and runs that keep it."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from normstorm.theory import Constants as Constants
from normstorm.theory import Plan as Plan
from normstorm.theory import plan as plan

if TYPE_CHECKING:
    from normstorm.point_certificate import certify as certify
    from normstorm.solve import Result as Result
    from normstorm.solve import minimize as minimize

__version__ = "0.1.0"
_LATER = {"minimize": "solve", "Result": "solve", "certify": "point_certificate"}  # they need JAX


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_LATER[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATER})
