"""What all commands do with an answer, a refusal and an interruption."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from .process import INTERRUPTED, interrupted, on_interruption

JSON_HELP, NO_PROGRESS_HELP = "Print one JSON object.", "No progress bar."


@dataclass(frozen=True)
class ListInvocation:
    """A command that only lists."""

    json: Annotated[bool, JSON_HELP] = False


@contextmanager
def exit_on_error(command: str, left: Callable[[], str] = lambda: "nothing is kept") -> Iterator[None]:
    """Whatever the library refuses is one sentence and exit code 2; an interruption says what is `left` of the work."""
    on_interruption(lambda: f"normstorm {command}: interrupted; {left()}")
    try:
        yield
    except ValueError as error:
        typer.echo(f"normstorm {command}: {_sentence(error)}", err=True)
        raise typer.Exit(2) from None
    except KeyboardInterrupt:
        if sentence := interrupted():
            typer.echo(sentence, err=True)
        raise typer.Exit(INTERRUPTED) from None


def _sentence(error: ValueError) -> str:
    """The command names itself; the name of the function that refused is left out."""
    text = str(error).replace("or None for a guarantee in expectation", "or --expectation in its place")
    return re.sub(r"^[A-Za-z_]+: ", "", text)


def show(found: Callable[[], Any], parts: Callable[[], Iterable[Any]], *, as_json: bool) -> None:
    """One JSON object, or the parts on the terminal with an empty line between them; the other one is not made."""
    if as_json:
        typer.echo(json.dumps(found(), indent=2, allow_nan=False))
        return
    from rich.console import Console

    console = Console(highlight=False)
    for i, part in enumerate(parts()):
        if i:
            console.print()
        console.print(part, soft_wrap=isinstance(part, str), markup=False)
