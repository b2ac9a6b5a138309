"""What public functions refuse, for every room: one set of checks, one sentence.

    who: name must be ...; got name=...

Scalars and 0-d arrays of NumPy and JAX are numbers like Python's; booleans, text and arrays of more are none. What is
checked comes back as Python's int, float, bool or str, so that nothing depends on how a number was given.

`number` and `whole` want a number that is known. `positive`, `nonnegative`, `weight` and `fraction` also let a JAX
tracer through, as it is: it has no value yet that could be out of range. Integers are part of the program and so never
tracers. JAX is not imported here: theory is arithmetic and uses this file.
"""

from __future__ import annotations

import contextlib
import math
import operator
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, NoReturn, SupportsFloat

import numpy as np

LEAST_CONFIDENCE = 1e-16  # below it 1 - confidence is 1 in double precision
NUMERIC = ("i", "u", "f")
ROUND = 10**12  # powers of ten from here on are written as 1e+12


class Range(NamedTuple):
    """Numbers that are allowed: in words, and as a test that nan fails."""

    words: str
    holds: Callable[[float], bool]


FINITE = Range("a finite number", math.isfinite)
POSITIVE = Range("a finite number > 0", lambda n: 0 < n < math.inf)
NONNEGATIVE = Range("a finite number >= 0", lambda n: 0 <= n < math.inf)
CLOSED_UNIT = Range("a number in [0, 1]", lambda n: 0 <= n <= 1)
OPEN_UNIT = Range("a number in (0, 1)", lambda n: 0 < n < 1)
ABOVE_ZERO = Range("a number in (0, 1]", lambda n: 0 < n <= 1)
UP_TO_HALF = Range("a number in (0, 1/2]", lambda n: 0 < n <= 0.5)
BELOW_ONE = Range("a number in [0, 1)", lambda n: 0 <= n < 1)


def refuse(who: str, name: str, allowed: str, value: object, more: str = "") -> NoReturn:
    """The one sentence; `more` is what else was given."""
    raise ValueError(f"{who}: {name} must be {allowed}; got {name}={value!r}{more}")


def real(value: object) -> float:
    """A number as a float; nan for booleans, text, arrays, tracers, None and what floating point cannot hold."""
    # Most are floats: to ask first whether a type supports float() would take as long as all the rest.
    if isinstance(value, float) or (isinstance(value, SupportsFloat) and _may_be_number(value)):
        with contextlib.suppress(TypeError, ValueError, OverflowError, ArithmeticError):
            return float(value)
    return math.nan


def integer(value: object) -> int | None:
    """An integer as an int; None for anything else, booleans and floats included."""
    if not _may_be_number(value):
        return None
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        return None


def truth(value: object) -> bool | None:
    """A boolean as a bool, also NumPy's and JAX's; None for anything else."""
    if isinstance(value, bool | np.bool_):
        return bool(value)
    if _kind(value) == "b" and _axes(value) == 0:
        with contextlib.suppress(TypeError):
            return bool(value)
    return None


def traced(value: object) -> bool:
    """Whether this is one number that has no value yet: an array without axes that cannot be made a float."""
    if _kind(value) not in NUMERIC or _axes(value) != 0 or not isinstance(value, SupportsFloat):
        return False
    try:
        float(value)
    except TypeError:
        return True
    return False


def number(who: str, name: str, value: Any, allowed: Range = FINITE) -> float:
    """A number in this range."""
    found = real(value)
    return found if allowed.holds(found) else refuse(who, name, allowed.words, value)


def parameter(who: str, name: str, value: Any, allowed: Range = FINITE) -> float:
    """A number in this range, or a tracer."""
    if traced(value):
        unknown: float = value
        return unknown
    return number(who, name, value, allowed)


def positive(who: str, name: str, value: Any) -> float:
    """A finite number > 0, or a tracer."""
    return parameter(who, name, value, POSITIVE)


def nonnegative(who: str, name: str, value: Any) -> float:
    """A finite number >= 0, or a tracer."""
    return parameter(who, name, value, NONNEGATIVE)


def fraction(who: str, name: str, value: Any, below_one: bool = False) -> float:
    """A number in [0, 1], or in [0, 1), or a tracer."""
    return parameter(who, name, value, BELOW_ONE if below_one else CLOSED_UNIT)


