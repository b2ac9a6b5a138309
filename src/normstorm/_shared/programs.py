"""Compiled programs against what they were compiled from.

JAX knows a function by its identity: a program keeps the numbers that a user's function mentioned when it was traced,
and would answer with them after a global, an attribute or an array in a closure has changed. It keeps them in the
precision of that trace, too, single or double: in the other one, a program would answer with rounded numbers, or fail.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any

import jax
import numpy as np

from .hashing import PACKAGE, content_hash, holds_doubles

MOST = 1024  # problems that are known at a time, so that what they hold does not stay for good
_traced: dict[Any, str] = {}  # what programs know a problem by: the content of its code when it was last seen
_modes: dict[Any, bool | None] = {}  # whether it was last asked in double precision; None: its code holds no array


def forget_stale(problem: Any) -> None:
    """All programs go, if the code of this problem has other content than when it was last seen."""
    key, parts = _key(problem)
    ours = type(problem).__module__.partition(".")[0] == PACKAGE  # code that does not change; to walk it takes long
    content = content_hash(None if ours else type(problem), parts)
    full = len(_traced) >= MOST and key not in _traced
    if full or _traced.setdefault(key, content) != content:
        _traced.clear()
        _traced[key] = content
        _forget_all()


def enter_mode(problem: Any) -> None:
    """All programs go, if the code of this problem holds arrays and was last asked in the other precision.

    To be called in the precision in which it is asked from now on.
    """
    key, parts = _key(problem)
    double = bool(jax.dtypes.canonicalize_dtype(np.float64) == np.float64)
    if key not in _modes:
        own = parts if parts else [getattr(problem, "__dict__", None)]
        _modes[key] = double if holds_doubles(type(problem), own) else None
    elif _modes[key] not in (None, double):
        _forget_all()
        _modes[key] = double


def _forget_all() -> None:
    _modes.clear()
    jax.clear_caches()  # type: ignore[no-untyped-call]


def _key(problem: Any) -> tuple[Any, list[Any]]:
    """What programs know a problem by, and what of it is part of them; `Fixed` sees to what JAX does not know."""
    known = not jax.tree_util.all_leaves([problem])
    return (jax.tree.structure(problem), _fixed_parts(problem)) if known else (type(problem), [])


def _fixed_parts(problem: Any) -> list[Any]:
    """What is part of a program, and not one of its arguments."""
    parts = fields(problem) if is_dataclass(problem) else ()
    return [getattr(problem, part.name) for part in parts if part.metadata.get("static")]
