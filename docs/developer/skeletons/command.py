"""A command and its options: copy to src/normstorm/cli/<name>.py, and enter it into COMMANDS in cli/main.py.

An option of a command that exists is one field more in its request; nothing else parses it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from normstorm.cli.options import Params, parsed, with_options
from normstorm.cli.output import JSON_HELP, exit_on_error, show


# What the answer depends on. A field is Annotated[type, help], or Annotated[type, help, METAVAR]; its option is
# --its-name. Types: float, int, str, bool, tuple[str, ...], tuple[float, ...], and each of them `| None`. A metavar in
# brackets makes a positional argument.
@dataclass(frozen=True)
class MyRequest:
    """What is asked."""

    problem: Annotated[str, "A name of the registry.", "[PROBLEM]"] = "quadratic"
    sense: Annotated[str, "almost-sure or mean-square.", "SENSE"] = "almost-sure"
    scale: Annotated[float, "Multiplies the gap; 1 if left out."] = 1.0


# What belongs to one call: no number depends on it.
@dataclass(frozen=True)
class MyInvocation:
    """How it is shown."""

    json: Annotated[bool, JSON_HELP] = False


@with_options(MyRequest, MyInvocation)
def my_command(params: Params) -> None:
    """The first line is what --help says."""
    # A ValueError in this block is one sentence on stderr and exit code 2; Ctrl-C is exit code 130.
    with exit_on_error("my-command"):
        request, call = parsed(MyRequest, params), parsed(MyInvocation, params)
        found = _answer(request)
    show(lambda: found, lambda: [f"{request.problem}: gap {found['gap']:.4g}"], as_json=call.json)


def _answer(request: MyRequest) -> dict[str, Any]:
    # JAX is imported where it is needed, so that --help does not wait for it.
    from normstorm.problems import get

    return {"gap": request.scale * get(request.problem).constants(None, request.sense).gap}
