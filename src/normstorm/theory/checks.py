"""What counts as a number: one answer for every public function of this room."""

from __future__ import annotations

import contextlib
import math
import operator
from typing import Any, SupportsFloat

import numpy as np


def real(value: object) -> float:
    """A number as a float; nan for booleans, strings, arrays, None and what floating point cannot hold."""
    if isinstance(value, SupportsFloat) and not isinstance(value, bool | np.bool_) and np.ndim(value) == 0:  # type: ignore[arg-type]
        with contextlib.suppress(TypeError, ValueError, OverflowError, ArithmeticError):
            return float(value)
    return math.nan


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
