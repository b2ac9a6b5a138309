"""Compiled programs against what they were compiled from.

JAX knows a function by its identity: a program keeps the numbers that a user's function mentioned when it was traced,
and would answer with them after a global, an attribute or an array in a closure has changed.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any

import jax

from .hashing import PACKAGE, content_hash

MOST = 1024  # problems that are known at a time, so that what they hold does not stay for good
_traced: dict[Any, str] = {}  # what programs know a problem by: the content of its code when it was last seen


def forget_stale(problem: Any) -> None:
    """All programs go, if the code of this problem has other content than when it was last seen."""
    known = not jax.tree_util.all_leaves([problem])
    key = jax.tree.structure(problem) if known else type(problem)
    ours = type(problem).__module__.partition(".")[0] == PACKAGE  # code that does not change; to walk it takes long
    content = content_hash(None if ours else type(problem), _fixed_parts(problem) if known else [])
    full = len(_traced) >= MOST and key not in _traced
    if full or _traced.setdefault(key, content) != content:
        _traced.clear()
        _traced[key] = content
        jax.clear_caches()  # type: ignore[no-untyped-call]


def _fixed_parts(problem: Any) -> list[Any]:
    """What is part of a program, and not one of its arguments; `Fixed` sees to objects that JAX does not know."""
    parts = fields(problem) if is_dataclass(problem) else ()
    return [getattr(problem, part.name) for part in parts if part.metadata.get("static")]
