"""Pages: whatever comes from outside is shown as it is and becomes no part of the page."""

import math
from html.parser import HTMLParser
from importlib import resources

import jinja2
import pytest

from normstorm.report import html

HOSTILE = """</script><script>alert(1)</script> "onload='x' & <b>"""
HARMLESS = "peacock"
VALUES = {
    "diagnosis.html": {
        "tiles": [(HOSTILE, HOSTILE)],
        "paragraphs": [HOSTILE],
        "measured": [(HOSTILE, "1", "2")],
        "asked": [(HOSTILE, HOSTILE)],
    },
    "estimate.html": {
        "tiles": [(HOSTILE, HOSTILE)],
        "guarantee": HOSTILE,
        "head": (HOSTILE,),
        "rows": [(HOSTILE,)],
        "counts": [(HOSTILE, HOSTILE)],
        "versions": [(HOSTILE, HOSTILE)],
        "command": HOSTILE,
    },
    "reproduce.html": {
        "tiles": [],
        "summary_head": (HOSTILE, "b"),
        "summary": [(HOSTILE, "b")],
        "claims": [
            {"name": "rate", "title": HOSTILE, "verdict": HOSTILE, "statement": HOSTILE, "place": HOSTILE}
            | {"notes": [HOSTILE], "rule_head": (HOSTILE,), "rules": [(HOSTILE,)], "row_head": (HOSTILE,)}
            | {"rows": [(HOSTILE,)], "figures": [(HOSTILE, HOSTILE)]}
        ],
        "versions": [(HOSTILE, HOSTILE)],
        "command": HOSTILE,
    },
}


class Tags(HTMLParser):
    """What is opened, with its attributes, and the words in between."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.opened: list[tuple[str, list[tuple[str, str | None]]]] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.opened.append((tag, attrs))

    def handle_data(self, data):
        self.words.append(data)


def calm(value):
    """The same values with a harmless word in place of the hostile one."""
    if isinstance(value, dict):
        return {key: calm(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(calm(inner) for inner in value)
    return HARMLESS if value == HOSTILE else value


def page(template: str, hostile: bool) -> str:
    word = HOSTILE if hostile else HARMLESS
    charts = {"rate": {"mark": "line", "title": word, "data": {"values": [{"series": word}]}}}
    values = VALUES[template] if hostile else calm(VALUES[template])
    return html.render(template, word, word, word, charts, **values)


@pytest.mark.parametrize("template", VALUES)
def test_what_comes_from_outside_is_no_part_of_the_page(template: str) -> None:
    hostile, harmless = (Tags(page(template, kind)) for kind in (True, False))
    assert hostile.opened == harmless.opened
    shown, expected = ("".join(found.words) for found in (hostile, harmless))
    in_the_chart = 2  # there the page writes < as JSON may have it
    assert shown.count(HOSTILE) + in_the_chart == expected.count(HARMLESS) > 10


def test_attributes_are_quoted() -> None:
    macros = html._environment().get_template("macros.html").module
    assert Tags(macros.figure('a" onclick="x', "", "")).opened[1] == (
        "div",
        [("class", "chart"), ("id", 'a" onclick="x')],
    )
    rows = Tags(macros.table("", ("a",), [("b",)], kinds=['x" id="y'])).opened
    assert ("tr", [("class", 'x" id="y')]) in rows


def test_a_number_that_json_cannot_hold_is_left_out() -> None:
    """A run that has left for infinity has a page all the same."""
    page = html.render(
        "diagnosis.html", "", "", "", {"a": {"b": [1.5, math.inf, math.nan]}}, **VALUES["diagnosis.html"]
    )
    assert '"b": [1.5, null, null]' in page


def test_a_forgotten_value_is_an_error() -> None:
    with pytest.raises(jinja2.UndefinedError, match="tiles"):
        html.render("diagnosis.html", "", "", "", {})


def test_templates_and_style_are_part_of_the_package() -> None:
    room = resources.files("normstorm.report")
    found = {file.name for file in room.joinpath("templates").iterdir()}
    names = "page", "macros", "run", "race", "compare", "estimate", "reproduce", "diagnosis"
    assert found == {f"{name}.html" for name in names}
    assert room.joinpath("style.css").is_file()
    assert not any("| safe" in (room / "templates" / name).read_text(encoding="utf-8") for name in found)


def test_tables() -> None:
    macros = html._environment().get_template("macros.html").module
    assert "".join(macros.table("T", ("", "x"), [("a", "1")]).split("\n")) == (
        "<h2>T</h2><table><thead><tr><th></th><th>x</th></tr></thead><tbody><tr><td>a</td><td>1</td></tr></tbody></table>"
    )
    assert '<table class="pairs"><tbody>' in macros.pairs("", [("a", "b")]) and "<h" not in macros.pairs("", [])
    assert macros.table("", ("a",), [], wide=True).strip().startswith('<div class="scroll long" tabindex="0">')
