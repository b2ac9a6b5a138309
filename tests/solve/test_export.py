"""A result as text, HTML, file and table."""

import csv
import json
import math
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from normstorm import Result
from normstorm.solve.certify import PointCertificate
from normstorm.solve.export import named_numbers
from normstorm.solve.trajectory import TrajectoryCertificate
from normstorm.solve.value import Value
from normstorm.solve.watch import Contradictions

NONE = TrajectoryCertificate(math.inf, (math.inf,), 0.99, "nothing", "of no weight", 3, "a race <b>")
X: Any = {"b": np.float32(0.1), "w": np.array([[1.0, math.pi], [3, 4]])}
FOUND = Result(
    X,
    "last",
    None,
    "",
    NONE,
    PointCertificate(0.5, 1.0, 9, 0.5, "exact"),
    None,
    None,
    42,
    value=Value(1.5, 0, "formula"),
)


def test_every_number_has_a_name() -> None:
    names = ["['b']", "['w'][0, 0]", "['w'][0, 1]", "['w'][1, 0]", "['w'][1, 1]"]
    assert [name for name, _ in named_numbers(X)] == names
    assert named_numbers(np.array([2.0])) == [("x[0]", 2.0)] and named_numbers(3.0) == [("x", 3.0)]


def test_text_and_html_say_what_is_certified() -> None:
    shown = str(FOUND).splitlines()
    assert shown[0] == "x:                0.1, 1, 3.14159, 3, 4" and shown[1].endswith("1.5 (exact, formula)")
    assert shown[2].endswith(str(FOUND.certificate)) and shown[3].endswith(" 42") and len(shown) == 4
    void = replace(FOUND, contradictions=Contradictions(4, 1, 0, "at <x>", 8))
    assert "warning" in str(void) and "at &lt;x&gt;" in void._repr_html_() and "<x>" not in void._repr_html_()
    long = str(replace(FOUND, x=np.zeros(100)))
    assert "... (100 numbers, all in result.x)" in long


def test_files_are_read_back(tmp_path: Path) -> None:
    FOUND.save(tmp_path / "x.csv")
    FOUND.save(tmp_path / "x.json")
    with (tmp_path / "x.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [(row["name"], float(row["value"])) for row in rows] == named_numbers(X)
    read = json.loads((tmp_path / "x.json").read_text(encoding="utf-8"))
    assert read["x"] == dict(named_numbers(X)) and read["certificate"]["upper_bound"] == 0.5
    assert read["trajectory"]["bound"] is None and read["value"]["value"] == 1.5
    with pytest.raises(ValueError, match=r"save: file must end in one of \.csv, \.json; got"):
        FOUND.save(tmp_path / "x.txt")
    with pytest.raises(ValueError, match="save: file must lie in an existing directory"):
        FOUND.save(tmp_path / "no" / "x.csv")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["x.csv", "x.json"]


def test_a_table_needs_pandas(monkeypatch: pytest.MonkeyPatch) -> None:
    made = SimpleNamespace(DataFrame=lambda columns, index: (columns, index), Index=lambda names, name: (names, name))
    monkeypatch.setitem(sys.modules, "pandas", made)
    columns, (names, name) = FOUND.to_dataframe()
    assert list(zip(names, columns["value"], strict=True)) == named_numbers(X) and name == "name"
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ModuleNotFoundError, match="to_dataframe: pandas must be installed"):
        FOUND.to_dataframe()


@pytest.mark.parametrize("file", [3, None])
def test_what_is_no_path_is_refused(file: Any) -> None:
    with pytest.raises(ValueError, match="save: file must be a path that ends in"):
        FOUND.save(file)
