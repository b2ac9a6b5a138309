"""A command's options are the fields of its requests; every option arrives as text, so that refusals have one form."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from decimal import Decimal, InvalidOperation
from typing import Annotated, Any, TypeVar

import typer

from normstorm.report.requests import Option, options

MOST_DIGITS = 30
Request = TypeVar("Request")
Params = Mapping[str, Any]  # what the parser found: text, or None for what was not given; flags are booleans


def with_options(*requests: type) -> Callable[[Callable[[Params], None]], Callable[..., None]]:
    """A command whose options are the fields of these dataclasses, in this order."""

    def decorate(function: Callable[[Params], None]) -> Callable[..., None]:
        def command(**params: Any) -> None:
            function(params)

        found = [_parameter(option) for request in requests for option in options(request)]
        command.__doc__ = function.__doc__
        command.__signature__ = inspect.Signature(found)  # type: ignore[attr-defined]
        command.__annotations__ = {}
        command.requests = requests  # type: ignore[attr-defined]
        return command

    return decorate


def _parameter(option: Option) -> inspect.Parameter:
    kind, default = (bool, False) if option.kind is bool else (str | None, None)
    if option.is_positional:
        info = typer.Argument(metavar=option.metavar, help=option.help)
    elif option.kind is bool:
        info = typer.Option(option.flag, help=option.help)
    else:
        info = typer.Option(option.flag, metavar=option.metavar, help=option.help, show_default=False)
    annotation = Annotated[kind, info]  # type: ignore[valid-type]
    return inspect.Parameter(option.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def given(request: type, params: Params) -> dict[str, Any]:
    """Values of the request's fields, without those that were left out."""
    found = [(option, params[option.name]) for option in options(request)]
    return {option.name: _value(option, text) for option, text in found if text is not None and text is not False}


def parsed(request: type[Request], params: Params) -> Request:
    """The request, with its own defaults where nothing was given."""
    return request(**given(request, params))


def _value(option: Option, text: Any) -> Any:
    name = option.flag.removeprefix("--")
    if option.kind is float:
        return to_number(name, text)
    if option.kind is int:
        return to_whole(name, text)
    if option.kind in (bool, str):
        return text
    parts = [part.strip() for part in text.split(",")]
    return tuple(to_number(name, part) for part in parts) if option.kind == tuple[float, ...] else tuple(parts)


def to_number(name: str, text: str) -> float:
    """A float; a positive number too small for one is refused, as 0 would say something else."""
    try:
        value = float(text)
    except ValueError:
        raise ValueError(f"{name} must be a number; got {name}={text}") from None
    if value == 0 and re.search("[1-9]", re.split("[eE]", text)[0]):
        raise ValueError(f"{name} must be 0 or a number that double precision can hold; got {name}={text}")
    return value


def to_whole(name: str, text: str) -> int:
    """An integer, in scientific notation too where that is exact: 2e5, not 1.5."""
    try:
        value = Decimal(text)
    except InvalidOperation:
        value = Decimal("nan")
    if not value.is_finite() or value.adjusted() >= MOST_DIGITS or value != value.to_integral_value():
        allowed = f"an integer of at most {MOST_DIGITS} digits, such as 200000 or 2e5"
        raise ValueError(f"{name} must be {allowed}; got {name}={text}")
    return int(value)
