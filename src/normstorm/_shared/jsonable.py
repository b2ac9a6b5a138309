"""Anything that this project reports, as values that JSON has."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping, Set
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any


def jsonable(value: Any, digits: int | None = None) -> Any:
    """Dictionaries, lists, text, numbers, True, False and None alone.

    A number that is not finite is None, since JSON has none; floats are rounded to so many `digits` if any are given.
    Scalars and arrays of NumPy, JAX and PyTorch are numbers and lists of them, a dataclass is the dictionary of its
    fields, or what its own `to_dict` says. Anything else is refused: a report that holds it would not be readable.
    """

    def inside(part: Any) -> Any:
        return jsonable(part, digits)

    if isinstance(value, Enum):
        return inside(value.value)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return _number(float(value), digits)
    if isinstance(value, Mapping):
        return {_key(key): inside(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [inside(part) for part in value]
    if isinstance(value, Set):
        return sorted(map(inside, value))
    if is_dataclass(value) and not isinstance(value, type):
        own = getattr(value, "to_dict", None)
        return inside(own() if own else {field.name: getattr(value, field.name) for field in fields(value)})
    if isinstance(value, os.PathLike):
        return os.fsdecode(value)
    if callable(getattr(value, "tolist", None)) and getattr(value, "dtype", None) is not None:
        return _array(value, inside)
    raise ValueError(f"jsonable: value must be a number, text, or made of them; got one of type {type(value).__name__}")


def _number(value: float, digits: int | None) -> float | None:
    if not math.isfinite(value):
        return None
    return value if digits is None else float(f"{value:.{digits}g}")


def _array(value: Any, inside: Callable[[Any], Any]) -> Any:
    listed = value.tolist()
    # NumPy hands back itself where Python has no counterpart, as of np.longdouble.
    return inside(float(listed) if type(listed) is type(value) else listed)


def _key(key: Any) -> str:
    """JSON's names are text; a number becomes the text that it is written as."""
    plain = jsonable(key)
    return plain if isinstance(plain, str) else json.dumps(plain)
