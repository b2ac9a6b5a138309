"""A bar with rate and remaining time."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any


class Progress:
    """A rich bar on a terminal, a caller's function, or nothing.

    unit   what is counted: steps, or "race": sample gradients, of which a race needs far fewer than it may ask, so that
           what it has seen so far is shown instead of a bar
    """

    def __init__(self, wanted: bool | Callable[[int, int], None], unit: str = "steps") -> None:
        self.wanted, self.unit = wanted, unit
        self.bar: Any = None

    def __enter__(self) -> Callable[..., None] | None:
        if callable(self.wanted):
            given = self.wanted
            return lambda done, most, note="": given(done, most)
        if not self.wanted or not os.isatty(2):
            return None
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        bar = TextColumn("steps"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[note]}")
        columns = (TextColumn("{task.fields[note]}"),) if self.unit == "race" else (*bar, TimeRemainingColumn())
        self.bar = Progress(*columns, console=Console(stderr=True), transient=True)
        self.bar.start()
        task = self.bar.add_task("run", total=None, note="")

        def show(done: int, most: int, note: str = "") -> None:
            speed = self.bar.tasks[0].speed
            rate = "" if speed is None else f"{speed:,.0f} steps/s"
            words = f"{done:,} sample gradients: {note}" if self.unit == "race" else rate
            self.bar.update(task, total=most, completed=done, note=words)

        return show

    def __exit__(self, *_: object) -> None:
        if self.bar is not None:
            self.bar.stop()
