"""The API pages: what they document exists and says what it is, and every example prints what is shown.

The examples of a page are one program. All pages share this process, so that JAX is imported once.
"""

import contextlib
import doctest
import io
import re
from importlib import import_module
from pathlib import Path

import pytest

from examples import assert_same_text

API = Path(__file__).parents[1] / "docs" / "api"
PAGES = [page for page in sorted(API.glob("*.md")) if page.name != "index.md"]
BLOCK = re.compile(r"^```python\n(?P<code>(?:(?!^```).*\n)+)```\n(?:\n```text\n(?P<shown>(?:(?!^```).*\n)+))?", re.M)
DOCUMENTED = re.compile(r"^\.\. auto(?:function|class):: (\S+)", re.M)
NAMES = [name for page in PAGES for name in DOCUMENTED.findall(page.read_text(encoding="utf-8"))]


def found(name: str) -> object:
    """The object of a dotted name."""
    module, _, rest = name.rpartition(".")
    return getattr(import_module(module), rest)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_examples_print_what_is_shown(page: Path) -> None:
    blocks = list(BLOCK.finditer(page.read_text(encoding="utf-8")))
    assert blocks and any(block["shown"] for block in blocks)
    names: dict[str, object] = {"__name__": page.stem}
    for block in blocks:
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(compile(block["code"], str(page), "exec"), names)
        assert_same_text(printed.getvalue(), block["shown"] or "")


@pytest.mark.parametrize("name", NAMES)
def test_what_is_documented_says_what_it_is(name: str) -> None:
    thing = found(name)
    assert thing.__doc__ and not thing.__doc__.startswith(f"{thing.__name__}("), "no docstring, or a generated one"
    known = dict(vars(import_module(thing.__module__)))
    for test in doctest.DocTestFinder(recurse=False).find(thing, name, globs=known):
        assert doctest.DocTestRunner().run(test).failed == 0


@pytest.mark.parametrize("room", ["normstorm", "normstorm.engine", "normstorm.torch", "normstorm.optax"])
def test_every_public_name_is_documented(room: str) -> None:
    things = {name: found(f"{room}.{name}") for name in dir(import_module(room)) if not name.startswith("_")}
    own = {name for name, thing in things.items() if getattr(thing, "__module__", "").startswith("normstorm")}
    assert {f"{room}.{name}" for name in own} <= set(NAMES)
