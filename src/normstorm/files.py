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


def write(path: Path, content: bytes) -> None:
    """Write beside the target and rename: a reader finds the old file or the new one."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        part.write_bytes(content)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
