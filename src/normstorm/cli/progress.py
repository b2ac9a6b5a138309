"""Bars for a comparison; a single run has its own, in `normstorm.solve.progress`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def bars(wanted: bool) -> Iterator[Callable[[str, str, int, int], None] | None]:
    """A bar for every problem and stage, on the terminal's other channel; None if it is not wanted."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    if not (wanted and console.is_terminal):
        yield None
        return
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console) as shown:
        tasks: dict[str, Any] = {}

        def update(problem_spec: str, stage: str, done: int, total: int) -> None:
            name = f"{problem_spec}: {stage}"
            if name not in tasks:
                tasks[name] = shown.add_task(name, total=total)
            shown.update(tasks[name], completed=done)

        yield update
