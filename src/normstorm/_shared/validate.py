"""What constructors of algorithms and `run` refuse, each in one sentence."""

from __future__ import annotations

import math
from typing import Any

import numpy as np


def batch(who: str, name: str, value: Any, at_most: int | None = None) -> int:
    """An integer >= 1."""
    integer = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    if not integer or value < 1 or (at_most is not None and value > at_most):
        allowed = ">= 1" if at_most is None else "in [1, K]"
        given = f"{name}={value!r}" + ("" if at_most is None else f", K={at_most}")
        raise ValueError(f"{who}: {name} must be an integer {allowed}; got {given}")
    return int(value)


def positive(who: str, name: str, value: Any) -> float:
    """A finite number > 0."""
    number = _real(value)
    if number is None or not 0 < number < math.inf:
        raise ValueError(f"{who}: {name} must be a finite number > 0; got {name}={value!r}")
    return number


def nonnegative(who: str, name: str, value: Any) -> float:
    """A finite number >= 0."""
    number = _real(value)
    if number is None or not 0 <= number < math.inf:
        raise ValueError(f"{who}: {name} must be a finite number >= 0; got {name}={value!r}")
    return number


def fraction(who: str, name: str, value: Any, below_one: bool = False) -> float:
    """A number in [0, 1], or in [0, 1)."""
    number = _real(value)
    if number is None or not 0 <= number <= 1 or (below_one and number == 1):
        raise ValueError(f"{who}: {name} must be a number in [0, 1{')' if below_one else ']'}; got {name}={value!r}")
    return number


def one_of(who: str, name: str, value: Any, allowed: tuple[str, ...]) -> str:
    """One of a few words."""
    if value not in allowed:
        raise ValueError(f"{who}: {name} must be one of {', '.join(allowed)}; got {name}={value!r}")
    return str(value)


def flag(who: str, name: str, value: Any) -> bool:
    """True or False."""
    if not isinstance(value, (bool, np.bool_)):
        raise ValueError(f"{who}: {name} must be True or False; got {name}={value!r}")
    return bool(value)


def has_methods(who: str, name: str, value: Any, methods: tuple[str, ...]) -> None:
    """An object, no class, with these methods."""
    if isinstance(value, type) or not all(callable(getattr(value, method, None)) for method in methods):
        kind = f"the class {value.__name__}" if isinstance(value, type) else f"an object of type {type(value).__name__}"
        raise ValueError(f"{who}: {name} must be an object with the methods {', '.join(methods)}; got {kind}")


def weight(who: str, alpha: Any) -> float:
    """A number in (0, 1]."""
    number = _real(alpha)
    if number is None or not 0 < number <= 1:
        raise ValueError(f"{who}: alpha must be a number in (0, 1]; got alpha={alpha!r}")
    return number


def _real(value: Any) -> float | None:
    real = isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)
    return float(value) if real else None
