"""Every piece of Python on the PyTorch page runs, one after the other."""

import re
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed")

PAGE = Path(__file__).parents[2] / "docs" / "pytorch.md"


def test_the_code_of_the_page_runs() -> None:
    pieces = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), flags=re.S | re.M)
    assert len(pieces) == 8
    names: dict[str, object] = {}
    for piece in pieces:
        exec(compile(piece, PAGE.name, "exec"), names)
