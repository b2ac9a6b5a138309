"""Every field of a request is an option and every option is a field; none is parsed and then ignored."""

import ast
import inspect
import shlex
from dataclasses import MISSING, dataclass, fields
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer

import normstorm
from normstorm import plan
from normstorm.cli.main import COMMANDS, app
from normstorm.cli.options import given, parsed, to_whole, with_options
from normstorm.cli.plan import CONSTANTS, PlanRequest
from normstorm.report.requests import ReproduceRequest, RunRequest, command, options
from normstorm.solve import certify, minimize
from normstorm.theory import DEFAULT_CONFIDENCE

PARSERS = typer.main.get_command(app).commands
SAMPLES = {
    float: ("0.25", 0.25),
    int: ("2e3", 2000),
    str: ("word", "word"),
    bool: (None, True),
    tuple[str, ...]: ("a, b", ("a", "b")),
    tuple[float, ...]: ("2,1", (2.0, 1.0)),
}
OPTIONS = [
    pytest.param(name, request, option, id=f"{name} {option.name}")
    for name, made in COMMANDS.items()
    for request in made.requests
    for option in options(request)
]


@pytest.mark.parametrize("name", COMMANDS)
def test_the_parser_knows_the_fields_and_nothing_else(name: str) -> None:
    known = [parameter.name for parameter in PARSERS[name].params if parameter.name != "help"]
    assert known == [field.name for request in COMMANDS[name].requests for field in fields(request)]


@pytest.mark.parametrize(("name", "request_", "option"), OPTIONS)
def test_an_option_lands_in_its_field_alone(name: str, request_: type, option: Any) -> None:
    text, value = SAMPLES[option.kind]
    words = [option.flag, *([] if text is None else [text])] if not option.is_positional else [text]
    params = PARSERS[name].make_context(name, words).params
    assert given(request_, params) == {option.name: value}
    assert all(given(other, params) == {} for other in COMMANDS[name].requests if other is not request_)
    found = parsed(request_, params)
    for field in fields(request_):
        default = field.default_factory() if field.default is MISSING else field.default
        assert getattr(found, field.name) == (value if field.name == option.name else default)


@pytest.mark.parametrize("text", ["1e29", "1" * 30, "-" + "9" * 30, "0", "2.50e1", "1e-0"])
def test_integers_are_exact(text: str) -> None:
    assert to_whole("n", text) == Fraction(text)


@pytest.mark.parametrize("text", ["1e30", "1e29.5", "1" * 29 + ".5", "1e-999999", "inf", "nan", "", " ", "0x10"])
def test_what_is_no_integer_is_refused_in_a_sentence(text: str) -> None:
    with pytest.raises(ValueError, match=r"^n must be an integer of at most 30 digits"):
        to_whole("n", text)


def test_a_field_more_is_an_option_more() -> None:
    @dataclass(frozen=True)
    class Request:
        speed: Annotated[float | None, "How fast."] = None
        dry_run: Annotated[bool, "Do nothing."] = False

    small = typer.Typer()
    small.command()(with_options(Request)(lambda params: None))
    parser = typer.main.get_command(small)
    params = parser.make_context("x", ["--speed", "2", "--dry-run"]).params
    assert parsed(Request, params) == Request(2.0, True)


def test_what_is_asked_is_what_is_answered() -> None:
    """These requests go to the function whole: a field that it does not know is an error, not silence."""
    request = RunRequest(target=1.0)
    assert request.question.keys() | {"problem"} == {field.name for field in fields(request)}
    unknown = request.question.keys() - inspect.signature(minimize).parameters.keys()
    assert not unknown, "minimize has no argument of this name"
    asked = PlanRequest(horizon=9)
    others = {*CONSTANTS, "constants", "expectation"}
    assert asked.question.keys() | others == {field.name for field in fields(asked)}
    assert asked.question.keys() <= inspect.signature(plan).parameters.keys()


def test_there_is_one_default_confidence() -> None:
    given = [inspect.signature(function).parameters["confidence"].default for function in (plan, certify)]
    asked = [request.question["confidence"] for request in (RunRequest(target=1.0), PlanRequest(horizon=9))]
    assert {*given, *asked} == {DEFAULT_CONFIDENCE}
    for request in (RunRequest, PlanRequest):
        (said,) = (option.help for option in options(request) if option.name == "confidence")
        assert f" {DEFAULT_CONFIDENCE} if left out" in said


def reads() -> set[str]:
    """What the rooms of requests read of a request or an invocation, by the names that these have there."""
    source = Path(normstorm.__file__).parent
    rooms = [source / "cli", source / "report", source / "lab" / "compare"]
    trees = [ast.parse(file.read_text(encoding="utf-8")) for room in rooms for file in room.rglob("*.py")]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    classes = [node for node in nodes if isinstance(node, ast.ClassDef)]
    # Only within these classes is `self` a request or an invocation.
    own = [part for node in classes if node.name.endswith(("Request", "Invocation")) for part in ast.walk(node)]

    def attributes(places: list[ast.AST], owners: tuple[str, ...]) -> set[str]:
        found = [node for node in places if isinstance(node, ast.Attribute)]
        return {n.attr for n in found if getattr(n.value, "attr", getattr(n.value, "id", None)) in owners}

    return attributes(nodes, ("request", "call")) | attributes(own, ("self",))


@pytest.mark.parametrize("name", COMMANDS)
def test_every_other_field_is_read(name: str) -> None:
    whole = {RunRequest: RunRequest(target=1.0).question, PlanRequest: {*PlanRequest(horizon=9).question, *CONSTANTS}}
    for request in COMMANDS[name].requests:
        names = {field.name for field in fields(request)} - set(whole.get(request, ()))
        assert names <= reads(), request.__name__


def test_the_command_asks_for_the_same() -> None:
    for name, request in {
        "run": RunRequest("mine, 'own'.py:x", budget=2000, confidence=0.9, seeds=3, choose="last", samples=7),
        "reproduce": ReproduceRequest(("rate", "lemmas")),
        "plan": PlanRequest(L0=1.0, L1=1e-7, noise="mean-square", target=0.5, expectation=True, rule="paper"),
    }.items():
        words = shlex.split(command(name, request, report="page.html") if name != "plan" else command(name, request))
        params = PARSERS[name].make_context(name, words[2:]).params
        assert words[:2] == ["normstorm", name] and parsed(type(request), params) == request
        assert params.get("report") == ("page.html" if name != "plan" else None)
