"""What there is to run: problems by name or from a user's file, and algorithms, as rows for tables and JSON."""

from __future__ import annotations

import inspect
import re
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .engine.algorithms import CATALOGUE
from .outcome import dimension
from .problems import registry, user

WORDS = ("source", "departures", "cost")
SENSES = ("almost-sure", "mean-square")


def find(place: str) -> tuple[Any, str]:
    """The problem of a name of the registry or of `path/to/file.py:name`, and a description of it."""
    if place in registry.PROBLEMS:
        return registry.get(place), registry.PROBLEMS[place].description
    if ":" not in place:
        known = ", ".join(registry.PROBLEMS)
        raise ValueError(f"problem must be path/to/file.py:name or one of {known}; got problem={place!r}")
    return user.load(place), f"the problem that {place} defines"


@contextmanager
def own_code(place: str) -> Iterator[None]:
    """An error inside a user's file is a sentence that names the line; elsewhere it is a defect and stays as it is."""
    try:
        yield
    except ValueError:
        raise
    except Exception as error:
        file = Path(place.rpartition(":")[0])
        lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if _same_file(f.filename, file)]
        if not lines:
            raise
        words = str(error).strip().partition("\n")[0] or "no message"
        raise ValueError(
            f"problem must run without an error; got {type(error).__name__} at line {lines[-1]} of {file}: {words}"
        ) from error


def _same_file(name: str, file: Path) -> bool:
    return file.is_file() and Path(name).resolve() == file.resolve()


def problems() -> list[dict[str, Any]]:
    """One row for every built-in problem, constants at its default start in both senses."""
    return [_problem_row(name, entry) for name, entry in registry.PROBLEMS.items()]


def _problem_row(name: str, entry: registry.Entry) -> dict[str, Any]:
    row: dict[str, Any] = {"name": name, "description": entry.description}
    try:
        problem = entry.make()
    except ValueError as error:  # data that are not installed
        return row | {"reason": str(error)}
    constants = {}
    for sense in SENSES:
        try:
            constants[sense] = problem.constants(None, sense).to_dict()
        except ValueError:  # not proven in this sense
            constants[sense] = None
    return row | {
        "dimension": dimension(problem.start()),
        "infimum": problem.infimum,
        "infimum_kind": problem.infimum_kind,
        "constants": constants,
    }


def algorithms() -> list[dict[str, Any]]:
    """One row for every algorithm; all words are those of the modules that define it."""
    return [_algorithm_row(name, make) for name, make in CATALOGUE.items()]


def _algorithm_row(name: str, make: Any) -> dict[str, Any]:
    own, module = inspect.getdoc(make) or "", sys.modules[make.__module__].__doc__ or ""
    return {
        "name": name,
        "description": " ".join(own.partition("\n\n")[0].split()),
        **{key: _paragraph(own, key.title()) or _paragraph(module, key.title()) for key in WORDS},
        "parameters": list(inspect.signature(make).parameters),
    }


def _paragraph(text: str, word: str) -> str:
    """What follows `word:` up to the next such word or an empty line."""
    found = re.search(rf"^{word}: (.+?)(?=\n\s*\n|\n(?:{'|'.join(w.title() for w in WORDS)}): |\Z)", text, re.M | re.S)
    return " ".join(found[1].split()) if found else ""
