"""The command `normstorm compare`."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from normstorm._shared import files
from normstorm.lab.compare.request import CompareRequest

from .options import Params, given, parsed, with_options
from .output import JSON_HELP, NO_PROGRESS_HELP, exit_on_error, show
from .progress import bars

if TYPE_CHECKING:
    from normstorm.lab.compare.tables import Comparison

OUT = Path("build/compare")
PAGE = "compare.html"


@dataclass(frozen=True)
class CompareInvocation:
    """What belongs to one call; the request may come from a file."""

    spec: Annotated[str | None, "A TOML file of the above; flags win.", "FILE"] = None
    out: Annotated[str | None, f"Page and tables; {OUT} if left out.", "DIRECTORY"] = None
    json: Annotated[bool, JSON_HELP] = False
    no_progress: Annotated[bool, NO_PROGRESS_HELP] = False

    @property
    def directory(self) -> Path:
        """Where everything goes: a directory that is there, or that can be made in one that is."""
        path = OUT if self.out is None else Path(self.out)
        above = next(p for p in (path, *path.parents) if p.exists())
        deep = self.out is not None and not path.exists() and above != path.parent
        if self.out == "" or deep or not above.is_dir() or not os.access(above, os.W_OK):
            shown = "an empty name" if self.out == "" else path
            raise ValueError(f"out must be a writable directory, or lie in one; got {shown}")
        return path


@with_options(CompareRequest, CompareInvocation)
def compare(params: Params) -> None:
    """Run algorithms side by side at equal sample gradients; write one page and Parquet tables.

    Without arguments: every algorithm on four problems, with default settings.
    """
    with exit_on_error("compare"):
        call, options = parsed(CompareInvocation, params), given(CompareRequest, params)
        directory = call.directory
        if call.spec is None:
            request = CompareRequest.from_dict(options)
        else:
            request = CompareRequest.from_file(call.spec, options)
        found = _compared(request, directory, show_bars=not call.no_progress)
        _write(found, make_parents=call.out is None)
    from normstorm.report import compare_terminal

    show(found.to_dict, lambda: compare_terminal.compare_parts(found), as_json=call.json)


def _compared(request: CompareRequest, directory: Path, *, show_bars: bool) -> Comparison:
    import jax

    jax.config.update("jax_enable_x64", True)  # type: ignore[no-untyped-call]
    from normstorm.lab.compare.bench import board
    from normstorm.lab.compare.tables import Comparison

    from . import problem_specs

    problems = [problem_specs.find(spec)[0] for spec in request.problems]
    started, boards = time.monotonic(), []
    with bars(show_bars) as progress:
        for spec, problem in zip(request.problems, problems, strict=True):
            with problem_specs.user_errors(spec):
                boards.append(board(request, spec, problem, progress=progress))
    seconds = time.monotonic() - started
    return Comparison(request, tuple(boards), seconds, datetime.now().astimezone(), str(directory / PAGE))


def _write(found: Comparison, *, make_parents: bool) -> None:
    """Files come last, the page after the tables."""
    from normstorm.lab.compare.tables import SPEC, TABLES, parquet
    from normstorm.report import compare_page

    content: dict[str, bytes | str] = {f"{name}.parquet": parquet(found, name) for name in TABLES}
    content |= {SPEC: found.request.to_toml(), PAGE: compare_page.page(found)}
    directory = found.directory
    try:
        directory.mkdir(parents=make_parents, exist_ok=True)
        for name, written in content.items():
            files.write_atomically(directory / name, written)
    except OSError as error:
        raise ValueError(f"out must be a writable directory; got {directory} ({error.strerror})") from None
