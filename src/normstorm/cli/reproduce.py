"""The command `normstorm reproduce`: parse, check, print, and write the page last."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from normstorm._shared import files

from .commands import Json, refusing
from .options import Given, text

if TYPE_CHECKING:
    from normstorm.lab.claims import Finding

DEFAULT_REPORT = Path("build/reproduce.html")


def reproduce(
    only: Annotated[Given, text("--only", "NAME,...", "Only these claims.")] = None,
    report: Annotated[Given, text("--report", "FILE", f"The page; {DEFAULT_REPORT} if left out.")] = None,
    as_json: Json = False,
) -> None:
    """Check the paper's claims and some published experiments, and write a page.

    Takes some minutes. The exit code is 1 if a claim fails.
    """
    with refusing("reproduce", lambda: "no page is written"):
        found = _checked(only, report, as_json)
    if as_json:
        typer.echo(json.dumps(found, indent=2, allow_nan=False))
    if found["counts"]["fails"]:
        raise typer.Exit(1)


def _checked(only: Given, report: Given, as_json: bool) -> dict[str, Any]:
    """Everything that can be refused without work is refused first."""
    page = files.page(report, DEFAULT_REPORT)
    from normstorm.lab import claims
    from normstorm.report import reproduce_page as reproduction

    names = None if only is None else [name.strip() for name in only.split(",") if name.strip()]
    width = max(len(claim.name) for claim in claims.chosen(names))

    def tell(finding: Finding) -> None:
        line = f"{finding.claim.name:<{width}}  {finding.verdict:<10}  {finding.seconds:6.1f} s"
        typer.echo(line, err=as_json)

    found = reproduction.report(claims.reproduce(names, tell), datetime.now().astimezone())
    try:
        page.parent.mkdir(exist_ok=True)
        reproduction.save(found, page)
    except OSError as error:
        raise ValueError(f"report must be a writable file; got {page} ({error.strerror})") from None
    typer.echo(reproduction.counted(found), err=as_json)
    typer.echo(f"report: {page}", err=as_json)
    return found
