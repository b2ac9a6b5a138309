"""`jax.vmap` that keeps the lanes on the last axis of every array in between.

`jax.vmap` moves the lanes to the front wherever a scalar meets a vector. A CPU then adds up a seed's few numbers one by
one instead of taking all lanes in one instruction, and transposes on the way.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from normstorm._shared.jax_internals import abstract, lengthened

from .replay import bind, pointwise, replay

Tree = Any
LENGTHENED = ("div", "select_n")
REDUCTIONS = ("reduce_sum", "reduce_prod", "reduce_max", "reduce_min", "reduce_and", "reduce_or")


class Laned:
    """An array with the lanes on its last axis; whatever is not wrapped is the same for all lanes."""

    def __init__(self, array: jax.Array) -> None:
        self.array = array


def over_lanes(function: Callable[..., Tree], *lanes: Tree, zero: Any = None) -> Tree:
    """function(*lanes) for every lane, the lanes on the last axis of all arguments and results.

    `zero` is an integer that is known to be 0 only when the program runs; with it, operations on one number of a lane
    are made long enough to be vectorised (see `compiler.lengthened`).
    """
    leaves, structure = jax.tree.flatten(lanes)
    width = leaves[0].shape[-1]
    one = [abstract(v.shape[:-1], v.dtype, weak_type=jax.typeof(v).weak_type) for v in leaves]
    traced, shape = jax.make_jaxpr(function, return_shape=True)(*jax.tree.unflatten(structure, one))
    results = replay(traced.jaxpr, traced.consts, map(Laned, leaves), partial(_rule, width, zero))
    whole = [r.array if isinstance(r, Laned) else _spread(r, jnp.shape(r), width) for r in results]
    return jax.tree.unflatten(jax.tree.structure(shape), whole)


def _spread(value: Any, shape: tuple[int, ...], width: int) -> jax.Array:
    """The array of this shape with lanes, from one with or without them that may have to be repeated."""
    array = value.array if isinstance(value, Laned) else jnp.expand_dims(value, -1)
    missing = len(shape) + 1 - array.ndim
    return jnp.broadcast_to(array.reshape((1,) * missing + array.shape), (*shape, width))


def _long(value: Any, zero: Any) -> Any:
    if zero is None or not isinstance(value, Laned) or value.array.ndim > 1:
        return value
    return Laned(lengthened(value.array, zero))


def _rule(width: int, zero: Any, equation: Any, values: list[Any]) -> list[Any]:
    if not any(isinstance(v, Laned) for v in values):
        return bind(equation, values)
    name, params = equation.primitive.name, equation.params
    if pointwise(equation):
        shape = equation.outvars[0].aval.shape
        if shape:
            values = [_long(v, zero) for v in values]
        elif name in LENGTHENED:
            values = [*values[:-1], _long(values[-1], zero)]
        return [Laned(equation.primitive.bind(*(_spread(v, shape, width) for v in values), **params))]
    if name in REDUCTIONS:
        return [Laned(equation.primitive.bind(values[0].array, **params))]
    if name == "broadcast_in_dim" and len(values) == 1:
        shape, where = params["shape"], params["broadcast_dimensions"]
        array = _long(values[0], zero).array
        return [Laned(jax.lax.broadcast_in_dim(array, (*shape, width), (*where, len(shape))))]
    if name == "reshape" and len(values) == 1 and params["dimensions"] is None:
        return [Laned(values[0].array.reshape(*params["new_sizes"], width))]

    def plain(*arrays: Any) -> Any:
        return bind(equation, arrays)

    axes = [-1 if isinstance(v, Laned) else None for v in values]
    arrays = [v.array if isinstance(v, Laned) else v for v in values]
    return [Laned(r) for r in jax.vmap(plain, axes, -1)(*arrays)]
