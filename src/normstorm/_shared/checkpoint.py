"""One file that holds a run: a tree of arrays in safetensors, everything else as JSON text in its metadata.

A file is written beside its target and renamed, so that a reader finds the old one or the new one, never half of
one. It carries a format version, the caller's identity of what is run, and a checksum; a file that differs in any of
these is refused with one sentence.
"""

from __future__ import annotations

import json
import os
from typing import Any

import jax
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save as save_tensors

from . import files
from .hashing import content_hash
from .versions import package_version

Path = str | os.PathLike[str]
Tree = Any
VERSION = 9
FORMAT = "normstorm-run"


def usable(who: str, path: Any) -> None:
    """Refuse, before any work, a path at which no checkpoint can be kept; None asks for none."""
    if path is None:
        return
    if not isinstance(path, str | os.PathLike):
        raise ValueError(f"{who}: checkpoint must be a path or None; got checkpoint={path!r}")
    what = f"{who}: checkpoint"
    files.writable(what, files.checked(what, path))


def save(path: Path, tree: Tree, identity: dict[str, Any]) -> None:
    """Write atomically; `identity` says what is run and must come back unchanged on load."""
    with files.whole():
        text, arrays = json.dumps(identity, sort_keys=True), _named(tree)
        header = {"format": FORMAT, "version": str(VERSION), "package": package_version(), "identity": text}
        header["sha256"] = content_hash(arrays, text, header["package"])
        files.write_atomically(path, save_tensors({n: np.ascontiguousarray(a) for n, a in arrays.items()}, header))


def identity_of(path: Path) -> dict[str, Any]:
    """What the file says that it belongs to; nothing if it cannot be read, which `load` will say."""
    try:
        found = json.loads(_read(path)[0].get("identity", "{}"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def load(path: Path, identity: dict[str, Any], like: Tree) -> Tree:
    """The tree of a file that belongs to `identity` and holds arrays of exactly the forms of `like`."""
    header, arrays = _read(path)
    if header.get("format") != FORMAT:
        raise ValueError(f"checkpoint: {path} must be a file written by a run; it is something else")
    if header.get("version") != str(VERSION):
        raise ValueError(
            f"checkpoint: {path} must have format version {VERSION}, that of normstorm {package_version()}; got format "
            f"version {header.get('version')}{_written_by(header)}"
        )
    text, expected = header.get("identity", ""), _named(like)
    if header.get("sha256") != content_hash(arrays, text, header.get("package", "")):
        raise ValueError(f"checkpoint: {path} must be an undamaged file; its checksum does not match")
    _same_run(path, json.loads(text), json.loads(json.dumps(identity)), _written_by(header))
    found, wanted = ({name: (a.shape, a.dtype.str) for name, a in part.items()} for part in (arrays, expected))
    if found != wanted:
        odd = sorted(name for name in found.keys() | wanted.keys() if found.get(name) != wanted.get(name))
        raise ValueError(
            f"checkpoint: {path} must hold the arrays of this run; {odd[0]} is missing or different"
            f"{_written_by(header)}"
        )
    return jax.tree.unflatten(jax.tree.structure(like), [arrays[name] for name in expected])


def _named(tree: Tree) -> dict[str, Any]:
    """The leaves by their paths."""
    return {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def _read(path: Path) -> tuple[dict[str, str], dict[str, np.ndarray]]:
    try:
        with safe_open(path, framework="numpy") as file:
            return file.metadata() or {}, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, ValueError, KeyError) as error:
        raise ValueError(f"checkpoint: {path} must be an undamaged safetensors file; it cannot be read") from error


def _written_by(header: dict[str, str]) -> str:
    return f", written by normstorm {header['package']}" if "package" in header else ""


def _same_run(path: Path, found: dict[str, Any], wanted: dict[str, Any], written: str) -> None:
    for name in sorted(found.keys() | wanted.keys()):
        if found.get(name) != wanted.get(name):
            raise ValueError(
                f"checkpoint: {path} must belong to this run; its {name} is {found.get(name)!r}, this run's is "
                f"{wanted.get(name)!r} (format version {VERSION}{written}; this is normstorm {package_version()})"
            )
