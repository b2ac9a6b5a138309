"""Dataclasses as pytrees: numbers are leaves, static fields and the class are structure. What is none; what fits."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from .hashing import content_hash

STATIC = {"static": True}
Class = TypeVar("Class", bound=type)


def pytree(cls: Class) -> Class:
    """Registers a dataclass with JAX: fields marked STATIC are part of its structure, the others are leaves.

    The class itself is part of the structure, too. With jax.tree_util.register_dataclass the structures of two classes
    with equally many leaves compare equal, and a compiled function may then run the program of the wrong class.
    """
    fixed = [f.name for f in fields(cls) if f.metadata.get("static")]
    leaves = [f.name for f in fields(cls) if not f.metadata.get("static")]

    def flatten(item: Any) -> tuple[list[Any], Any]:
        return [getattr(item, name) for name in leaves], (cls, *(getattr(item, name) for name in fixed))

    def flatten_with_keys(item: Any) -> tuple[list[Any], Any]:
        values, structure = flatten(item)
        return [(jax.tree_util.GetAttrKey(k), v) for k, v in zip(leaves, values, strict=True)], structure

    def unflatten(structure: Any, values: Any) -> Any:
        item: Any = object.__new__(cls)
        for name, value in zip((*leaves, *fixed), (*values, *structure[1:]), strict=True):
            object.__setattr__(item, name, value)
        return item

    jax.tree_util.register_pytree_with_keys(cls, flatten_with_keys, unflatten, flatten)
    return cls


class Fixed:
    """An object that JAX does not know as a pytree, so that it becomes part of the program.

    Two are the same if they are one object whose content has not changed in between.
    """

    def __init__(self, problem: Any) -> None:
        self.problem = problem
        self.content = content_hash(getattr(problem, "__dict__", None))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Fixed) and self.problem is other.problem and self.content == other.content

    def __hash__(self) -> int:
        return id(self.problem)


def misfit(problem: Any, x: Any) -> str | None:
    """What x must be, if it is of another form than the problem's start and gradients at it are not of its own form."""
    if not callable(getattr(problem, "start", None)):
        return None
    start = problem.start()
    if _form(start) == _form(x):
        return None
    try:
        gradient = jax.eval_shape(lambda key: problem.grad(x, problem.sample(key, 1)), jax.random.key(0))
    except Exception:  # whatever the problem says of a point that is not its own
        gradient = None
    if gradient is not None and _form(gradient) == _form(x):
        return None
    return f"have the shape {shapes(start)} of the problem's start; got {shapes(x)}"


def _form(tree: Any) -> tuple[Any, list[tuple[int, ...]]]:
    leaves, structure = jax.tree.flatten(tree)
    return structure, [np.shape(leaf) for leaf in leaves]


def shapes(tree: Any) -> str:
    """The shape of every leaf behind its path."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return ", ".join(f"{jax.tree_util.keystr(path)} {np.shape(leaf)}".strip() for path, leaf in leaves) or "nothing"


def dimension(x: Any) -> int:
    """Numbers in a point."""
    return sum(int(np.size(leaf)) for leaf in jax.tree.leaves(x))


def bytes_of(tree: Any) -> int:
    """Bytes of all its numbers."""
    return sum(int(np.size(leaf)) * jnp.result_type(leaf).itemsize for leaf in jax.tree.leaves(tree))
