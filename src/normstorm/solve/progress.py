"""A bar with rate and remaining time."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any


class Progress:
    """A rich bar on a terminal, a caller's function, or nothing."""

    def __init__(self, wanted: bool | Callable[[int, int], None]) -> None:
        self.wanted = wanted
        self.bar: Any = None

    def __enter__(self) -> Callable[[int, int], None] | None:
        if callable(self.wanted):
            return self.wanted
        if not self.wanted or not os.isatty(2):
            return None
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (TextColumn("steps"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[rate]}"))
        self.bar = Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True)
        self.bar.start()
        task = self.bar.add_task("run", total=None, rate="")

        def show(done: int, steps: int) -> None:
            speed = self.bar.tasks[0].speed
            rate = "" if speed is None else f"{speed:,.0f} steps/s"
            self.bar.update(task, total=steps, completed=done, rate=rate)

        return show

    def __exit__(self, *_: object) -> None:
        if self.bar is not None:
            self.bar.stop()
