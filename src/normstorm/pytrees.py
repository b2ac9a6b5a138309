"""Dataclasses as pytrees: numbers are leaves, static fields and the class itself are structure."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, TypeVar

import jax

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
