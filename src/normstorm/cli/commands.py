"""The commands that run or list something: parse, call, print."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from normstorm._shared import files

from .options import Given, number, sentence, text, to_number, to_whole, whole

DEFAULT_PROBLEM, DEFAULT_TARGET, DEFAULT_SEEDS = "dro-regression", 0.1, 32
DEFAULTS = {"confidence": 0.99, "seeds": DEFAULT_SEEDS, "choose": "two-phase"}
DEFAULT_REPORT = Path("build/run.html")
MOST_SEEDS = 100_000
INTERRUPTED = 130
Problem = Annotated[Given, typer.Argument(metavar="[PROBLEM]", help="A name, or path/to/file.py:name.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def run(
    context: typer.Context,
    problem: Problem = None,
    target: Annotated[Given, number("--target", "Bound to reach, at the least cost.")] = None,
    budget: Annotated[Given, whole("--budget", "Sample gradients to spend.")] = None,
    confidence: Annotated[Given, number("--confidence", "Probability; 0.99 if left out.")] = None,
    seeds: Annotated[Given, whole("--seeds", f"Independent runs; {DEFAULT_SEEDS} if left out.")] = None,
    choose: Annotated[Given, text("--choose", "RULE", "two-phase, random, smallest or last.")] = None,
    samples: Annotated[Given, whole("--samples", "Fresh samples at each certified point.")] = None,
    checkpoint: Annotated[Given, text("--checkpoint", "FILE", "Resumed if it exists, kept up to date.")] = None,
    report: Annotated[Given, text("--report", "FILE", f"The page; {DEFAULT_REPORT} if left out.")] = None,
    as_json: Json = False,
    no_progress: Annotated[bool, typer.Option("--no-progress", help="No progress bar.")] = False,
) -> None:
    """Plan, run Normalized STORM for many seeds, choose a point, certify it, write a page.

    Give a problem (normstorm problems lists them) and one of --target and --budget. Without any: a robust regression.
    """
    with refusing("run", lambda: _left(checkpoint)):
        found = _solved(context.params)
    if as_json:
        typer.echo(json.dumps(found.to_dict(), indent=2, allow_nan=False))
    else:
        from normstorm.report import terminal as tables

        print_parts(tables.outcome(found))


def problems(as_json: Json = False) -> None:
    """List the built-in problems with their proven constants at the default start."""
    with refusing("problems"):
        from normstorm.report import terminal as tables

        from . import listings as catalogue

        found = catalogue.problems()
    _show(found, as_json, tables.problems)


def algorithms(as_json: Json = False) -> None:
    """List the algorithms of the engine with their sources and costs."""
    with refusing("algorithms"):
        from normstorm.report import terminal as tables

        from . import listings as catalogue

        found = catalogue.algorithms()
    _show(found, as_json, tables.algorithms)


@contextmanager
def refusing(who: str, left: Callable[[], str] = lambda: "nothing is kept") -> Any:
    """Whatever the library refuses is one sentence and exit code 2; an interruption says what is `left` of the work."""
    try:
        yield
    except ValueError as error:
        typer.echo(f"normstorm {who}: {sentence(error)}", err=True)
        raise typer.Exit(2) from None
    except KeyboardInterrupt:
        typer.echo(f"normstorm {who}: interrupted; {left()}", err=True)
        raise typer.Exit(INTERRUPTED) from None


def _left(checkpoint: Given) -> str:
    if checkpoint is None:
        return "nothing is kept, only a run with --checkpoint FILE can be resumed"
    if os.path.exists(checkpoint):
        return f"the same command resumes from {checkpoint}"
    return f"the run had not begun, so there is no {checkpoint} yet and the same command starts anew"


def _solved(given: dict[str, Any]) -> Any:
    """Everything that can be refused without work is refused first; the page is the last thing that is done."""
    place = DEFAULT_PROBLEM if given["problem"] is None else given["problem"]
    question, defaults = _question(given, place)
    page = files.page(given["report"], DEFAULT_REPORT)
    if given["checkpoint"] is not None and page.resolve() == Path(given["checkpoint"]).resolve():
        raise ValueError(f"report must be another file than the checkpoint; got {page} for both")
    import jax

    jax.config.update("jax_enable_x64", True)  # type: ignore[no-untyped-call]
    from normstorm import solve
    from normstorm.report import run_page as report
    from normstorm.report.run_report import Outcome

    from . import listings as catalogue

    started = time.monotonic()
    problem, description = catalogue.find(place)
    with catalogue.own_code(place):
        result = solve.minimize(problem, **question, progress=not given["no_progress"], checkpoint=given["checkpoint"])
    seconds = time.monotonic() - started
    date = datetime.now().astimezone()
    found = Outcome(problem, place, description, question, defaults, result, seconds, date, str(page))
    try:
        page.parent.mkdir(exist_ok=True)
        report.save(found, page)
    except OSError as error:
        raise ValueError(f"report must be a writable file; got {page} ({error.strerror})") from None
    return found


def _question(given: dict[str, Any], place: str) -> tuple[dict[str, Any], tuple[str, ...]]:
    """What is asked, and the names of the answers that were left to the command."""
    asked: dict[str, Any] = {
        "target": to_number("target", given["target"]),
        "budget": to_whole("budget", given["budget"]),
        "confidence": to_number("confidence", given["confidence"]),
        "seeds": to_whole("seeds", given["seeds"]),
        "choose": given["choose"],
        "samples": to_whole("samples", given["samples"]),
    }
    chosen = dict(DEFAULTS)
    if place == DEFAULT_PROBLEM and asked["budget"] is None:
        chosen["target"] = DEFAULT_TARGET
    left = tuple(name for name in chosen if asked[name] is None)
    asked |= {name: chosen[name] for name in left}
    if (asked["target"] is None) == (asked["budget"] is None):
        both = "neither" if asked["target"] is None else f"target={asked['target']}, budget={asked['budget']}"
        raise ValueError(f"exactly one of target, budget must be given; got {both}")
    _within("seeds", asked["seeds"], 1, MOST_SEEDS)
    if asked["samples"] is not None:
        _within("samples", asked["samples"], 2, 10**8)
    return asked, ("problem", *left) if given["problem"] is None else left


def _within(name: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise ValueError(f"{name} must be an integer in [{least}, {most}]; got {name}={value}")


def _show(found: list[dict[str, Any]], as_json: bool, table: Callable[[list[dict[str, Any]]], Iterable[Any]]) -> None:
    if as_json:
        typer.echo(json.dumps(found, indent=2, allow_nan=False))
    else:
        print_parts(table(found))


def print_parts(parts: Iterable[Any]) -> None:
    from rich.console import Console

    console = Console(highlight=False)
    for i, part in enumerate(parts):
        if i:
            console.print()
        console.print(part, soft_wrap=isinstance(part, str), markup=False)
