"""Files that are whole or not there, and how one that cannot be read is refused."""

from __future__ import annotations

import contextlib
import os
import secrets
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

LONGEST_NAME = 240  # bytes; what is written beside the file has up to 15 more
_written: list[None] = []  # one entry for every file that is being written


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


def page_path(file: str | None, default: Path) -> Path:
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
    trial = _beside(path)
    try:  # a directory that says it can be written may still refuse, as those of the kernel do
        trial.open("xb").close()
        trial.unlink()
    except OSError as error:
        raise ValueError(f"{what} must be a writable file; got {path} ({error.strerror})") from None


def toml_table(what: str, file: str) -> dict[str, Any]:
    """What a TOML file holds; whatever keeps it from being read is one sentence."""
    try:
        return tomllib.loads(Path(file).read_text(encoding="utf-8"))
    except OSError as error:
        shown = file if file else "an empty name"
        raise ValueError(f"{what} must be a readable file; got {shown} ({error.strerror})") from None
    except RecursionError:
        raise ValueError(f"{what} must be a TOML file; got {file} (nested too deeply)") from None
    except ValueError as error:
        raise ValueError(f"{what} must be a TOML file; got {file} ({error})") from None


@contextlib.contextmanager
def whole() -> Iterator[None]:
    """Around what makes and writes a file: an interruption that can wait does."""
    _written.append(None)
    try:
        yield
    finally:
        _written.pop()


def writing() -> bool:
    return bool(_written)


def _beside(path: Path) -> Path:
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")


def write_atomically(path: str | os.PathLike[str], content: bytes | str) -> None:
    """Write beside the target, wait for the disk, and rename: a reader finds the old file or the new one, whole.

    That holds after a crash of the process and of the machine, and for several writers at once: the last one wins.
    Text is written as UTF-8.
    """
    path = Path(path)
    beside = _beside(path)
    with whole():
        try:
            with beside.open("xb") as file:
                file.write(content.encode("utf-8") if isinstance(content, str) else content)
                file.flush()
                os.fsync(file.fileno())
            beside.replace(path)
        finally:
            beside.unlink(missing_ok=True)
        _keep_names(path.parent)


def _keep_names(directory: Path) -> None:
    """Wait until the disk knows the new name; where a directory cannot be waited for, the system does it in time."""
    with contextlib.suppress(OSError):
        handle = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
