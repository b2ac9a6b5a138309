"""The command `normstorm`: parse, call, print."""

from __future__ import annotations

import json
import os
import sys
import tomllib
from pathlib import Path
from typing import Annotated, Any

import typer

from normstorm import __version__
from normstorm.theory.constants import Constants
from normstorm.theory.plan import Plan
from normstorm.theory.planner.planner import other_rule
from normstorm.theory.planner.planner import plan as make_plan

from . import commands
from . import compare as compare_command
from . import reproduce as reproduce_command
from .options import Given, number, sentence, text, to_number, to_whole, whole

NEEDED = ("L0", "L1", "sigma0", "sigma1", "gap")
KEYS = (*NEEDED, "grad-norm", "noise")

app = typer.Typer(name="normstorm", add_completion=False)
app.command("run")(commands.run)
app.command("compare")(compare_command.compare)
app.command("problems")(commands.problems)
app.command("algorithms")(commands.algorithms)
app.command("reproduce")(reproduce_command.reproduce)


def main() -> None:
    """Run the command; whatever the parser refuses is one sentence and exit code 2."""
    try:
        code = app(prog_name="normstorm", standalone_mode=False)
        sys.stdout.flush()
    except typer.TyperException as error:
        known = [command.name for command in app.registered_commands]
        who = f"normstorm {sys.argv[1]}" if sys.argv[1:2] and sys.argv[1] in known else "normstorm"
        typer.echo(f"{who}: {error.format_message()}", err=True)
        code = error.exit_code
    except typer.Abort:
        code = commands.INTERRUPTED
    except OSError as error:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115  nothing more can be written to the old one
        typer.echo(f"normstorm: output must be writable; got {error.strerror}", err=True)
        code = 2
    sys.exit(code)


def process() -> None:
    """`main` for a process of its own, whose interruption does not wait for threads that still compile.

    They would find nothing left to work on, and crash.
    """
    try:
        main()
    except SystemExit as end:
        if end.code != commands.INTERRUPTED:
            raise
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(commands.INTERRUPTED)


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


