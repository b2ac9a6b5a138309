"""Every example in the README and in the pages prints what is shown there.

Words must agree exactly. Numbers may differ by 1 part in 1000, and percentages by 1: the last
digits of a minimiser depend on the processor. Of `make run` only words are compared: how far a
search goes may hang on a last digit. After an intended change, `python tests/test_examples.py` writes what is
printed now into the pages.
"""

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from examples import NUMBER, assert_same_text

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "docs/theory").glob("*.md"))]
# A command with its output, or a piece of Python and the text block after it.
EXAMPLE = re.compile(
    r"^(?:```console\n\$ normstorm (?P<command>.*?)\n"
    r"|```python\n(?P<code>(?:(?!^```).*\n)+)```\n\n```text\n)(?P<shown>(?:(?!^```).*\n)+)",
    re.M,
)
DEFAULT_RUN = re.compile(r"(?<=and the seconds that it took:\n\n```text\n)(?:(?!^```).*\n)+", re.M)

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


def default_run() -> str:
    """What `make run` prints, but for the seconds."""
    with tempfile.TemporaryDirectory() as folder:
        lines = output(["-m", "normstorm", "run", "--no-progress"], folder).splitlines(keepends=True)
    return "".join(line for line in lines if not line.startswith(" seconds"))


def output(words: list[str], folder: str | None = None) -> str:
    """What Python prints, or the last line of its complaint."""
    environment = os.environ | {"COLUMNS": "80", "PYTHONIOENCODING": "utf-8"}
    command = [sys.executable, *words]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", env=environment, cwd=folder)
    lines = done.stdout.splitlines() if done.returncode == 0 else done.stderr.splitlines()[-1:]
    return "\n".join(line.rstrip() for line in lines).rstrip() + "\n"


@pytest.mark.parametrize(
    ("shown", "printed"),
    [pytest.param(*pair, id=page.name) for page in PAGES for pair in outputs(page)],
)
def test_example(shown: str, printed: Callable[[], str]) -> None:
    assert_same_text(printed(), shown)


def test_the_default_run_prints_what_readme_shows() -> None:
    shown = DEFAULT_RUN.search(PAGES[0].read_text(encoding="utf-8"))
    words = [" ".join(NUMBER.sub("#", text).split()) for text in (default_run(), shown[0])]
    assert words[0] == words[1]


def test_there_are_examples() -> None:
    assert [len(outputs(page)) for page in PAGES if outputs(page)] == [3, 1, 1, 3, 1]


if __name__ == "__main__":
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for shown, printed in outputs(page):
            text = text.replace(shown, printed(), 1)
        if found := DEFAULT_RUN.search(text):
            text = text.replace(found[0], default_run(), 1)
        page.write_text(text, encoding="utf-8")
