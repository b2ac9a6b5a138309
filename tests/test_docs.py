"""The site builds without a warning, draws every formula and loads nothing from elsewhere."""

import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

for needed in ("sphinx", "furo", "myst_parser", "latex2mathml", "torch"):
    pytest.importorskip(needed, reason=f"the documentation tools are not installed ({needed})")

DOCS = Path(__file__).parents[1] / "docs"
sys.path.insert(0, str(DOCS / "_ext"))

VERBATIM = {"pre", "code", "script", "style"}
LOADING = {"script": "src", "img": "src", "link": "href", "iframe": "src"}


class Page(HTMLParser):
    """Prose outside code, number of formulas, and the addresses that a browser would fetch."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.prose, self.formulas, self.fetched, self.depth = "", 0, [], 0
        self.feed(html)

    def handle_starttag(self, tag, attributes):
        self.depth += tag in VERBATIM
        self.formulas += tag == "math"
        if tag in LOADING and (address := dict(attributes).get(LOADING[tag])):
            self.fetched.append(address)

    def handle_endtag(self, tag):
        self.depth -= tag in VERBATIM

    def handle_data(self, data):
        self.prose += data if not self.depth else ""


def formulas_in(source: str) -> int:
    """How many dollar formulas a page has outside of code."""
    source = re.sub(r"^(```+|~~~+).*?^\1", "", source, flags=re.S | re.M)
    source = re.sub(r"(`+)(?!`).+?\1", "", source)
    blocks = re.findall(r"\$\$.+?\$\$", source, flags=re.S)
    rest = re.sub(r"\$\$.+?\$\$", "", source, flags=re.S)
    return len(blocks) + len(re.findall(r"(?<!\\)\$[^$]+?(?<!\\)\$", rest))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html"]
    done = subprocess.run(
        [*command, "-d", str(out / "trees"), str(DOCS), str(out / "html")],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return out / "html"


def test_every_formula_is_drawn(site: Path) -> None:
    counted = 0
    for source in DOCS.rglob("*.md"):
        name = source.relative_to(DOCS).with_suffix(".html")
        page = Page((site / name).read_text(encoding="utf-8"))
        assert "$" not in page.prose and "\\" not in page.prose, name
        assert page.formulas >= formulas_in(source.read_text(encoding="utf-8")), name
        counted += page.formulas
    assert counted > 0


def test_nothing_is_fetched_from_elsewhere(site: Path) -> None:
    for file in site.rglob("*.html"):
        for address in Page(file.read_text(encoding="utf-8")).fetched:
            assert not re.match(r"(https?:)?//", address), f"{file.name} loads {address}"
    for file in site.rglob("*.css"):
        style = file.read_text(encoding="utf-8")
        assert not re.search(r"url\(['\"]?(https?:)?//", style), file.name


@pytest.mark.parametrize("latex", [r"\unknown x", r"\frac{1}", r"a \\ b", r"\boxed{x}", "a & b"])
def test_a_formula_that_is_not_understood_stops_the_build(latex: str) -> None:
    from mathml import to_mathml
    from sphinx.errors import ExtensionError

    with pytest.raises(ExtensionError, match="page:1: formula"):
        to_mathml(latex, "inline", "page:1")


def test_fences_know_their_side() -> None:
    from mathml import to_mathml

    drawn = to_mathml(r"\lVert x \rVert", "inline", "page:1")
    assert re.findall(r'form="(\w+)"', drawn) == ["prefix", "postfix"]
