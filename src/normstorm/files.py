"""Files that are whole or not there."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path


def checked(what: str, file: str | Path, suffixes: Iterable[str] = ()) -> Path:
    """The path of a file to be written, refused before any work if it cannot become one."""
    path, allowed = Path(file), tuple(suffixes)
    if allowed and path.suffix.lower() not in allowed:
        ending = allowed[0] if len(allowed) == 1 else f"one of {', '.join(allowed)}"
        raise ValueError(f"{what} must end in {ending}; got {path}")
    if not path.parent.is_dir():
        raise ValueError(f"{what} must lie in an existing directory; got {path}")
    return path


def page(file: str | None, default: Path) -> Path:
    """The path of a report: as given, or the default, whose directory may still be missing."""
    if file is None:
        if default.parent.exists() and not default.parent.is_dir():
            raise ValueError(f"report must lie in a directory; got {default}")
        return default
    path = checked("report", file, [".html"])
    writable("report", path)
    return path


def writable(what: str, path: Path) -> None:
    if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise ValueError(f"{what} must be a writable file; got {path}")


def write(path: Path, content: bytes) -> None:
    """Write beside the target and rename: a reader finds the old file or the new one."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        part.write_bytes(content)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
