"""The command `normstorm problems`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .options import Params, parsed, with_options
from .output import ListInvocation, exit_on_error, show

if TYPE_CHECKING:
    from normstorm.problems.registry import Entry

SENSES = ("almost-sure", "mean-square")


@with_options(ListInvocation)
def problems(params: Params) -> None:
    """List the built-in problems with their proven constants at the default start."""
    with exit_on_error("problems"):
        from normstorm.report import terminal

        call, found = parsed(ListInvocation, params), rows()
    show(lambda: found, lambda: terminal.problem_parts(found), as_json=call.json)


def rows() -> list[dict[str, Any]]:
    """One row for every built-in problem, constants at its default start in both senses."""
    from normstorm.problems.registry import PROBLEMS

    return [_row(name, entry) for name, entry in PROBLEMS.items()]


def _row(name: str, entry: Entry) -> dict[str, Any]:
    from normstorm._shared.pytrees import dimension

    row: dict[str, Any] = {"name": name, "description": entry.description}
    try:
        problem = entry.make()
    except ValueError as error:  # data that are not installed
        return row | {"reason": str(error)}
    constants: dict[str, Any] = {}
    for sense in SENSES:
        try:
            constants[sense] = problem.constants(None, sense).to_dict()
        except ValueError:  # not proven in this sense
            constants[sense] = None
    return row | {
        "dimension": dimension(problem.start()),
        "infimum": problem.infimum,
        "infimum_kind": problem.infimum_kind,
        "constants": constants,
    }
