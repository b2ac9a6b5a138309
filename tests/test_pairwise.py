"""The generator of few cases: every pair is there, none that is not allowed, always the same."""

from __future__ import annotations

import subprocess
import sys
from itertools import combinations, product
from pathlib import Path

import pytest
from pairwise import every, pairwise

OPTIONS = {
    "two": {"a": [1, 2], "b": "xy"},
    "one": {"a": [1, 2, 3]},
    "mixed": {"a": range(5), "b": [True, False], "c": ["p", "q", "r"], "d": [0.5, None], "e": [(1,), (2,), {}]},
}


def pairs_of(case: dict) -> set[str]:
    return {repr(pair) for pair in combinations(sorted(case.items()), 2)}


@pytest.mark.parametrize("name", OPTIONS)
def test_every_pair_is_covered(name: str) -> None:
    options = OPTIONS[name]
    cases, whole = pairwise(options), every(options)
    assert set().union(*map(pairs_of, cases)) == set().union(*map(pairs_of, whole))
    assert all(case in whole for case in cases)
    for option, values in options.items():
        assert all(any(case[option] == value for case in cases) for value in values)


def test_few_cases_are_enough() -> None:
    """No fewer than the two longest options have pairs, and not many more."""
    assert len(every(OPTIONS["mixed"])) == 180
    assert 15 <= len(pairwise(OPTIONS["mixed"])) <= 18


def test_what_is_not_allowed_does_not_come() -> None:
    options = OPTIONS["mixed"]
    cases = pairwise(options, allowed=lambda case: case["a"] != 3 or case["b"])
    assert not any(case["a"] == 3 and not case["b"] for case in cases)
    left = [case for case in every(options) if case["a"] != 3 or case["b"]]
    assert set().union(*map(pairs_of, cases)) == set().union(*map(pairs_of, left))


def test_more_than_pairs_on_request() -> None:
    options = OPTIONS["mixed"]
    also = every({name: options[name] for name in ("b", "c", "d")})
    cases = pairwise(options, also=also)
    found = {(case["b"], case["c"], case["d"]) for case in cases}
    assert found == set(product([True, False], ["p", "q", "r"], [0.5, None]))
    with pytest.raises(ValueError, match="also must be parts of allowed cases"):
        pairwise(options, also=[{"a": 3, "b": False}], allowed=lambda case: case["a"] != 3 or case["b"])


def test_the_same_cases_in_every_process() -> None:
    """Workers of one session must collect the same tests, whatever their hash seed."""
    code = "from pairwise import pairwise; print(pairwise({'a': 'uvwxy', 'b': [1, 2], 'c': 'pqr', 'd': [True, None]}))"
    folder = str(Path(__file__).parent / "helpers")
    outs = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": folder},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in "123"
    }
    assert len(outs) == 1
