"""The command `normstorm compare`: parse, call, print."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from normstorm._shared import files

from .commands import Json, print_parts, refusing
from .options import Given, text, to_number, to_whole, whole

OUT = Path("build/compare")
PAGE = "compare.html"


def compare(
    context: typer.Context,
    problems: Annotated[Given, text("--problems", "NAMES", "With commas: names, or path/to/file.py:name.")] = None,
    algorithms: Annotated[Given, text("--algorithms", "NAMES", "With commas; all if left out.")] = None,
    budget: Annotated[Given, whole("--budget", "Sample gradients of every run.")] = None,
    seeds: Annotated[Given, whole("--seeds", "Independent runs of every setting.")] = None,
    targets: Annotated[Given, text("--targets", "NUMBERS", "With commas; chosen from the runs if left out.")] = None,
    tune: Annotated[bool, typer.Option("--tune", help="One small search for every algorithm.")] = False,
    tune_seeds: Annotated[Given, whole("--tune-seeds", "Runs of every setting in the search.")] = None,
    first_seed: Annotated[Given, whole("--first-seed", "The first of the seeds.")] = None,
    spec: Annotated[Given, text("--spec", "FILE", "A TOML file of the above; flags win.")] = None,
    out: Annotated[Given, text("--out", "DIRECTORY", f"Page and tables; {OUT} if left out.")] = None,
    as_json: Json = False,
    no_progress: Annotated[bool, typer.Option("--no-progress", help="No progress bar.")] = False,
) -> None:
    """Run algorithms side by side at equal sample gradients; write one page and Parquet tables.

    Without arguments: every algorithm on four problems, with default settings.
    """
    with refusing("compare"):
        found = _compared(context.params)
    if as_json:
        typer.echo(json.dumps(found.to_dict(), indent=2, allow_nan=False))
    else:
        from normstorm.report import compare_terminal as compare_tables

        print_parts(compare_tables.report(found))


def _compared(given: dict[str, Any]) -> Any:
    """Everything that can be refused without work is refused first; files come last, the page after the tables."""
    asked = _asked(given)
    place = _directory(given["out"])
    import jax

    jax.config.update("jax_enable_x64", True)  # type: ignore[no-untyped-call]
    from normstorm.lab.compare.board import board
    from normstorm.lab.compare.request import CompareRequest
    from normstorm.lab.compare.tables import SPEC, TABLES, Comparison, parquet
    from normstorm.report import compare_page

    from . import listings as catalogue

    wanted = (
        CompareRequest.from_dict(asked) if given["spec"] is None else CompareRequest.from_file(given["spec"], asked)
    )
    problems = [catalogue.find(name)[0] for name in wanted.problems]
    started, boards = time.monotonic(), []
    with _progress(not given["no_progress"]) as progress:
        for name, problem in zip(wanted.problems, problems, strict=True):
            with catalogue.own_code(name):
                boards.append(board(wanted, name, problem, progress=progress))
    seconds = time.monotonic() - started
    found = Comparison(wanted, tuple(boards), seconds, datetime.now().astimezone(), str(place / PAGE))
    content = {f"{name}.parquet": parquet(found, name) for name in TABLES}
    content |= {SPEC: wanted.to_toml().encode("utf-8"), PAGE: compare_page.page(found).encode("utf-8")}
    try:
        place.mkdir(parents=given["out"] is None, exist_ok=True)
        for name, written in content.items():
            files.write(place / name, written)
    except OSError as error:
        raise ValueError(f"out must be a writable directory; got {place} ({error.strerror})") from None
    return found


def _asked(given: dict[str, Any]) -> dict[str, Any]:
    """Flags that were given, as values of a spec."""
    found: dict[str, Any] = {name: to_whole(name, given[name]) for name in ("budget", "seeds")}
    found |= {name: to_whole(name.replace("_", "-"), given[name]) for name in ("tune_seeds", "first_seed")}
    found |= {name: _listed(given[name]) for name in ("problems", "algorithms")}
    if given["targets"] is not None:
        found["targets"] = [to_number("targets", part) for part in _listed(given["targets"]) or []]
    if given["tune"]:
        found["tune"] = True
    return {name: value for name, value in found.items() if value is not None}


def _listed(given: Given) -> list[str] | None:
    return None if given is None else [part.strip() for part in given.split(",")]


def _directory(given: Given) -> Path:
    """Where everything goes: a directory that is there, or that can be made in one that is."""
    path = OUT if given is None else Path(given)
    above = next(p for p in (path, *path.parents) if p.exists())
    deep = given is not None and not path.exists() and above != path.parent
    if given == "" or deep or not above.is_dir() or not os.access(above, os.W_OK):
        shown = "an empty name" if given == "" else path
        raise ValueError(f"out must be a writable directory, or lie in one; got {shown}")
    return path


@contextmanager
def _progress(wanted: bool) -> Iterator[Any]:
    """A bar for every problem and stage, on the terminal's other channel; None if it is not wanted."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    if not (wanted and console.is_terminal):
        yield None
        return
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console) as bars:
        tasks: dict[str, Any] = {}

        def show(place: str, what: str, done: int, total: int) -> None:
            name = f"{place}: {what}"
            if name not in tasks:
                tasks[name] = bars.add_task(name, total=total)
            bars.update(tasks[name], completed=done)

        yield show
