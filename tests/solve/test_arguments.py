"""No public function takes an argument and ignores it: with two values of it, the numbers that come out differ."""

import inspect
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import own
import pytest

from normstorm import AnytimePlan, Plan, Result, certify, minimize, plan
from normstorm.problems.user import from_loss
from normstorm.solve import PointCertificate

NOISIER = replace(own.KNOWN, sigma0=2.0)
MINE = from_loss(own.squares, own.ROWS, start=own.START, constants=lambda x0: own.KNOWN, infimum=0.0)
OTHER = from_loss(own.squares, own.ROWS[:20], start=own.START, constants=NOISIER, infimum=0.0)
PLANS = [plan(own.KNOWN, horizon=horizon, confidence=None) for horizon in (40, 41)]
SHOWN: list[tuple[int, int]] = []


def show(done: int, of: int) -> None:
    SHOWN.append((done, of))


FUNCTIONS = {function.__name__: function for function in (minimize, plan, certify)}
USUAL: dict[str, dict[str, Any]] = {
    "minimize": {"problem": MINE, "plan": PLANS[0], "method": "plan", "samples": 19, "progress": False},
    "plan": {"constants": own.KNOWN, "horizon": 400},
    "certify": {"problem": own.problem, "x": own.START, "samples": 64, "exact": False},
}
ONE_OF = {"minimize": ("target", "budget", "plan"), "plan": ("target", "horizon", "budget")}
ONE_OF |= {"certify": ("samples", "precision", "target")}
VALUES: dict[str, dict[str, tuple[Any, Any]]] = {
    "minimize": {
        "problem": (MINE, OTHER),
        "data": (None, own.START - 0.2),  # after a problem it is x0
        "x0": (None, own.START - 0.1),
        "target": (2.0, 2.1),
        "budget": (200, 300),
        "plan": (PLANS[0], PLANS[1]),
        "confidence": (None, 0.9),
        "seeds": (1, [5]),
        "method": ("race", "plan"),
        "algorithm": (None, "storm_plus"),
        "rho": (1.0, 1e-9),
        "choose": ("last", "smallest"),
        "samples": (19, 64),
        "stop": ("plan", "certified"),
        "progress": (False, show),
        "checkpoint": (None, "kept"),
        "width": (1, 8),
    },
    "plan": {
        "constants": (own.KNOWN, NOISIER),
        "target": (1.0, 1.1),
        "horizon": (400, 401),
        "budget": (2000, 3000),
        "confidence": (0.99, None),
        "rule": ("sharp", "paper"),
        "batch": (None, 2),
        "sub_batch": (None, 2),
        "certificate": ("union", "ville"),
        "anytime": (False, True),
    },
    "certify": {
        "problem": (own.problem, OTHER),
        "x": (own.START, own.START + 0.1),
        "confidence": (0.99, 0.9),
        "samples": (64, 640),
        "precision": (0.2, 0.3),
        "target": (2.5, 1.85),
        "sense": ("almost-sure", "mean-square"),
        "seed": (0, 1),
        "exact": (False, True),
    },
}


@pytest.fixture(autouse=True)
def surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    with jax.enable_x64(True):
        yield


def numbers(found: Plan | AnytimePlan | PointCertificate | Result) -> list[Any]:
    """What was computed; an argument that only comes back in the answer is not among it."""
    if isinstance(found, AnytimePlan):
        return [found.alpha, found.eta, found.shift]
    if isinstance(found, Plan):
        return [found.bound, found.horizon, found.alpha, found.eta, found.batch, found.sub_batch]
    if isinstance(found, PointCertificate):
        return [found.upper_bound, found.samples, found.mean_norm]
    run = [np.asarray(found.x).tolist(), found.trace.mean_grad_norm.tolist(), found.trace.width]
    return [*run, *numbers(found.plan), *numbers(found.certificate)]


def outcome(function: Callable[..., Any], arguments: dict[str, Any]) -> tuple[list[Any], int, list[str]]:
    """The numbers, how often progress was shown, and the files that are there."""
    SHOWN.clear()
    return numbers(function(**arguments)), len(SHOWN), sorted(os.listdir())


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_argument_has_two_values_here(name: str) -> None:
    assert list(VALUES[name]) == list(inspect.signature(FUNCTIONS[name]).parameters)


@pytest.mark.parametrize(("name", "argument"), [(name, argument) for name in VALUES for argument in VALUES[name]])
def test_an_argument_is_heeded(name: str, argument: str) -> None:
    others = ONE_OF[name] if argument in ONE_OF[name] else ()
    usual = {key: value for key, value in USUAL[name].items() if key not in others}
    if argument == "stop":  # it needs a target
        usual = usual | {"plan": None, "target": 2.0}
    if argument in ("method", "algorithm", "rho"):
        usual = {"problem": MINE, "target": 0.5, "progress": False}
    one, two = (outcome(FUNCTIONS[name], usual | {argument: value}) for value in VALUES[name][argument])
    assert one != two, "both values lead to the same"
