"""What may be asked, as a value and as a TOML file."""

import tomllib
from dataclasses import fields
from pathlib import Path

import pytest

from normstorm.algorithms.catalogue import CATALOGUE, LISTENING
from normstorm.lab.compare.request import CHECKS, CompareRequest
from normstorm.problems.registry import PROBLEMS

make, read = CompareRequest.from_dict, CompareRequest.from_file
REQUESTS = [
    CompareRequest(),
    CompareRequest(("quadratic", 'own "file".py:x'), ("sgd", "storm"), 1234, 5, (0.5, 1e-7), True, 3, 2**62),
    CompareRequest(targets=(1.0,)),
]


@pytest.mark.parametrize("asked", REQUESTS)
def test_round_trip(asked: CompareRequest) -> None:
    assert make(tomllib.loads(asked.to_toml())) == asked


def test_defaults_exist() -> None:
    default = CompareRequest()
    assert make({}) == make({"algorithms": "all"}) == make({"algorithms": ["all"]}) == default
    assert set(default.algorithms) == CATALOGUE.keys() - LISTENING and set(default.problems) <= PROBLEMS.keys()


def test_every_field_is_checked() -> None:
    assert list(CHECKS) == [field.name for field in fields(CompareRequest)]


def test_numbers_become_what_they_mean() -> None:
    assert make({"targets": [1, 3, 2]}).targets == (3.0, 2.0, 1.0) and make({"targets": 0.5}).targets == (0.5,)
    assert make({"problems": "quadratic"}).problems == ("quadratic",)
    assert make({"tune-seeds": 4}) == make({"tune_seeds": 4})


REFUSALS = [
    ({"speed": 1}, "keys of a spec must be among problems, algorithms, budget, seeds, .*; got speed"),
    ({"tune-seeds": 1, "tune_seeds": 2}, ".*each at most once; got tune_seeds"),
    ({"problems": []}, "problems must be different names, at least one"),
    ({"problems": ["a", "a"]}, "problems must be different names"),
    ({"problems": [1]}, "problems must be different names"),
    ({"problems": 3}, "problems must be different names"),
    ({"problems": [["a"]]}, "problems must be different names"),
    ({"algorithms": ["sgd", "foo"]}, "algorithms must be all or some of normalized_storm, .*; got 'foo'"),
    ({"algorithms": ["all", "sgd"]}, "algorithms must be all or some of .*; got 'all'"),
    ({"budget": 0}, r"budget must be an integer in \[1, 1000000000\]; got budget=0"),
    ({"budget": 10**9 + 1}, "budget must be an integer"),
    ({"budget": True}, "budget must be an integer .*; got budget=True"),
    ({"budget": 1.5}, "budget must be an integer"),
    ({"budget": "9"}, "budget must be an integer"),
    ({"seeds": 1}, r"seeds must be an integer in \[2, 100000\]; got seeds=1"),
    ({"tune-seeds": 0}, "tune-seeds must be an integer"),
    ({"first-seed": -1}, "first-seed must be an integer"),
    ({"targets": []}, "targets must be different finite numbers > 0, at least one"),
    ({"targets": ["a"]}, "targets must be different finite numbers"),
    ({"targets": [0.0]}, "targets must be different finite numbers"),
    ({"targets": [float("inf")]}, "targets must be different finite numbers"),
    ({"targets": [float("nan")]}, "targets must be different finite numbers"),
    ({"targets": [1, 1.0]}, "targets must be different finite numbers"),
    ({"targets": {"a": 1}}, "targets must be different finite numbers"),
    ({"tune": 1}, "tune must be true or false; got tune=1"),
]


@pytest.mark.parametrize(("given", "sentence"), REFUSALS)
def test_refusals(given: dict, sentence: str) -> None:
    with pytest.raises(ValueError, match=f"^compare: {sentence}"):
        make(given)


def test_flags_win_over_the_file_however_its_keys_are_written(tmp_path: Path) -> None:
    file = tmp_path / "spec.toml"
    for key in ("tune-seeds", "tune_seeds"):
        file.write_text(f"{key} = 3\nbudget = 7\n")
        assert read(str(file), {"tune_seeds": 4}) == CompareRequest(tune_seeds=4, budget=7)
    file.write_text("budget = 'x'\n")
    with pytest.raises(ValueError, match="budget must be an integer"):
        read(str(file), {"budget": 5})


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (None, "spec must be a readable file; got .* \\(No such file or directory\\)"),
        (b"budget 5", "spec must be a TOML file"),
        (b"\xff\xfe", "spec must be a TOML file"),
        (b"budget = " + 5000 * b"[", "spec must be a TOML file"),
    ],
)
def test_files_that_are_none(tmp_path: Path, content: bytes | None, sentence: str) -> None:
    file = tmp_path / "spec.toml"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ValueError, match=f"^compare: {sentence}") as refused:
        read(str(file), {})
    assert "\n" not in str(refused.value)