def weight(who: str, value: Any, name: str = "alpha") -> float:
    """A number in (0, 1], or a tracer."""
    return parameter(who, name, value, ABOVE_ZERO)


def confidence(who: str, value: object, otherwise: str = "") -> float:
    """A probability below 1 that double precision can tell from 0; `otherwise` says what else is allowed."""
    level = number(who, "confidence", value, OPEN_UNIT._replace(words=OPEN_UNIT.words + otherwise))
    if level < LEAST_CONFIDENCE:
        refuse(who, "confidence", f"at least {LEAST_CONFIDENCE}", value)
    return level


def whole(who: str, name: str, value: Any, least: int = 1, most: int | None = None, limit: str | None = None) -> int:
    """An integer >= least, or in [least, most]; `limit` is the name of the parameter that `most` is the value of."""
    found = integer(value)
    if found is not None and least <= found and (most is None or found <= most):
        return found
    if most is None:
        refuse(who, name, f"an integer >= {least}", value)
    end = limit or (f"{most:.0e}" if most >= ROUND and str(most).strip("0") == "1" else str(most))
    refuse(who, name, f"an integer in [{least}, {end}]", value, f", {limit}={most}" if limit else "")


def seed_list(who: str, value: Any, most: int) -> list[int]:
    """Different integers in [0, 2^64), or n <= most for 0..n-1."""
    if integer(value) is not None or not isinstance(value, Iterable):
        return list(range(whole(who, "seeds", value, 1, most)))
    found = [whole(who, "seeds", seed, 0, 2**64 - 1) for seed in value]
    if not found or len(set(found)) < len(found):
        raise ValueError(f"{who}: seeds must be different integers, at least one; got {len(found)} of them")
    return found


def batch(who: str, name: str, value: Any, at_most: int | None = None) -> int:
    """A number of samples: an integer >= 1, or in [1, K]."""
    return whole(who, name, value, 1, at_most, None if at_most is None else "K")


def one_of(who: str, name: str, value: Any, allowed: tuple[str, ...]) -> str:
    """One of a few words."""
    if isinstance(value, str) and value in allowed:
        return str(value)
    refuse(who, name, f"one of {', '.join(allowed)}", value)


def flag(who: str, name: str, value: Any) -> bool:
    """True or False."""
    found = truth(value)
    return refuse(who, name, "True or False", value) if found is None else found


def has_methods(who: str, name: str, value: Any, methods: tuple[str, ...]) -> None:
    """An object, no class, with these methods."""
    if isinstance(value, type) or not all(callable(getattr(value, method, None)) for method in methods):
        kind = f"the class {value.__name__}" if isinstance(value, type) else f"an object of type {type(value).__name__}"
        raise ValueError(f"{who}: {name} must be an object with the methods {', '.join(methods)}; got {kind}")


def finite_array(value: Any) -> np.ndarray | None:
    """Numbers as an array of floats; None unless every entry is a finite number."""
    try:
        array = np.asarray(value)
        if array.dtype.kind == "O":
            array = np.vectorize(real, otypes=[float])(array)
    except (TypeError, ValueError):
        return None
    if array.dtype.kind not in "iuf" or not np.all(np.isfinite(array)):
        return None
    return array.astype(float)


def _may_be_number(value: object) -> bool:
    """Neither a boolean nor text nor an array with axes; what has a type of its own says so in `dtype`."""
    if isinstance(value, bool | str | bytes):
        return False
    return _kind(value) in (None, *NUMERIC) and _axes(value) == 0


def _axes(value: object) -> int:
    axes: int = getattr(value, "ndim", 0)
    return axes


def _kind(value: object) -> str | None:
    """NumPy's letter for the type of an array or scalar, whatever library it is of; None for what is neither."""
    dtype = getattr(value, "dtype", None)
    if dtype is None or isinstance(value, type):
        return None
    name = str(dtype).removeprefix("torch.")
    known = {"bool": "b", "uint": "u", "int": "i", "float": "f", "bfloat": "f"}  # NumPy calls bfloat16 void
    return next((kind for start, kind in known.items() if name.startswith(start)), getattr(dtype, "kind", "V"))
