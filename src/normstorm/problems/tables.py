"""What a user hands in, before anything is made of it: rows of numbers, and a loss of one row. Refusals name the place.

A wrong number in a table is not seen later: the row may never be drawn. So every number is looked at once.
"""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from normstorm._shared.pytrees import shapes

Tree = Any
Array = np.ndarray
SCALARS = (int, float, complex, str, bytes, np.generic)


def table_rows(who: str, data: Tree) -> Tree:
    """Data as arrays of finite numbers with one common first axis; lists of numbers are arrays."""
    try:
        listed = jax.tree.map(lambda part: np.asarray(part) if _listed(part) else part, data, is_leaf=_listed)
    except ValueError as error:
        raise ValueError(f"{who}: data must be arrays of numbers; got lists of different lengths") from error
    found = jax.tree_util.tree_map_with_path(lambda path, leaf: _array(who, _name(path), leaf), listed)
    leaves = [(_name(path), leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(found)]
    lengths = sorted({leaf.shape[0] if leaf.ndim else 0 for _, leaf in leaves})
    if len(lengths) != 1 or lengths == [0]:
        raise ValueError(
            f"{who}: data must be a sampler or arrays with one common leading axis of at least one row; got lengths "
            f"{lengths}"
        )
    if not any(leaf.size for _, leaf in leaves):
        raise ValueError(f"{who}: data must have numbers in every row; got the shape {shapes(found)}")
    for name, leaf in leaves:
        check_finite(who, "data", name, leaf)
    return found


def check_finite(who: str, what: str, name: str, array: Array) -> None:
    """Refuse what is not finite; `what` is the parameter, `name` the array."""
    if array.dtype.kind in "biu" or np.isfinite(array).all():
        return
    wrong = ~np.isfinite(array)
    first = tuple(int(i) for i in np.argwhere(wrong)[0])
    rows = int(np.sum(wrong.reshape(len(array), -1).any(axis=1))) if array.ndim else 1
    count = f" (in {rows} of {len(array)} rows something is not finite)" if array.ndim and rows > 1 else ""
    raise ValueError(f"{who}: {what} must be finite numbers; got {array[first]} in {name}{_place(first)}{count}")


def check_loss(who: str, loss: Callable[[Any, Any], Any], x: Tree, row: Tree) -> None:
    """Refuse a loss that is not one number for x and one sample; nothing is computed."""
    _check_signature(who, loss)
    x, row = (jax.eval_shape(lambda tree: jax.tree.map(jnp.asarray, tree), part) for part in (x, row))
    precision = jnp.result_type(*jax.tree.leaves(x))

    def of_form(x: Tree, row: Tree) -> Any:  # another function each time: nothing of it is kept
        floats = jax.tree.map(lambda a: a.astype(precision) if jnp.issubdtype(a.dtype, jnp.floating) else a, row)
        return loss(x, floats)

    try:
        found = jax.eval_shape(of_form, x, row)
    except Exception as error:
        words = str(error).strip().partition("\n")[0] or "no message"
        raise ValueError(
            f"{who}: loss must run for x and one sample, of the shapes {shapes(x)} and {shapes(row)}; "
            f"got {type(error).__name__}{_line(error, loss)}: {words}"
        ) from error
    leaves = jax.tree.leaves(found)
    if len(leaves) != 1 or leaves[0] is not found or found.shape:
        raise ValueError(f"{who}: loss must return one number for one sample; got the shape {shapes(found)}")
    if not jnp.issubdtype(found.dtype, jnp.floating):
        raise ValueError(f"{who}: loss must return a floating-point number; got the type {found.dtype}")


def _check_signature(who: str, loss: Callable[[Any, Any], Any]) -> None:
    try:
        signature = inspect.signature(loss)
    except (TypeError, ValueError):  # what is not written in Python need not have one
        return
    try:
        signature.bind(None, None)
    except TypeError:
        raise ValueError(
            f"{who}: loss must be a function of x and one sample, loss(x, row), where row may have parts; "
            f"got loss{signature}"
        ) from None


def _array(who: str, name: str, leaf: Any) -> Array:
    if isinstance(leaf, np.ma.MaskedArray):
        masked = np.argwhere(np.ma.getmaskarray(leaf))
        if len(masked):
            first = tuple(int(i) for i in masked[0])
            raise ValueError(
                f"{who}: data must have no masked entries, fill them or leave out their rows; "
                f"got {len(masked)} in {name}, the first in{_place(first).removeprefix(',')}"
            )
        leaf = leaf.data
    array = np.asarray(leaf)
    if array.dtype.names is not None:
        names = ", ".join(array.dtype.names[:8]) + (", ..." if len(array.dtype.names) > 8 else "")
        raise ValueError(
            f"{who}: data must be arrays of numbers, such as {{name: data[name] for name in data.dtype.names}} or "
            f"np.column_stack of the columns; got a structured array with the fields {names}"
        )
    if array.dtype.kind in "US":
        raise ValueError(
            f"{who}: data must be arrays of numbers, labels as np.unique(labels, return_inverse=True)[1]; "
            f"got text in {name}, such as {_shown(array)}"
        )
    if array.dtype.kind not in "biufc" and not jnp.issubdtype(array.dtype, np.number):
        raise ValueError(
            f"{who}: data must be arrays of numbers, with text and the like left out or encoded; "
            f"got the type {array.dtype} in {name}"
        )
    return array


def _shown(array: Array) -> str:
    return repr(str(array.reshape(-1)[0])) if array.size else "nothing"


def _listed(part: Any) -> bool:
    """A list of numbers, nested or not; tuples are parts of a row."""
    return isinstance(part, list) and bool(part) and all(isinstance(item, SCALARS) or _listed(item) for item in part)


def _name(path: Any) -> str:
    return f"data{jax.tree_util.keystr(path)}"


def _place(index: tuple[int, ...]) -> str:
    if not index:
        return ""
    column = {1: "", 2: f", column {index[-1]}"}.get(len(index), f", entry {index[1:]}")
    return f", row {index[0]}{column}"


def _line(error: Exception, loss: Any) -> str:
    """Where in the file of the loss it happened."""
    while not hasattr(loss, "__code__") and (inner := getattr(loss, "func", getattr(loss, "__wrapped__", None))):
        loss = inner
    file = getattr(getattr(loss, "__code__", None), "co_filename", None)
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    return f" at line {lines[-1]} of {Path(str(file)).name}" if lines else ""
