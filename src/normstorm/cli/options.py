"""Options of the command: everything arrives as text, so that every refusal has the same form."""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation
from typing import Any

import typer

MOST_DIGITS = 30
Given = str | None


def text(flag: str, kind: str, meaning: str) -> Any:
    return typer.Option(flag, metavar=kind, help=meaning, show_default=False)


def number(flag: str, meaning: str) -> Any:
    return text(flag, "NUMBER", meaning)


def whole(flag: str, meaning: str) -> Any:
    return text(flag, "INTEGER", meaning)


def to_number(name: str, given: Given) -> float | None:
    """A float; a positive number too small for one is refused, as 0 would say something else."""
    if given is None:
        return None
    try:
        value = float(given)
    except ValueError:
        raise ValueError(f"{name} must be a number; got {name}={given}") from None
    if value == 0 and re.search("[1-9]", re.split("[eE]", given)[0]):
        raise ValueError(f"{name} must be 0 or a number that double precision can hold; got {name}={given}")
    return value


def to_whole(name: str, given: Given) -> int | None:
    """An integer, in scientific notation too where that is exact: 2e5, not 1.5."""
    if given is None:
        return None
    try:
        value = Decimal(given)
    except InvalidOperation:
        value = Decimal("nan")
    if not value.is_finite() or value.adjusted() >= MOST_DIGITS or value % 1 != 0:
        allowed = f"an integer of at most {MOST_DIGITS} digits, such as 200000 or 2e5"
        raise ValueError(f"{name} must be {allowed}; got {name}={given}")
    return int(value)


def sentence(error: ValueError) -> str:
    """The command names itself; the name of the function that refused is left out."""
    text = str(error).replace("or None for a guarantee in expectation", "or --expectation in its place")
    return re.sub(r"^[A-Za-z_]+: ", "", text)
