"""Hints for XLA on a CPU. They change speed, never numbers; on other machines they do nothing."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental.xla_metadata import set_xla_metadata
from jax.interpreters import partial_eval

_marks: Any = set_xla_metadata
_inside: ContextVar[bool] = ContextVar("inside a kernel", default=False)
ROUNDS = 4  # in `lengthened`
abstract: Any = jax.ShapeDtypeStruct  # which JAX leaves without types


def apart(function: Callable[..., Any], *arguments: Any) -> Any:
    """Compile `function` apart from what uses its result, which is then computed once and not wherever it is used."""
    return _marked(function, arguments, {"inlineable": "false"})


def inside_kernel() -> bool:
    """Whether what is being traced becomes part of a kernel; there, loops over rows cost nothing to start."""
    return _inside.get()


def one_kernel(function: Callable[..., Any], *arguments: Any) -> Any:
    """Compile `function` into a single kernel: loops in it are not dispatched step by step.

    Fails when the program is compiled if the function holds an operation that XLA hands to a library.
    """
    token = _inside.set(jax.default_backend() == "cpu")
    try:
        return _marked(function, arguments, {"inlineable": "false", "xla_cpu_small_call": "true"})
    finally:
        _inside.reset(token)


def lengthened(array: jax.Array, zero: Any) -> jax.Array:
    """The array itself, by a few integer operations with a zero that the compiler does not know.

    LLVM writes a short loop with few operations out, number by number, before it looks for something to vectorise.
    """
    if jax.default_backend() != "cpu" or not jnp.issubdtype(array.dtype, jnp.floating):
        return array
    word = f"int{8 * array.dtype.itemsize}"
    nothing = jnp.asarray(zero, word)
    idle = jax.lax.broadcasted_iota(word, array.shape, array.ndim - 1)  # nothing waits for it
    for _ in range(ROUNDS):
        idle = (idle ^ nothing) + nothing
    return _flipped(array, idle & nothing)


def after(known: jax.Array, array: jax.Array, zero: Any) -> jax.Array:
    """The array itself, by a zero that the compiler does not know, and not before the number `known` is there."""
    if jax.default_backend() != "cpu" or known.dtype != array.dtype:
        return array
    word = f"int{8 * array.dtype.itemsize}"
    nothing = jax.lax.bitcast_convert_type(known, word) & jnp.asarray(zero, word)
    return _flipped(array, nothing)


def _flipped(array: jax.Array, bits: jax.Array) -> jax.Array:
    """The array with these bits of its numbers changed."""
    changed: jax.Array = jax.lax.bitcast_convert_type(array, bits.dtype) ^ bits
    flipped: jax.Array = jax.lax.bitcast_convert_type(changed, array.dtype)
    return flipped


def _marked(function: Callable[..., Any], arguments: tuple[Any, ...], marks: dict[str, str]) -> Any:
    if jax.default_backend() != "cpu":
        return function(*arguments)

    def body(*arguments: Any) -> Any:
        # The operations inside inherit the marks unless they have their own.
        with _marks(xla_cpu_small_call="false", inlineable="true"):
            return function(*arguments)

    with _marks(**marks):
        return jax.jit(body)(*arguments)


def unused(jaxpr: Any, argument: int, results: int) -> bool:
    """Whether the first results of a traced function do not use this argument. JAX has no public name for this."""
    wanted = [i < results for i in range(len(jaxpr.outvars))]
    return not partial_eval.dce_jaxpr(jaxpr, wanted)[1][argument]
