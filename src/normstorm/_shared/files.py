"""Files that are whole or not there."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

LONGEST_NAME = 240  # bytes; what is written beside the file has up to 15 more


def checked(what: str, file: str | os.PathLike[str], suffixes: Iterable[str] = ()) -> Path:
    """The path of a file to be written, refused before any work if it cannot become one."""
    path, allowed = Path(file), tuple(suffixes)
    if allowed and path.suffix.lower() not in allowed:
        ending = allowed[0] if len(allowed) == 1 else f"one of {', '.join(allowed)}"
        raise ValueError(f"{what} must end in {ending}; got {path}")
    if not 0 < len(os.fsencode(path.name)) <= LONGEST_NAME or "\0" in path.name:
        raise ValueError(f"{what} must have a name of 1 to {LONGEST_NAME} bytes, none of them 0; got {str(file)!r}")
    if not os.path.isdir(path.parent):
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
    """Refuse what is no file, and what cannot be written or renamed to in its directory."""
    exists = os.path.exists(path)
    if (exists and not (path.is_file() and os.access(path, os.W_OK))) or not os.access(path.parent, os.W_OK):
        raise ValueError(f"{what} must be a writable file; got {path}")


def write(path: Path, content: bytes) -> None:
    """Write beside the target and rename: a reader finds the old file or the new one."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        part.write_bytes(content)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
