"""What terminal and page say of a race: the point, its certificate, and how it was reached."""

from __future__ import annotations

import math
from statistics import median
from typing import Any
from urllib.parse import quote

from normstorm.solve import Race
from normstorm.solve.beside import MEANINGS
from normstorm.solve.export import as_csv, as_json, named_numbers, shown_numbers
from normstorm.theory.plan import round_up

from .run_report import RunReport

Pair = tuple[str, str]
MOST_SHOWN = 24


def race_of(found: RunReport) -> Race:
    assert found.result.race is not None
    return found.result.race


def point_rows(found: RunReport) -> list[Pair]:
    """x, F(x) and why this point."""
    return [("x", shown_numbers(found.result.x, "--json")), *_of_point(found)]


def _of_point(found: RunReport) -> list[Pair]:
    result, race = found.result, race_of(found)
    value = "unknown: the problem gives gradients alone" if result.value is None else str(result.value)
    rows = [("F(x)", value)]
    if race.start_value is not None:
        rows.append(("F at the start", f"{race.start_value:.6g}"))
    if race.start_norm is not None:
        rows.append(("||grad F|| at the start", f"{race.start_norm:.4g}"))
    return [*rows, ("which", result.reason)]


def first_numbers(found: RunReport) -> tuple[list[Pair], str]:
    """The first numbers of x with their names, and in a sentence how many there are."""
    every = named_numbers(found.result.x)
    shown = [(name, f"{value:.8g}") for name, value in every[:MOST_SHOWN]]
    left = f"The first {MOST_SHOWN} of {len(every):,} numbers; all are in the files." if every[MOST_SHOWN:] else ""
    return shown, left


def beside_rows(found: RunReport) -> list[tuple[str, str, str]]:
    """What was asked beside what is counted: kind, number, and what for."""
    return [(name, f"{count:,}", MEANINGS[name]) for name, count in found.result.beside.items()]


def beside_sentence(found: RunReport) -> str:
    """The same for a terminal; empty if there is nothing."""
    parts = [f"{count:,} ({MEANINGS[name]})" for name, count in found.result.beside.items()]
    return f"Not counted above: {', '.join(parts)}." if parts else ""


def cost_rows(found: RunReport) -> list[Pair]:
    """Of the first seed, beside what was promised, and of all seeds."""
    race = race_of(found)
    tests = f"{race.tests} test{'' if race.tests == 1 else 's'}"
    rows = [(f"search by {race.algorithm}", _counted(race.search, race)), (tests, _counted(race.testing, race))]
    if race.promised_run:
        rows.append((f"{race.promised_by}, as promised", _counted(race.promised_run, race)))
    rows.append(("the returned point", _counted(race.cost, race)))
    if race.promise_cost is not None:
        rows.append((f"promised, by {race.promised_by}", _counted(race.promise_cost, race)))
    if race.plan_cost is not None:
        rows.append(("the plan alone would ask", _counted(race.plan_cost, race)))
        rows.append(("the plan / this race", f"{race.plan_cost / race.cost:,.0f}"))
    if len(race.costs) > 1:
        rows.append(
            (f"median, largest of {len(race.costs):,} seeds", f"{median(race.costs):,.0f}, {max(race.costs):,}")
        )
    return rows


def is_void(found: RunReport) -> bool:
    """Whether the certificate rests on constants that samples contradict, and with it those of all seeds."""
    certificate = found.result.certificate
    return certificate.passed and not certificate.certified


def seed_rows(found: RunReport) -> list[tuple[str, str, str]]:
    """What was observed at the points of all seeds beside what is certified of them."""
    race, asked = race_of(found), found.request.target
    reached = "" if asked is None else f"target {asked:g}"
    finite = [bound for bound in race.bounds if bound < math.inf]
    reaching = sum(bound <= asked for bound in finite) if asked is not None else len(finite)
    word, article = ("estimated", "an") if found.result.certificate.sense == "estimated" else ("certified", "a")
    certified = 0 if is_void(found) else reaching
    rows = [(f"seeds with {article} {word} point", f"{certified:,} of {len(race.bounds):,}", reached)]
    without = len(race.bounds) - len(finite)
    missing = f"and none for {without:,} of {len(race.bounds):,} seeds" if finite and without else ""
    largest = round_up(max(finite)) if finite else "there is none"
    rows.append((f"largest {'void' if is_void(found) else word} bound", largest, missing))
    if race.norms is not None:
        rows.append(("largest ||grad F(x)||, exact", round_up(max(race.norms)), "at most its bound, each"))
        rows.append(
            ("seeds above their bound", f"{race.violations:,} of {len(race.bounds):,}", "none, by the certificate")
        )
    return rows


def tiles(found: RunReport) -> list[Pair]:
    race, result = race_of(found), found.result
    mark = ", an estimate" if result.certificate.sense == "estimated" else ""
    mark = ", void" if is_void(found) else mark
    bound = result.certificate.upper_bound
    found_ = [(f"||grad F(x)|| is at most{mark}", round_up(bound) if bound < math.inf else "unknown")]
    if result.value is not None:
        found_.append(("F(x)", f"{result.value.value:.6g}"))
    found_.append(("sample gradients", f"{race.cost:,}"))
    if race.rows:
        found_.append(("passes over the data", f"{race.cost / race.rows:,.3g}"))
    if race.plan_cost is not None:
        found_.append(("the plan alone would ask", f"{race.plan_cost:,}"))
    return found_


def summary(found: RunReport) -> str:
    """One paragraph in words."""
    race, result = race_of(found), found.result
    parts = [
        f"{race.algorithm} on {found.request.problem}: {found.description}, {found.dimension:,} unknowns, "
        f"{len(race.costs):,} seeds in {found.seconds:.1f} seconds.",
        result.certificate.guarantee,
        f"It took {race.cost:,} sample gradients: {race.search:,} of the search and {race.testing:,} of its tests"
        + (f", and {race.promised_run:,} of what was promised." if race.promised_run else "."),
        result.promise,
    ]
    return " ".join(parts)


def _counted(cost: int, race: Race) -> str:
    return f"{cost:,}" if not race.rows else f"{cost:,} ({_passes(cost / race.rows)})"


def _passes(passes: float) -> str:
    shown = f"{passes:,.0f}" if passes >= 100 else f"{passes:.3g}"
    return f"{shown} pass{'' if shown == '1' else 'es'}"


def page_parts(found: RunReport) -> dict[str, Any]:
    """What the template is given beside what every run has."""
    files = (("csv", "text/csv", as_csv(found.result.x)), ("json", "application/json", as_json(found.result)))
    links = [(f"x.{end}", f"data:{kind};charset=utf-8,{quote(text)}") for end, kind, text in files]
    x, left = first_numbers(found)
    point: dict[str, Any] = {"x": x, "more_numbers": left, "point": _of_point(found), "downloads": links}
    return point | {"race": cost_rows(found), "beside": beside_rows(found), "seeds": seed_rows(found)}
