"""Every piece of Python about PyTorch, on its page and in the README, runs, and prints what the page shows."""

import re
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed")

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(("page", "count"), [("docs/pytorch.md", 11), ("README.md", 1)])
def test_the_code_of_the_page_runs(page: str, count: int, capsys: pytest.CaptureFixture[str]) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    pieces = re.findall(r"^```python\n(.*?)^```", text, flags=re.S | re.M)
    pieces = [piece for piece in pieces if page != "README.md" or "torch" in piece]
    assert len(pieces) == count
    names: dict[str, object] = {}
    for piece in pieces:
        exec(compile(piece, page, "exec"), names)
        if printed := capsys.readouterr().out:
            assert f"```text\n{printed}```" in text
