"""A function of one seed, written out for many: every number of the seed becomes one vector over lanes.

The function is traced once for a single seed, and its operations are replayed number by number on vectors of lanes.
Sums become chains of additions, slices and transpositions disappear, and what is left is plain arithmetic on vectors
without any other axis: on a GPU, each lane is a thread and each number one of its registers.

A value is either an array that all lanes share, or parts: a numpy array of objects, one for every number, each a
vector over lanes or a scalar that all lanes share. Functions that do more than arithmetic, or more of it than is
reasonable to write out, are refused with `UnrollError`; the caller then runs them in the ordinary way.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from normstorm._shared.jax_internals import abstract

from .replay import bind, pointwise, replay

Tree = Any
Parts = np.ndarray
LIMIT = 2000  # operations beyond which compilation takes longer than it saves

REDUCTIONS = {
    "reduce_sum": lax.add,
    "reduce_prod": lax.mul,
    "reduce_max": lax.max,
    "reduce_min": lax.min,
    "reduce_and": lax.bitwise_and,
    "reduce_or": lax.bitwise_or,
}
SUMS_SO_FAR = {"cumsum": lax.add, "cumprod": lax.mul, "cummax": lax.max, "cummin": lax.min}


class UnrollError(Exception):
    """The function cannot be written out."""


class Stored:
    """Something like `array` that all lanes share and that is read number by number, perhaps at another place each."""

    def __init__(self, array: Any, read: Callable[[tuple[Any, ...]], Any]) -> None:
        self.shape, self.read = np.shape(array), read
        self.description = _description(array)

    def converted(self, dtype: Any) -> Stored:
        """The same in another precision, number by number as they are read."""
        array = abstract(self.shape, dtype)
        return Stored(array, lambda i: lax.convert_element_type(self.read(i), dtype))


def filled(shape: Iterable[int], entry: Callable[[tuple[int, ...]], Any]) -> Parts:
    """Parts of this shape, entry by entry."""
    parts = np.empty(tuple(shape), object)
    for i in np.ndindex(parts.shape):
        parts[i] = entry(i)
    return parts


def apply(function: Callable[..., Tree], common: tuple[Tree, ...], lanes: tuple[Tree, ...]) -> Tree:
    """function(*common, *lanes), once for every lane: `lanes` and the result are pytrees of parts."""
    leaves, structure = jax.tree.flatten((common, lanes))
    traced, shape = jax.make_jaxpr(lambda a, b: function(*a, *b), return_shape=True)(
        *jax.tree.unflatten(structure, [_description(leaf) for leaf in leaves])
    )
    constants = [c if isinstance(c, jax.core.Tracer) else np.asarray(c) for c in traced.consts]
    results = replay(traced.jaxpr, constants, leaves, _Writer().equation)
    return jax.tree.unflatten(jax.tree.structure(shape), [_parts(r) for r in results])


def _is_parts(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.dtype.hasobject


def _description(leaf: Any) -> Any:
    if isinstance(leaf, Stored):
        return leaf.description
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return leaf
    one = leaf.flat[0] if _is_parts(leaf) else leaf
    return abstract(np.shape(leaf), jnp.result_type(one), weak_type=jax.typeof(one).weak_type)


def _parts(value: Any) -> Parts:
    if _is_parts(value):
        return value  # type: ignore[no-any-return]
    return filled(value.shape, value.read if isinstance(value, Stored) else lambda i: value[i])


def _level(*entries: Any) -> list[Any]:
    """Scalars next to vectors become vectors."""
    width = max(np.shape(e) for e in entries)
    return [e if np.shape(e) == width else jnp.broadcast_to(e, width) for e in entries]


def _combine(operation: Callable[[Any, Any], Any], entries: list[Any]) -> Any:
    """Pairs of pairs, so that no term waits for all others."""
    while len(entries) > 1:
        pairs = [operation(*_level(a, b)) for a, b in zip(entries[::2], entries[1::2], strict=False)]
        entries = pairs + entries[2 * len(pairs) :]
    return entries[0]


class _Writer:
    """Carries out operations on parts, and counts them."""

    def __init__(self) -> None:
        self.written = 0

    def equation(self, equation: Any, values: list[Any]) -> list[Any]:
        name = equation.primitive.name
        if not any(isinstance(v, jax.core.Tracer | Stored) or _is_parts(v) for v in values):
            with jax.ensure_compile_time_eval():
                return [np.asarray(v) for v in bind(equation, values)]
        if name == "convert_element_type" and isinstance(values[0], Stored):
            return [values[0].converted(equation.params["new_dtype"])]
        if name == "gather":
            return [self.rows(equation, *values)]
        parts = [_parts(v) for v in values]
        if pointwise(equation):
            return [self.pointwise(equation, parts)]
        if name in SUMS_SO_FAR:
            return [self.so_far(SUMS_SO_FAR[name], parts[0], equation.params["axis"], equation.params["reverse"])]
        if name in REDUCTIONS:
            return [self.reduction(REDUCTIONS[name], parts[0], equation.params["axes"])]
        if name == "dot_general":
            return [self.product(equation, *parts)]
        move = getattr(_Moves, name, None)
        if move is None:
            raise UnrollError(name)
        moved = move(equation, *parts)
        return moved if equation.primitive.multiple_results else [moved]

    def count(self, operations: int) -> None:
        self.written += operations
        if self.written > LIMIT:
            raise UnrollError(f"more than {LIMIT} operations")

    def pointwise(self, equation: Any, parts: list[Parts]) -> Parts:
        shape, sums = equation.outvars[0].aval.shape, equation.primitive.name == "add_any"
        spread = [np.broadcast_to(p, shape) for p in parts]
        done: dict[tuple[int, ...], Any] = {}

        def entry(i: tuple[int, ...]) -> Any:
            operands = [p[i] for p in spread]
            same = tuple(map(id, operands))
            if same not in done:
                self.count(1)
                level = _level(*operands)
                done[same] = lax.add(*level) if sums else equation.primitive.bind(*level, **equation.params)
            return done[same]

        return filled(shape, entry)

    def reduction(self, operation: Any, parts: Parts, axes: tuple[int, ...]) -> Parts:
        kept = [a for a in range(parts.ndim) if a not in axes]
        size = math.prod(parts.shape[a] for a in axes)
        if not size:
            raise UnrollError("an empty reduction")
        self.count(parts.size)
        rows = parts.transpose(*kept, *axes).reshape(*(parts.shape[a] for a in kept), size)
        return filled(rows.shape[:-1], lambda i: _combine(operation, list(rows[i])))

    def so_far(self, operation: Any, parts: Parts, axis: int, reverse: bool) -> Parts:
        self.count(parts.size)
        turned = np.moveaxis(np.flip(parts, axis) if reverse else parts, axis, 0)
        sums = filled(turned.shape, lambda _: None)
        for i in np.ndindex(turned.shape):
            before = (i[0] - 1, *i[1:])
            sums[i] = operation(*_level(sums[before], turned[i])) if i[0] else turned[i]
        back = np.moveaxis(sums, 0, axis)
        return np.flip(back, axis) if reverse else back

    def product(self, equation: Any, left: Parts, right: Parts) -> Parts:
        (lc, rc), (lb, rb) = equation.params["dimension_numbers"]
        dtype = equation.outvars[0].aval.dtype
        if any(v.aval.dtype != dtype for v in equation.invars):
            raise UnrollError("a product of other precision")

        def ordered(parts: Parts, batch: Any, summed: Any) -> tuple[Parts, list[int]]:
            free = [a for a in range(parts.ndim) if a not in (*batch, *summed)]
            sizes = [math.prod(parts.shape[a] for a in axes) for axes in (batch, free, summed)]
            return parts.transpose(*batch, *free, *summed).reshape(sizes), [parts.shape[a] for a in free]

        (a, rows), (b, columns) = ordered(left, lb, lc), ordered(right, rb, rc)
        self.count(2 * a.size * b.shape[1])

        def entry(i: tuple[int, ...]) -> Any:
            terms = [lax.mul(*_level(x, y)) for x, y in zip(a[i[0], i[1]], b[i[0], i[2]], strict=True)]
            return _combine(lax.add, terms)

        return filled((len(a), a.shape[1], b.shape[1]), entry).reshape(*(left.shape[d] for d in lb), *rows, *columns)

    def rows(self, equation: Any, table: Any, index: Any) -> Parts:
        """table[index]: rows of a table that all lanes share, another one in every lane."""
        numbers, sizes, mode = (equation.params[p] for p in ("dimension_numbers", "slice_sizes", "mode"))
        whole_rows = numbers.start_index_map == numbers.collapsed_slice_dims == (0,) and sizes[1:] == table.shape[1:]
        if not isinstance(table, Stored) or not whole_rows or mode == lax.GatherScatterMode.FILL_OR_DROP:
            raise UnrollError("a gather of other things than rows")
        which, shape = _parts(index)[..., 0], equation.outvars[0].aval.shape
        batch = [a for a in range(len(shape)) if a not in numbers.offset_dims]
        self.count(math.prod(shape))
        first = filled(which.shape, lambda i: jnp.clip(which[i], 0, table.shape[0] - 1))

        def entry(i: tuple[int, ...]) -> Any:
            return table.read((first[tuple(i[a] for a in batch)], *(i[a] for a in numbers.offset_dims)))

        return filled(shape, entry)


class _Moves:
    """Operations that only move numbers, by JAX's names for them."""

    @staticmethod
    def broadcast_in_dim(equation: Any, parts: Parts) -> Parts:
        shape, where = equation.params["shape"], equation.params["broadcast_dimensions"]
        spread = parts.reshape([parts.shape[where.index(a)] if a in where else 1 for a in range(len(shape))])
        return np.broadcast_to(spread, shape)

    @staticmethod
    def reshape(equation: Any, parts: Parts) -> Parts:
        if equation.params["dimensions"] is not None:
            raise UnrollError("a reshape in another order")
        return parts.reshape(equation.params["new_sizes"])

    @staticmethod
    def squeeze(equation: Any, parts: Parts) -> Parts:
        return parts.reshape(equation.outvars[0].aval.shape)

    expand_dims = squeeze

    @staticmethod
    def transpose(equation: Any, parts: Parts) -> Parts:
        return parts.transpose(equation.params["permutation"])

    @staticmethod
    def optimization_barrier(equation: Any, *parts: Parts) -> list[Parts]:
        return list(parts)

    @staticmethod
    def rev(equation: Any, parts: Parts) -> Parts:
        return np.flip(parts, equation.params["dimensions"])

    @staticmethod
    def slice(equation: Any, parts: Parts) -> Parts:
        start, stop = equation.params["start_indices"], equation.params["limit_indices"]
        stride = equation.params["strides"] or (1,) * parts.ndim
        return parts[tuple(map(slice, start, stop, stride))]

    @staticmethod
    def concatenate(equation: Any, *parts: Parts) -> Parts:
        return np.concatenate(parts, equation.params["dimension"])

    @staticmethod
    def split(equation: Any, parts: Parts) -> list[Parts]:
        ends = np.cumsum(equation.params["sizes"])[:-1]
        return np.split(parts, ends, equation.params["axis"])

    @staticmethod
    def pad(equation: Any, parts: Parts, value: Parts) -> Parts:
        config = equation.params["padding_config"]
        if any(low < 0 or high < 0 for low, high, _ in config):
            raise UnrollError("a pad that cuts")
        padded = filled(equation.outvars[0].aval.shape, lambda _: value[()])
        ends = [(low, low + n * (gap + 1), gap + 1) for n, (low, _, gap) in zip(parts.shape, config, strict=True)]
        padded[tuple(slice(*e) for e in ends)] = parts
        return padded
