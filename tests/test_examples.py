"""Every example in the README and in the pages prints what is shown there.

Words must agree exactly. Numbers may differ by 1 part in 1000, and percentages by 1: the last
digits of a minimiser depend on the processor. After an intended change,
`python tests/test_examples.py` writes what is printed now into the pages.
"""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from examples import assert_same_text

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "docs/theory").glob("*.md"))]
# A command with its output, or a piece of Python and the text block after it.
EXAMPLE = re.compile(
    r"^(?:```console\n\$ normstorm (?P<command>.*?)\n"
    r"|```python\n(?P<code>(?:(?!^```).*\n)+)```\n\n```text\n)(?P<shown>(?:(?!^```).*\n)+)",
    re.M,
)


# Runs all pieces in one place, and shows what the last one prints.
TOGETHER = """
import contextlib, io, sys
place = {"__name__": "__main__"}
for i, piece in enumerate(sys.argv[1:], 1):
    with contextlib.redirect_stdout(sys.stdout if i + 1 == len(sys.argv) else io.StringIO()):
        exec(compile(piece, f"piece {i}", "exec"), place)
"""


def outputs(page: Path) -> list[tuple[str, Callable[[], str]]]:
    """For each example of a page: what is shown, and a way to find out what is printed."""
    found: list[tuple[str, Callable[[], str]]] = []
    pieces: list[str] = []
    for example in EXAMPLE.finditer(page.read_text(encoding="utf-8")):
        words = ["-m", "normstorm", *(example["command"] or "").split()]
        if example["code"]:
            pieces.append(example["code"])
            words = ["-c", TOGETHER, *pieces]
        found.append((example["shown"], lambda words=words: output(words)))
    return found


def output(words: list[str]) -> str:
    """What Python prints, or the last line of its complaint."""
    environment = os.environ | {"COLUMNS": "80", "PYTHONIOENCODING": "utf-8"}
    command = [sys.executable, *words]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", env=environment)
    lines = done.stdout.splitlines() if done.returncode == 0 else done.stderr.splitlines()[-1:]
    return "\n".join(line.rstrip() for line in lines).rstrip() + "\n"


@pytest.mark.parametrize(
    ("shown", "printed"),
    [pytest.param(*pair, id=page.name) for page in PAGES for pair in outputs(page)],
)
def test_example(shown: str, printed: Callable[[], str]) -> None:
    assert_same_text(printed(), shown)


def test_there_are_examples() -> None:
    assert [len(outputs(page)) for page in PAGES if outputs(page)] == [3, 1, 1, 3, 1]


if __name__ == "__main__":
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for shown, printed in outputs(page):
            text = text.replace(shown, printed(), 1)
        page.write_text(text, encoding="utf-8")
