"""A checkpoint is taken back only if it is whole and belongs to the same run."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save as save_tensors
from toy import Toy

from normstorm.algorithms import normalized_storm
from normstorm.engine import run
from normstorm.engine.checkpoint import load, save

ARRAYS = {"a": np.arange(6.0).reshape(2, 3), "b": np.array([1, 2], np.uint32)}
EXPECTED = {name: (value.shape, value.dtype.str) for name, value in ARRAYS.items()}
IDENTITY = {"steps": 5, "problem": "toy"}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    save(tmp_path / "c.safetensors", ARRAYS, IDENTITY)
    return tmp_path / "c.safetensors"


def test_round_trip_leaves_one_file(file: Path) -> None:
    save(file, ARRAYS, IDENTITY)
    found = load(file, IDENTITY, EXPECTED)
    assert {name: value.tolist() for name, value in found.items()} == {n: v.tolist() for n, v in ARRAYS.items()}
    assert [f.name for f in file.parent.iterdir()] == ["c.safetensors"]


def refused(file: Path, sentence: str, identity: Any = None, expected: Any = None) -> None:
    with pytest.raises(ValueError) as error:
        load(file, identity or IDENTITY, expected or EXPECTED)
    assert sentence in str(error.value)
    assert "\n" not in str(error.value)


def test_every_flipped_byte_and_every_cut_is_refused(file: Path) -> None:
    whole = file.read_bytes()
    for i in range(len(whole)):
        file.write_bytes(whole[:i] + bytes([whole[i] ^ 1]) + whole[i + 1 :])
        refused(file, "checkpoint: ")
        file.write_bytes(whole[:i])
        refused(file, "checkpoint: ")


def test_foreign_files(file: Path) -> None:
    file.write_text("hello, this is not a checkpoint")
    refused(file, "must be an undamaged safetensors file; it has no header")
    file.write_bytes(save_tensors(ARRAYS))
    refused(file, "must be a file written by a run; it is something else")


def test_another_version(file: Path) -> None:
    whole = file.read_bytes()
    size = int.from_bytes(whole[:8], "little")
    header = json.loads(whole[8 : 8 + size])
    header["__metadata__"]["version"] = "99"
    text = json.dumps(header).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text + whole[8 + size :])
    refused(file, "must have version 3; got version 99")


def test_another_run(file: Path) -> None:
    refused(file, "must belong to this run; its steps is 5, this run's is 6", identity={**IDENTITY, "steps": 6})


def test_other_arrays(file: Path) -> None:
    refused(file, "must hold the arrays of this run; b is missing or different", expected={"a": EXPECTED["a"]})
    wrong = {**EXPECTED, "a": ((3, 2), "<f8")}
    refused(file, "must hold the arrays of this run; a is missing or different", expected=wrong)


def test_a_failed_write_keeps_the_old_file(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = file.read_bytes()

    def full_disk(_: int) -> None:
        raise OSError("no space left")

    monkeypatch.setattr("normstorm.engine.checkpoint.os.fsync", full_disk)
    with pytest.raises(OSError, match="no space"):
        save(file, {"a": np.zeros(3)}, IDENTITY)
    assert file.read_bytes() == before
    assert [f.name for f in file.parent.iterdir()] == ["c.safetensors"]


def test_a_run_refuses_what_is_not_its_own(tmp_path: Path) -> None:
    def go(*, alpha: float = 0.1, steps: int = 20, x: float = 1.0, seeds: Any = 2, fingerprint: str = "f") -> Any:
        algorithm = normalized_storm(alpha=alpha, eta=0.01)
        return run(Toy(10), algorithm, np.full(10, x), steps, seeds, checkpoint=tmp_path / "r", fingerprint=fingerprint)

    first = go()
    again = go()
    np.testing.assert_array_equal(first.last, again.last)
    for change, word in [
        ({"alpha": 0.2}, "algorithm and x0"),
        ({"x": 2.0}, "algorithm and x0"),
        ({"steps": 21}, "steps"),
        ({"seeds": [0, 2]}, "seeds"),
        ({"fingerprint": "g"}, "fingerprint"),
    ]:
        with pytest.raises(ValueError, match=f"must belong to this run; its {word} is"):
            go(**change)


class Mine:
    """A class that JAX does not know."""

    name = "mine"

    def __init__(self, scale: float, centre: float) -> None:
        self.scale, self.table, self.toy = scale, {"centre": np.full(3, centre)}, Toy(3)

    def sample(self, key: Any, n: int) -> Any:
        return self.toy.sample(key, n)

    def grad(self, x: Any, batch: Any) -> Any:
        return self.scale * self.toy.grad(x - self.table["centre"], batch)


@pytest.mark.parametrize(
    ("problem", "same", "other"),
    [
        (Toy(3, q=1.0), Toy(3, q=1.0), Toy(3, q=2.0)),
        (Mine(1.0, 0.0), Mine(1.0, 0.0), Mine(1.0, 1e-9)),
    ],
)
def test_a_run_refuses_what_belongs_to_other_numbers(problem: Any, same: Any, other: Any, tmp_path: Path) -> None:
    """Also without a fingerprint."""
    file, storm = tmp_path / "c.safetensors", normalized_storm(alpha=0.1, eta=0.1)
    first = run(problem, storm, np.ones(3), 40, 2, checkpoint=file)
    np.testing.assert_array_equal(run(same, storm, np.ones(3), 40, 2, checkpoint=file).last, first.last)
    with pytest.raises(ValueError, match="must belong to this run; its problem's numbers is"):
        run(other, storm, np.ones(3), 40, 2, checkpoint=file)
