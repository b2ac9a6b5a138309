"""What counts as a number: one answer for every public function of this room."""

from __future__ import annotations

import contextlib
import math
import operator
from typing import Any, SupportsFloat

import numpy as np

LEAST_CONFIDENCE = 1e-16  # below it 1 - confidence is 1 in double precision


def real(value: object) -> float:
    """A number as a float; nan for booleans, strings, arrays, None and what floating point cannot hold."""
    if isinstance(value, SupportsFloat) and not isinstance(value, bool | np.bool_) and np.ndim(value) == 0:  # type: ignore[arg-type]
        with contextlib.suppress(TypeError, ValueError, OverflowError, ArithmeticError):
            return float(value)
    return math.nan


def confidence(who: str, value: object, otherwise: str = "") -> float:
    """A probability below 1 that double precision can tell from 0; `otherwise` says what else is allowed."""
    level = real(value)
    if not 0 < level < 1:
        raise ValueError(f"{who}: confidence must be a number in (0, 1){otherwise}; got confidence={value!r}")
    if level < LEAST_CONFIDENCE:
        raise ValueError(f"{who}: confidence must be at least {LEAST_CONFIDENCE}; got confidence={value!r}")
    return level


def whole(value: object) -> int | None:
    """An integer as an int; None for anything else, booleans and floats included."""
    if isinstance(value, bool | np.bool_):
        return None
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        return None


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
