"""Problems as the command line names them: a name of the registry, or path/to/file.py:name."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from normstorm.problems import registry, user
from normstorm.problems.protocol import Problem


def check_spec(problem_spec: str) -> None:
    """Refuse what is neither a name of the registry nor a place in a file."""
    if problem_spec not in registry.PROBLEMS and ":" not in problem_spec:
        known = ", ".join(registry.PROBLEMS)
        raise ValueError(f"problem must be path/to/file.py:name or one of {known}; got problem={problem_spec!r}")


def find(problem_spec: str) -> tuple[Problem, str]:
    """The problem, and a description of it."""
    check_spec(problem_spec)
    if problem_spec in registry.PROBLEMS:
        return registry.get(problem_spec), registry.PROBLEMS[problem_spec].description
    return user.load(problem_spec), f"the problem that {problem_spec} defines"


@contextmanager
def user_errors(problem_spec: str) -> Iterator[None]:
    """An error inside a user's file is a sentence that names the line; elsewhere it is a defect and stays as it is."""
    try:
        yield
    except ValueError:
        raise
    except (Exception, SystemExit) as error:
        file = Path(problem_spec.rpartition(":")[0])
        lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if _same_file(f.filename, file)]
        if not lines:
            raise
        words = str(error).strip().partition("\n")[0] or "no message"
        raise ValueError(
            f"problem must run without an error; got {type(error).__name__} at line {lines[-1]} of {file}: {words}"
        ) from error


def _same_file(name: str, file: Path) -> bool:
    return file.is_file() and Path(name).resolve() == file.resolve()
