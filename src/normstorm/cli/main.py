"""The command `normstorm`: the app, and how it ends; process.py is the process around it."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from normstorm import __version__

from . import algorithms, compare, estimate, plan, problems, reproduce, run
from .process import INTERRUPTED

app = typer.Typer(name="normstorm", add_completion=False)
COMMANDS = {
    "run": run.run,
    "compare": compare.compare,
    "problems": problems.problems,
    "algorithms": algorithms.algorithms,
    "estimate": estimate.estimate_constants,
    "reproduce": reproduce.reproduce,
    "plan": plan.plan,
}
for name, command in COMMANDS.items():
    app.command(name)(command)


def main() -> None:
    """Run the command; whatever the parser refuses is one sentence and exit code 2."""
    try:
        code = app(prog_name="normstorm", standalone_mode=False)
        sys.stdout.flush()
    except typer.TyperException as error:
        who = f"normstorm {sys.argv[1]}" if sys.argv[1:2] and sys.argv[1] in COMMANDS else "normstorm"
        typer.echo(f"{who}: {error.format_message()}", err=True)
        code = error.exit_code
    except typer.Abort:
        code = INTERRUPTED
    except OSError as error:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115  nothing more can be written to the old one
        typer.echo(f"normstorm: output must be writable; got {error.strerror}", err=True)
        code = 2
    sys.exit(code)


@app.callback(invoke_without_command=True)
def common(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """Normalized STORM: parameters and a proven bound from what is known of a problem."""
    if version:
        typer.echo(f"normstorm {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
