"""One hash of content, for files, data, parameters and code: equal where everything that numbers depend on is equal.

It is found by walking through a value; nothing is called, and no address and no order of a set enters, so that two
processes that load the same file agree. Where code is part of a value it belongs to one version of Python, because
bytecode does.

    numbers, text            type and value
    arrays                   type of the numbers, shape and content; NumPy's and JAX's are the same
    containers, dataclasses  their parts; sets and keys of dictionaries without their order
    functions                name, bytecode, constants, defaults, closure, and those of the globals that they mention;
                             if one is a user's module, those of its members
    classes                  name, methods and attributes;   other objects: class and attributes
    other modules, and code of the standard library and of installed packages    by name alone
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable, Iterator
from dataclasses import fields, is_dataclass
from functools import cached_property, partial, partialmethod
from pathlib import Path
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np

Seen = dict[int, tuple[int, Any]]
PLAIN = (type(None), bool, int, float, complex, str, bytes, type(...))
METHODS = (FunctionType, property, staticmethod, classmethod)
INSTALLED = {"site-packages", "dist-packages"}
PACKAGE = __name__.partition(".")[0]
CODE = (
    *("co_name", "co_argcount", "co_posonlyargcount", "co_kwonlyargcount", "co_flags", "co_code", "co_exceptiontable"),
    *("co_names", "co_varnames", "co_freevars", "co_cellvars", "co_consts"),
)


def content_hash(*values: Any) -> str:
    """64 hexadecimal digits that change with anything in these values."""
    return _digest(values, {}).hex()


def holds_doubles(*values: Any) -> bool:
    """Whether a NumPy or JAX array, or number, of double precision is among what the hash is made of."""
    return any(piece.startswith(b"array <f8") for piece in _pieces(values, {}))


def _digest(value: Any, seen: Seen) -> bytes:
    content = hashlib.sha256()
    for piece in _pieces(value, seen):
        content.update(len(piece).to_bytes(8, "little") + piece)
    return content.digest()


def _pieces(value: Any, seen: Seen) -> Iterator[bytes]:
    """A value as a sequence of bytes, its type first; what was met before is only counted."""
    if type(value) in PLAIN:
        yield f"{type(value).__name__} {value!r}".encode()
        return
    if _is_array(value):
        yield from _array(value, seen)
        return
    yield f"{type(value).__module__}.{type(value).__qualname__}".encode()
    if isinstance(value, tuple | list):
        yield from _all(value, seen)
    elif isinstance(value, dict):
        yield from _all(sorted(value.items(), key=lambda item: repr(item[0]) if type(item[0]) in PLAIN else ""), seen)
    elif isinstance(value, set | frozenset):
        yield from sorted(_digest(item, dict(seen)) for item in value)
    elif isinstance(value, CodeType):
        yield from _all((getattr(value, name) for name in CODE), seen)
    elif hasattr(value, "__array__") and not isinstance(value, type):  # others' arrays keep the name of their class
        yield from _array(np.asarray(value), seen)
    else:
        known = id(value) in seen
        number, _ = seen.setdefault(id(value), (len(seen), value))  # kept alive, so that no other gets its id
        yield from (f"again {number}".encode(),) if known else _thing(value, seen)


def _all(values: Iterable[Any], seen: Seen) -> Iterator[bytes]:
    for value in values:
        yield from _pieces(value, seen)
    yield b"end"


def _is_array(value: Any) -> bool:
    """NumPy's own arrays and scalars, and JAX's, which are found without an import of JAX."""
    if isinstance(value, np.generic) or type(value) is np.ndarray:
        return True
    library = type(value).__module__.partition(".")[0]
    return library in ("jax", "jaxlib") and hasattr(value, "__array__") and not isinstance(value, type)


def _array(value: Any, seen: Seen) -> Iterator[bytes]:
    if str(value.dtype).startswith("key<"):
        from jax.random import key_data, key_impl

        yield f"key {key_impl(value)}".encode()
        value = key_data(value)
    array = np.asarray(value)
    # In full where `dtype.str` tells the length alone: tables with named columns, bfloat16 and the like.
    yield f"array {array.dtype if array.dtype.kind == 'V' else array.dtype.str} {array.shape}".encode()
    if array.dtype.hasobject:
        yield from _all(array.ravel().tolist(), seen)
    else:
        yield array.tobytes()


def _thing(value: Any, seen: Seen) -> Iterator[bytes]:
    """Functions, classes, modules and objects."""
    name = getattr(value, "__qualname__", getattr(value, "__name__", None))
    yield f"{getattr(value, '__module__', None)}.{name}".encode()
    if isinstance(value, FunctionType):
        yield from _function(value, seen)
    elif isinstance(value, type):
        yield from _class(value, seen)
    elif isinstance(value, partial | partialmethod):
        yield from _all((value.func, value.args, value.keywords), seen)
    elif isinstance(value, MethodType):
        yield from _all((value.__func__, value.__self__), seen)
    elif isinstance(value, CellType):
        yield from _pieces(_content(value), seen)
    elif (inner := getattr(value, "__wrapped__", None)) is not None:  # compiled, cached and the like
        yield from _pieces(inner, seen)
    elif isinstance(value, property | cached_property):
        yield from _pieces(value.fget if isinstance(value, property) else value.func, seen)
    elif is_dataclass(value):
        yield from _pieces(type(value), seen)
        yield from _all(((f.name, getattr(value, f.name, None)) for f in fields(value)), seen)
    elif _own(type(value).__module__):
        yield from _pieces(type(value), seen)
        yield from _pieces(getattr(value, "__dict__", None), seen)


def _function(function: FunctionType, seen: Seen) -> Iterator[bytes]:
    if _own(function.__module__):
        code = function.__code__
        mentioned = _mentioned(_names(code), function.__globals__, set())
        parts = (code, function.__defaults__, function.__kwdefaults__, function.__closure__)
        yield from _all((*parts, *mentioned), seen)


def _mentioned(names: list[str], known: dict[str, Any], modules: set[str]) -> Iterator[tuple[str, Any]]:
    """What these names stand for, also as members of a user's modules that are among them."""
    for name in names:
        value = known.get(name)
        if isinstance(value, ModuleType) and _own(value.__name__):
            if value.__name__ not in modules:
                modules.add(value.__name__)
                yield name, list(_mentioned(names, vars(value), modules))
        elif name in known:
            yield name, value


def _class(cls: type, seen: Seen) -> Iterator[bytes]:
    if _own(cls.__module__):
        named = sorted((name, member) for name, member in vars(cls).items() if _counts(name, member))
        yield from _all((cls.__bases__, *named), seen)


def _counts(name: str, member: Any) -> bool:
    """Methods, and whatever is not Python's own bookkeeping."""
    return isinstance(member, METHODS) or not name.startswith(("__", "_abc_"))


def _names(code: CodeType) -> list[str]:
    """Global names and attributes that a function and those inside it mention."""
    inner = (name for part in code.co_consts if isinstance(part, CodeType) for name in _names(part))
    return list(dict.fromkeys((*code.co_names, *inner)))


def _content(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # still empty
        return None


def _own(module: str | None) -> bool:
    """Whether code is ours or the user's, not that of the standard library or of an installed package."""
    top = (module or PACKAGE).partition(".")[0]
    if top == PACKAGE:
        return True
    file = getattr(sys.modules.get(module or ""), "__file__", None) or ""
    return top not in sys.stdlib_module_names - {"__main__"} and not INSTALLED & set(Path(file).parts)
