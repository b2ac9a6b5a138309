"""What commands are asked, as values: options, JSON, the command that repeats it and its words come from the fields.

A field is Annotated[type, help] or Annotated[type, help, METAVAR]. Its option is --its-name; a metavar in brackets
makes it a positional argument. Whatever is a frozen dataclass of such fields can be a command's request.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from types import NoneType
from typing import Annotated, Any, NamedTuple, get_args, get_type_hints

from normstorm._shared import validate
from normstorm.theory.plan import DEFAULT_CONFIDENCE

DEFAULT_PROBLEM, DEFAULT_SEEDS = "dro-regression", 32
DEFAULT_TARGETS = {"race": 0.0135, "plan": 0.1}  # a tenth of the first gradient norm; what a plan reaches in seconds
OF_A_PLAN, OF_A_RACE = ("choose", "samples", "stop"), ("algorithm",)
MOST_SEEDS, MOST_SAMPLES = 100_000, 10**8
METAVARS = {float: "NUMBER", int: "INTEGER", tuple[str, ...]: "NAMES", tuple[float, ...]: "NUMBERS", bool: None}


class Option(NamedTuple):
    """A field as the command line has it; the kind is the field's type without None."""

    name: str
    kind: Any
    help: str
    metavar: str | None

    @property
    def is_positional(self) -> bool:
        return self.metavar is not None and self.metavar.startswith("[")

    @property
    def flag(self) -> str:
        return f"--{self.name.replace('_', '-')}"

    def words(self, value: Any) -> list[str]:
        """How the value is given on a command line."""
        if value is None or value is False:
            return []
        if self.is_positional or value is True:
            return [value if self.is_positional else self.flag]
        return [self.flag, ",".join(map(str, value)) if isinstance(value, tuple) else str(value)]


def options(request: type) -> list[Option]:
    """One for every field."""
    hints = get_type_hints(request, include_extras=True)
    return [_option(field.name, hints[field.name]) for field in fields(request)]


def _option(name: str, hint: Any) -> Option:
    held, help, *metavar = get_args(hint)
    kind = held if held in METAVARS else next((k for k in get_args(held) if k is not NoneType), held)
    return Option(name, kind, help, metavar[0] if metavar else METAVARS[kind])


def command(name: str, request: Any, **beside: str) -> str:
    """The line that asks for the same, whatever the defaults become; `beside` are options beside the request's."""
    words = [word for option in options(type(request)) for word in option.words(getattr(request, option.name))]
    words += [word for flag, value in beside.items() for word in (f"--{flag}", value)]
    return shlex.join(["normstorm", name, *words])


@dataclass(frozen=True)
class RunRequest:
    """What a run is asked; `problem` is a name of the registry or path/to/file.py:name."""

    problem: Annotated[str, "A name, or path/to/file.py:name.", "[PROBLEM]"] = DEFAULT_PROBLEM
    target: Annotated[float | None, "Bound to reach, at the least cost."] = None
    budget: Annotated[int | None, "Sample gradients to spend."] = None
    confidence: Annotated[float, f"Probability; {DEFAULT_CONFIDENCE} if left out."] = DEFAULT_CONFIDENCE
    seeds: Annotated[int, f"Independent runs; {DEFAULT_SEEDS} if left out."] = DEFAULT_SEEDS
    method: Annotated[str, "race: a fast method, tested; plan: proven before the run.", "METHOD"] = "race"
    algorithm: Annotated[str | None, "Of a race; kalman_storm if left out.", "NAME"] = None
    choose: Annotated[str, "Of a plan: two-phase, random, smallest or last.", "RULE"] = "two-phase"
    samples: Annotated[int | None, "Of a plan: fresh samples at each certified point."] = None
    stop: Annotated[
        str, "Of a plan: plan, or certified: when the certificate along the run reaches the target.", "RULE"
    ] = "plan"

    @classmethod
    def from_options(cls, given: Mapping[str, Any]) -> tuple[RunRequest, tuple[str, ...]]:
        """The request, checked, and the names of the answers that were left to the command."""
        request = cls(**given)
        if request.stop != "plan" and "method" not in given:
            request = replace(request, method="plan")
        left = [field.name for field in fields(cls) if field.name not in given and field.default is not None]
        if request.problem == DEFAULT_PROBLEM and request.target is None and request.budget is None:
            request, left = replace(request, target=DEFAULT_TARGETS.get(request.method)), [*left, "target"]
        request.check()
        return request, tuple(name for name in left if name in request.shown)

    def check(self) -> None:
        if (self.target is None) == (self.budget is None) and (self.target is None or self.method != "race"):
            both = "neither" if self.target is None else f"target={self.target}, budget={self.budget}"
            raise ValueError(f"exactly one of target, budget must be given; got {both}")
        for name, least, most in (("seeds", 1, MOST_SEEDS), ("samples", 2, MOST_SAMPLES)):
            if getattr(self, name) is not None:
                validate.whole("run", name, getattr(self, name), least, most)

    @property
    def shown(self) -> dict[str, Any]:
        """Every field but those of the other method."""
        other = OF_A_PLAN if self.method == "race" else OF_A_RACE
        return {field.name: getattr(self, field.name) for field in fields(self) if field.name not in other}

    @property
    def question(self) -> dict[str, Any]:
        """What `minimize` is asked of the problem: every other field, so that none can be forgotten."""
        return {field.name: getattr(self, field.name) for field in fields(self) if field.name != "problem"}


@dataclass(frozen=True)
class ReproduceRequest:
    only: Annotated[tuple[str, ...] | None, "Only these claims.", "NAME,..."] = None