@app.command("plan")
def plan_command(
    context: typer.Context,
    L0: Annotated[Given, number("--L0", "Smoothness, constant part.")] = None,
    L1: Annotated[Given, number("--L1", "Smoothness, per unit of gradient norm.")] = None,
    sigma0: Annotated[Given, number("--sigma0", "Noise, constant part.")] = None,
    sigma1: Annotated[Given, number("--sigma1", "Noise, per unit of gradient norm.")] = None,
    gap: Annotated[Given, number("--gap", "F(x1) - F*, or an upper bound.")] = None,
    grad_norm: Annotated[Given, number("--grad-norm", "Norm of grad F(x1), if known.")] = None,
    noise: Annotated[Given, text("--noise", "SENSE", "almost-sure or mean-square.")] = None,
    constants: Annotated[Given, text("--constants", "FILE", "TOML file of the above.")] = None,
    target: Annotated[Given, number("--target", "Bound to reach, at the least cost.")] = None,
    horizon: Annotated[Given, whole("--horizon", "Number T of iterations.")] = None,
    budget: Annotated[Given, whole("--budget", "Sample gradients to spend.")] = None,
    confidence: Annotated[Given, number("--confidence", "Probability; 0.99 if left out.")] = None,
    expectation: Annotated[bool, typer.Option("--expectation", help="Bound the mean.")] = False,
    rule: Annotated[Given, text("--rule", "RULE", "sharp (if left out) or paper.")] = None,
    batch: Annotated[Given, whole("--batch", "Batch K.")] = None,
    sub_batch: Annotated[Given, whole("--sub-batch", "Sub-batch k <= K.")] = None,
    certificate: Annotated[Given, text("--certificate", "NAME", "Use only this one.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    chart: Annotated[Given, text("--chart", "FILE", "Draw .html, .svg, .png or .pdf.")] = None,
) -> None:
    """Choose beta, eta, T, K and k, with a proven bound on the average gradient norm.

    Give the constants and one of --target, --horizon and --budget.
    """
    try:
        plan, comparison = _answer(context.params)
    except ValueError as error:
        typer.echo(f"normstorm plan: {sentence(error)}", err=True)
        raise typer.Exit(2) from None
    if as_json:
        found = plan.to_dict() | {"comparison": comparison}
        typer.echo(json.dumps(found, indent=2, allow_nan=False))
    else:
        _print(plan, comparison, chart)


def _answer(given: dict[str, Any]) -> tuple[Plan, dict[str, Any]]:
    """The plan and its comparison; the chart, if one is asked for, is drawn on the way."""
    question = _question(given)
    constants = _constants(given)
    path = _chart_path(given["chart"])
    rule, certificate = "sharp" if given["rule"] is None else given["rule"], given["certificate"]
    plan = make_plan(constants, rule=rule, certificate=certificate, **question)
    comparison = other_rule(plan, **question)
    if path is not None:
        _draw(plan, path, question["target"], certificate)
    return plan, comparison


def _question(given: dict[str, Any]) -> dict[str, Any]:
    confidence = to_number("confidence", given["confidence"])
    if given["expectation"] and confidence is not None:
        raise ValueError(f"confidence must be left out with --expectation; got confidence={confidence}")
    if not given["expectation"] and confidence is None:
        confidence = 0.99
    integers = ("horizon", "budget", "batch", "sub_batch")
    return {
        "target": to_number("target", given["target"]),
        "confidence": confidence,
        **{name: to_whole(name, given[name]) for name in integers},
    }


def _constants(given: dict[str, Any]) -> Constants:
    values = {} if given["constants"] is None else _from_file(given["constants"])
    flags = {name: to_number(name, given[name]) for name in (*NEEDED, "grad_norm")}
    flags["noise"] = given["noise"]
    values |= {name: value for name, value in flags.items() if value is not None}
    if missing := [name for name in NEEDED if name not in values]:
        raise ValueError(
            f"{', '.join(NEEDED)} must all be given, as flags or in a --constants file; missing {', '.join(missing)}"
        )
    return Constants(**values)


def _from_file(file: str) -> dict[str, Any]:
    try:
        table = tomllib.loads(Path(file).read_text(encoding="utf-8"))
    except OSError as error:
        reason = error.strerror
        shown = file if file else "an empty name"
        raise ValueError(f"constants must be a readable file; got {shown} ({reason})") from None
    except RecursionError:
        raise ValueError(f"constants must be a TOML file of numbers; got {file} (nested too deeply)") from None
    except ValueError as error:
        raise ValueError(f"constants must be a TOML file; got {file} ({error})") from None
    for key, value in table.items():
        if key not in KEYS:
            raise ValueError(f"keys of {file} must be among {', '.join(KEYS)}; got {key}")
        wanted, kind = (str, "a string") if key == "noise" else (int | float, "a number")
        if isinstance(value, bool) or not isinstance(value, wanted):
            raise ValueError(f"{key} in {file} must be {kind}; got {key}={value!r}")
    return {key.replace("-", "_"): value for key, value in table.items()}


def _chart_path(file: str | None) -> Path | None:
    if file is None:
        return None
    from normstorm.report import charts

    return charts.checked_path(file)


def _draw(plan: Plan, path: Path, target: float | None, certificate: str | None) -> None:
    from normstorm.report import charts

    try:
        charts.save(charts.bound_chart(plan, target=target, certificate=certificate), path)
    except OSError as error:
        raise ValueError(f"chart must be a writable file; got {path} ({error.strerror})") from None


def _print(plan: Plan, comparison: dict[str, Any], chart: str | None) -> None:
    from rich.console import Console

    from normstorm.report import terminal as tables

    console = Console(highlight=False)
    for part in tables.report(plan, comparison):
        console.print(part)
        console.print()
    if chart is not None:
        console.print(f"chart: {chart}", soft_wrap=True, markup=False)
