"""The command `normstorm reproduce`: one line a claim while it works, and the page last."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from normstorm._shared import files
from normstorm.report.requests import ReproduceRequest

from .options import Params, parsed, with_options
from .output import JSON_HELP, exit_on_error, show

if TYPE_CHECKING:
    from normstorm.lab.claims import Finding

DEFAULT_REPORT = Path("build/reproduce.html")


@dataclass(frozen=True)
class ReproduceInvocation:
    """What belongs to one call and not to what is asked."""

    report: Annotated[str | None, f"The page; {DEFAULT_REPORT} if left out.", "FILE"] = None
    json: Annotated[bool, JSON_HELP] = False


@with_options(ReproduceRequest, ReproduceInvocation)
def reproduce(params: Params) -> None:
    """Check the paper's claims and some published experiments, and write a page.

    Takes some minutes. The exit code is 1 if a claim fails.
    """
    with exit_on_error("reproduce", lambda: "no page is written"):
        call = parsed(ReproduceInvocation, params)
        found = _checked(parsed(ReproduceRequest, params), call)
    if call.json:
        show(lambda: found, list, as_json=True)
    if found["counts"]["fails"]:
        raise typer.Exit(1)


def _checked(request: ReproduceRequest, call: ReproduceInvocation) -> dict[str, Any]:
    """Everything that can be refused without work is refused first."""
    page = files.page_path(call.report, DEFAULT_REPORT)
    from normstorm.lab import claims
    from normstorm.report import reproduce_page

    names = None if request.only is None else [name for name in request.only if name]
    width = max(len(claim.name) for claim in claims.chosen(names))

    def tell(finding: Finding) -> None:
        line = f"{finding.claim.name:<{width}}  {finding.verdict:<10}  {finding.seconds:6.1f} s"
        typer.echo(line, err=call.json)

    found = reproduce_page.report(claims.reproduce(names, tell), datetime.now().astimezone())
    try:
        page.parent.mkdir(exist_ok=True)
        reproduce_page.save(found, page, request)
    except OSError as error:
        raise ValueError(f"report must be a writable file; got {page} ({error.strerror})") from None
    typer.echo(reproduce_page.counted(found), err=call.json)
    typer.echo(f"report: {page}", err=call.json)
    return found
