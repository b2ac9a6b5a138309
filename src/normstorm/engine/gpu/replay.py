"""Trace a function once, then carry out its operations by other rules."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

# Operations that only hold other operations, and where.
CALLS = {"jit": "jaxpr", "pjit": "jaxpr", "closed_call": "call_jaxpr", "core_call": "call_jaxpr", "checkpoint": "jaxpr"}
CALLS |= {"remat2": "jaxpr", "custom_jvp_call": "call_jaxpr", "custom_vjp_call": "call_jaxpr"}

# One number of the result from one number of every operand.
_NAMES = """
abs acos acosh add add_any and asin asinh atan atan2 atanh bitcast_convert_type cbrt ceil clamp convert_element_type
copy copy_p cos cosh digamma div eq erf erf_inv erfc exp exp2 expm1 floor ge gt integer_pow is_finite le lgamma log
log1p logistic lt max min mul ne neg nextafter not or pow rem round rsqrt select_n shift_left shift_right_arithmetic
shift_right_logical sign sin sinh sqrt square stop_gradient sub tan tanh xor
"""
_POINTWISE = frozenset(_NAMES.split())


def pointwise(equation: Any) -> bool:
    """Whether every number of the result comes from one number of every operand."""
    same = (
        equation.primitive.name != "bitcast_convert_type"
        or equation.invars[0].aval.shape == equation.outvars[0].aval.shape
    )
    return same and equation.primitive.name in _POINTWISE


def replay(
    jaxpr: Any, constants: Iterable[Any], arguments: Iterable[Any], rule: Callable[[Any, list[Any]], Any]
) -> Any:
    """The results of a traced function; `rule(equation, values)` gives those of one operation, as a list."""
    known: dict[Any, Any] = dict(zip(jaxpr.constvars, constants, strict=True))
    known.update(zip(jaxpr.invars, arguments, strict=True))

    def value(atom: Any) -> Any:
        return np.asarray(atom.val, atom.aval.dtype) if hasattr(atom, "val") else known[atom]

    for equation in jaxpr.eqns:
        values = [value(atom) for atom in equation.invars]
        name = equation.primitive.name
        if name in CALLS:
            inner = equation.params[CALLS[name]]
            results = replay(getattr(inner, "jaxpr", inner), getattr(inner, "consts", ()), values, rule)
        else:
            results = rule(equation, values)
        known.update(zip(equation.outvars, results, strict=True))
    return [value(atom) for atom in jaxpr.outvars]


def bind(equation: Any, values: Iterable[Any]) -> list[Any]:
    """The operation as it stands."""
    results = equation.primitive.bind(*values, **equation.params)
    return list(results) if equation.primitive.multiple_results else [results]
