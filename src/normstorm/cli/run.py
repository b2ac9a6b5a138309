"""The command `normstorm run`."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from normstorm._shared import files
from normstorm.report.requests import RunRequest

from .options import Params, given, parsed, with_options
from .output import JSON_HELP, NO_PROGRESS_HELP, exit_on_error, show

if TYPE_CHECKING:
    from normstorm.report.run_report import RunReport

DEFAULT_REPORT = Path("build/run.html")
UNANSWERED = 3  # the exit code where the page is written and the target is not certified, or what it rests on is false


@dataclass(frozen=True)
class RunInvocation:
    """What belongs to one call and not to what is asked: no number depends on it."""

    checkpoint: Annotated[str | None, "Resumed if it exists, kept up to date.", "FILE"] = None
    report: Annotated[str | None, f"The page; {DEFAULT_REPORT} if left out.", "FILE"] = None
    json: Annotated[bool, JSON_HELP] = False
    no_progress: Annotated[bool, NO_PROGRESS_HELP] = False

    @property
    def page(self) -> Path:
        page = files.page_path(self.report, DEFAULT_REPORT)
        if self.checkpoint is not None and page.resolve() == Path(self.checkpoint).resolve():
            raise ValueError(f"report must be another file than the checkpoint; got {page} for both")
        return page

    def left(self) -> str:
        """What an interruption leaves of the work."""
        if self.checkpoint is None:
            return "nothing is kept, only a run with --checkpoint FILE can be resumed"
        if os.path.exists(self.checkpoint):
            return f"the same command resumes from {self.checkpoint}"
        return f"the run had not begun, so there is no {self.checkpoint} yet and the same command starts anew"


@with_options(RunRequest, RunInvocation)
def run(params: Params) -> None:
    """Find a point with a certificate of its gradient norm, for many seeds, and write a page.

    Give a problem (normstorm problems lists them) and one of --target and --budget. Without any: a robust regression.
    The exit code is 0 with a certified answer, 3 if the target was not certified, if the answer is an estimate or if
    samples contradict the stated constants, 2 if the question was refused.
    """
    call = parsed(RunInvocation, params)
    with exit_on_error("run", call.left):
        asked = given(RunRequest, params)
        if "problem" in asked:
            _check_name(asked["problem"])
        request, defaults = RunRequest.from_options(asked)
        found = _solved(request, defaults, call)
    from normstorm.report import terminal

    show(found.to_dict, lambda: terminal.run_parts(found), as_json=call.json)
    if not found.answered:
        raise typer.Exit(UNANSWERED)


def _check_name(problem: str) -> None:
    """A misspelt name comes before what is missing: who corrects the latter first would only then hear of it."""
    from . import problem_specs

    problem_specs.check_spec(problem)


def _solved(request: RunRequest, defaults: tuple[str, ...], call: RunInvocation) -> RunReport:
    """Everything that can be refused without work is refused first; the page is the last thing that is done."""
    page = call.page
    import jax

    jax.config.update("jax_enable_x64", True)  # type: ignore[no-untyped-call]
    from normstorm import solve
    from normstorm.report import html, run_page
    from normstorm.report.run_report import RunReport

    from . import problem_specs

    started = time.monotonic()
    problem, description = problem_specs.find(request.problem)
    if problem.is_exact or request.method == "race":
        html.prepare_library()
    with problem_specs.user_errors(request.problem):
        result = solve.minimize(problem, **request.question, progress=not call.no_progress, checkpoint=call.checkpoint)
    seconds = time.monotonic() - started
    date = datetime.now().astimezone()
    found = RunReport(problem, request, description, defaults, result, seconds, date, str(page))
    try:
        page.parent.mkdir(exist_ok=True)
        run_page.save(found, page)
    except OSError as error:
        raise ValueError(f"report must be a writable file; got {page} ({error.strerror})") from None
    return found
