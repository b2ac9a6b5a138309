"""One file that holds a run: tensors in safetensors, everything else as JSON text in its metadata.

A file is written beside its target and renamed, so that a reader finds the old one or the new one, never half of
one. It carries a format version, the caller's fingerprint of what is run, and a checksum; a file that differs in
any of these is refused with one sentence.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as save_tensors

from normstorm._shared import files
from normstorm._shared.hashing import content_hash

VERSION = 3
FORMAT = "normstorm-run"


def usable(who: str, path: Any) -> None:
    """Refuse, before any work, a path at which no checkpoint can be kept; None asks for none."""
    if path is None:
        return
    if not isinstance(path, str | os.PathLike):
        raise ValueError(f"{who}: checkpoint must be a path or None; got checkpoint={path!r}")
    what = f"{who}: checkpoint"
    files.writable(what, files.checked(what, path))


def save(path: str | os.PathLike[str], arrays: dict[str, np.ndarray], identity: dict[str, Any]) -> None:
    """Write atomically; `identity` says what is run and must come back unchanged on load."""
    text = json.dumps(identity, sort_keys=True)
    header = {"format": FORMAT, "version": str(VERSION), "identity": text, "sha256": content_hash(arrays, text)}
    content = save_tensors({name: np.ascontiguousarray(value) for name, value in arrays.items()}, header)
    files.write_atomically(path, content)


def identity_of(path: str | os.PathLike[str]) -> dict[str, Any]:
    """What the file says that it belongs to; nothing if it cannot be read, which `load` will say."""
    try:
        found = json.loads(_header(path, Path(path).read_bytes()).get("identity", "{}"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def load(
    path: str | os.PathLike[str], identity: dict[str, Any], expected: dict[str, tuple[tuple[int, ...], str]]
) -> dict[str, np.ndarray]:
    """The arrays of a file that belongs to `identity` and holds exactly `expected`: name -> (shape, dtype)."""
    content = Path(path).read_bytes()
    header = _header(path, content)
    if header.get("format") != FORMAT:
        raise ValueError(f"checkpoint: {path} must be a file written by a run; it is something else")
    if header.get("version") != str(VERSION):
        raise ValueError(f"checkpoint: {path} must have version {VERSION}; got version {header.get('version')}")
    try:
        arrays = load_tensors(content)
    except (SafetensorError, ValueError, KeyError) as error:
        raise ValueError(f"checkpoint: {path} must be an undamaged file; its tensors cannot be read") from error
    text = header.get("identity", "")
    if header.get("sha256") != content_hash(arrays, text):
        raise ValueError(f"checkpoint: {path} must be an undamaged file; its checksum does not match")
    _same_run(path, json.loads(text), json.loads(json.dumps(identity)))
    found = {name: (value.shape, value.dtype.str) for name, value in arrays.items()}
    if found != expected:
        odd = sorted(name for name in found.keys() | expected.keys() if found.get(name) != expected.get(name))
        raise ValueError(f"checkpoint: {path} must hold the arrays of this run; {odd[0]} is missing or different")
    return arrays


def _header(path: str | os.PathLike[str], content: bytes) -> dict[str, str]:
    size = int.from_bytes(content[:8], "little")
    try:
        if len(content) < 8 or size > len(content) - 8:
            raise ValueError("shorter than its header")
        metadata = json.loads(content[8 : 8 + size]).get("__metadata__")
    except (ValueError, AttributeError) as error:
        raise ValueError(f"checkpoint: {path} must be an undamaged safetensors file; it has no header") from error
    return metadata if isinstance(metadata, dict) else {}


def _same_run(path: str | os.PathLike[str], found: dict[str, Any], wanted: dict[str, Any]) -> None:
    for name in sorted(found.keys() | wanted.keys()):
        if found.get(name) != wanted.get(name):
            raise ValueError(
                f"checkpoint: {path} must belong to this run; its {name} is {found.get(name)!r}, "
                f"this run's is {wanted.get(name)!r}"
            )
