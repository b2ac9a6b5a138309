"""Findings as one report: JSON-ready, as a page, and as the text of the documentation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from normstorm._shared import files
from normstorm._shared.versions import versions
from normstorm.lab.claims import FAILS, HOLDS, OPEN, Finding

from . import curves, html
from .html import Row
from .requests import ReproduceRequest, command

Report = Mapping[str, Any]
RULES = ("rule", "judged", "holds")
SUMMARY = ("name", "claim", "verdict", "seconds")
EVERYTHING = ReproduceRequest()
MARKS = {True: "yes", False: "no"}


def report(findings: Sequence[Finding], date: datetime) -> dict[str, Any]:
    """Everything that page, terminal and documentation show."""
    claims = [finding.to_dict() for finding in findings]
    verdicts = [claim["verdict"] for claim in claims]
    return {
        "date": date.date().isoformat(),
        "seconds": round(sum(finding.seconds for finding in findings), 1),
        "counts": {verdict: verdicts.count(verdict) for verdict in (HOLDS, FAILS, OPEN)},
        "versions": versions(),
        "claims": claims,
    }


def counted(found: Report) -> str:
    """The number of claims and of verdicts in a sentence."""
    n = found["counts"]
    total = len(found["claims"])
    head = f"{total} claim{'s' * (total != 1)}: {n[HOLDS]} hold, {n[FAILS]} fail, {n[OPEN]} not judged"
    return f"{head}; {found['seconds']:.0f} seconds."


def save(found: Report, path: Path, request: ReproduceRequest) -> None:
    """Write the page; the file is whole or not there."""
    files.write_atomically(path, page(found, request))


def page(found: Report, request: ReproduceRequest = EVERYTHING) -> str:
    """The whole page, of templates/reproduce.html."""
    n = found["counts"]
    date = f"{datetime.fromisoformat(found['date']):%d %B %Y}"
    return html.render(
        "reproduce.html",
        f"normstorm reproduce: {date}",
        "The claims, checked",
        date,
        {c["name"]: curves.lines(c["chart"]).to_dict() for c in found["claims"] if c["chart"] is not None},
        tiles=[("hold", f"{n[HOLDS]}"), ("fail", f"{n[FAILS]}"), ("not judged", f"{n[OPEN]}")],
        summary_head=SUMMARY,
        summary=_summary(found),
        claims=[_section(claim) for claim in found["claims"]],
        versions=[*found["versions"].items()],
        command=command("reproduce", request),
    )


def _section(claim: Mapping[str, Any]) -> dict[str, Any]:
    """What the template shows of one claim."""
    shown = {name: claim[name] for name in ("name", "title", "verdict", "statement", "place", "notes")}
    head = tuple(claim["rows"][0]) if claim["rows"] else ()
    rows = {"rows": _cells(claim["rows"]), "row_head": head, "rules": _rules(claim), "rule_head": RULES}
    return shown | rows | {"figures": _figures(claim)}


def _summary(found: Report) -> list[Row]:
    return [(c["name"], c["title"], c["verdict"], f"{c['seconds']:.0f}") for c in found["claims"]]


def _rules(claim: Mapping[str, Any]) -> list[Row]:
    return [(r["words"], MARKS[r["judged"]], MARKS[r["holds"]]) for r in claim["rules"]]


def _figures(claim: Mapping[str, Any]) -> list[Row]:
    return [(name.replace("_", " "), shown(value)) for name, value in claim["figures"].items()]


def _cells(rows: Sequence[Mapping[str, Any]]) -> list[Row]:
    return [tuple(shown(value) for value in row.values()) for row in rows]


def shown(value: Any) -> str:
    """A number in four digits, from 1000 on without decimals; what was not finite is a dash."""
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.0f}" if 1000 <= abs(value) < 1e15 else f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def markdown(found: Report) -> str:
    """The text of the documentation's page."""
    return "\n".join(_markdown(found)).strip()


def _markdown(found: Report) -> Iterator[str]:
    yield counted(found)
    yield ""
    yield from _grid(SUMMARY, _summary(found))
    for claim in found["claims"]:
        yield from ("", f"## {claim['title']}", "")
        yield f"{claim['statement']} ({claim['place']}.) **Verdict: {claim['verdict']}.**"
        yield ""
        yield from _grid(RULES, _rules(claim))
        yield ""
        if claim["rows"]:
            yield from _grid(tuple(claim["rows"][0]), _cells(claim["rows"]))
            yield ""
        yield f"Figures: {', '.join(f'{name} {value}' for name, value in _figures(claim))}."
        for note in claim["notes"]:
            yield from ("", note)


def _grid(head: Row, rows: Sequence[Row]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield "|---" * len(head) + "|"
    yield from (f"| {' | '.join(row)} |" for row in rows)
