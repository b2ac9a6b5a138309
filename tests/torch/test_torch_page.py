"""Every piece of Python about PyTorch, on its page and in the README, runs, one after the other."""

import re
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed")

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(("page", "count"), [("docs/pytorch.md", 10), ("README.md", 1)])
def test_the_code_of_the_page_runs(page: str, count: int) -> None:
    pieces = re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(encoding="utf-8"), flags=re.S | re.M)
    pieces = [piece for piece in pieces if page != "README.md" or "torch" in piece]
    assert len(pieces) == count
    names: dict[str, object] = {}
    for piece in pieces:
        exec(compile(piece, page, "exec"), names)
