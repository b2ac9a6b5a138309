"""A checkpoint's file is taken back only if it is whole and belongs to the same run."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save as save_tensors

from normstorm import __version__
from normstorm._shared.checkpoint import load, save

ARRAYS = {"a": np.arange(6.0).reshape(2, 3), "b": np.array([1, 2], np.uint32)}
IDENTITY = {"steps": 5, "problem": "toy"}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    save(tmp_path / "c.safetensors", ARRAYS, IDENTITY)
    return tmp_path / "c.safetensors"


def test_round_trip_leaves_one_file(file: Path) -> None:
    save(file, ARRAYS, IDENTITY)
    found = load(file, IDENTITY, ARRAYS)
    assert {name: value.tolist() for name, value in found.items()} == {n: v.tolist() for n, v in ARRAYS.items()}
    assert [f.name for f in file.parent.iterdir()] == ["c.safetensors"]


def refused(file: Path, sentence: str, identity: Any = None, like: Any = None) -> None:
    with pytest.raises(ValueError) as error:
        load(file, identity or IDENTITY, like or ARRAYS)
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
    refused(file, "must be an undamaged safetensors file; it cannot be read")
    file.write_bytes(save_tensors(ARRAYS))
    refused(file, "must be a file written by a run; it is something else")


def test_another_version(file: Path) -> None:
    whole = file.read_bytes()
    size = int.from_bytes(whole[:8], "little")
    header = json.loads(whole[8 : 8 + size])
    header["__metadata__"]["version"] = "99"
    text = json.dumps(header).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text + whole[8 + size :])
    ours = f"normstorm {__version__}"
    refused(file, f"must have format version 9, that of {ours}; got format version 99, written by {ours}")


def test_another_run(file: Path) -> None:
    refused(file, "must belong to this run; its steps is 5, this run's is 6", identity={**IDENTITY, "steps": 6})
    refused(file, f"(format version 9, written by normstorm {__version__}; this is", identity={"steps": 6})


def test_other_arrays(file: Path) -> None:
    refused(file, "must hold the arrays of this run; ['b'] is missing or different", like={"a": ARRAYS["a"]})
    wrong = {**ARRAYS, "a": np.zeros((3, 2))}
    refused(file, "must hold the arrays of this run; ['a'] is missing or different", like=wrong)


def test_a_failed_write_keeps_the_old_file(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = file.read_bytes()

    def full_disk(_: int) -> None:
        raise OSError("no space left")

    monkeypatch.setattr("normstorm._shared.files.os.fsync", full_disk)
    with pytest.raises(OSError, match="no space"):
        save(file, {"a": np.zeros(3)}, IDENTITY)
    assert file.read_bytes() == before
    assert [f.name for f in file.parent.iterdir()] == ["c.safetensors"]
