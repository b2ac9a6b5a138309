"""Formulas become MathML while the pages are built: the site needs no script and no network.

latex2mathml does the conversion. What it emits is then brought to the subset that browsers draw
(MathML Core), and a formula that is not fully understood stops the build.
"""

from __future__ import annotations

import re
from typing import Any
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError
from sphinx.util.math import get_node_equation_number
from sphinx.writers.html5 import HTML5Translator

NAMESPACE = "http://www.w3.org/1998/Math/MathML"
ARITY = {"mfrac": 2, "msub": 2, "msup": 2, "munder": 2, "mover": 2, "mroot": 2}
ARITY |= {"msubsup": 3, "munderover": 3}
SCRIPTS = {"msub", "msup", "msubsup", "munder", "mover", "munderover"}
ACCENTS = {"~": "˜", "^": "ˆ", "¯": "¯", "―": "¯", "˙": "˙", "→": "→"}
TALL = {"mfrac", "msqrt", "mroot", "mtable", "munder", "munderover", "mover"}
CAPITALS = tuple("ΓΔΘΛΞΠΣΥΦΨΩ")
ORDINARY = tuple("∞…⋯∅∀∃")
SIGNS = tuple("−+±")
CLOSE_TO_NAMES = tuple("()[],;|")
TIGHT = {"lspace": "0", "rspace": "0"}
# The converter forgets which side a fence stands on; a private character carries it through.
PAIRS = {"Vert": "‖‖", "vert": "||", "ceil": "⌈⌉", "floor": "⌊⌋", "angle": "⟨⟩"}
FENCES = {
    side + name: (chr(0xE000 + 2 * i + j), pair[j], ("prefix", "postfix")[j])
    for i, (name, pair) in enumerate(PAIRS.items())
    for j, side in enumerate("lr")
}
FENCE_OF = {mark: (glyph, form) for mark, glyph, form in FENCES.values()}


def to_mathml(latex: str, display: str, where: str) -> str:
    """The MathML of one formula; ExtensionError names the formula and its page."""
    try:
        root = ElementTree.fromstring(convert(_prepared(latex), display=display))
    except Exception as error:
        raise ExtensionError(f"{where}: formula {latex!r} is refused ({error!r})") from error
    for element in root.iter():
        element.tag = element.tag.removeprefix(f"{{{NAMESPACE}}}")
    for element in list(root.iter()):
        _refuse_half_converted(element, latex, where)
        _repair(element)
    for element in root.iter():
        _space(element)
    root.set("xmlns", NAMESPACE)
    return ElementTree.tostring(root, encoding="unicode")


def _prepared(latex: str) -> str:
    latex = re.sub(r"\\(begin|end)\{aligned\}", r"\\\1{align*}", latex)
    latex = re.sub(r"\\(math(?:bb|cal|bf|sf|frak))\s+(\w)", r"\\\1{\2}", latex)
    latex = latex.replace(":=", r"\coloneqq ")
    return re.sub(rf"\\({'|'.join(FENCES)})(?![A-Za-z])", lambda match: FENCES[match[1]][0], latex)


def _refuse_half_converted(element: Element, latex: str, where: str) -> None:
    wrong = (
        "\\" in (element.text or "")
        or element.tag in ("menclose", "mfenced")
        or "linebreak" in element.attrib
        or len(element) != ARITY.get(element.tag, len(element))
    )
    if wrong:
        found = element.text or element.tag
        raise ExtensionError(f"{where}: formula {latex!r} is only half understood, at {found!r}")


def _repair(element: Element) -> None:
    """Change what browsers would draw wrongly, in place."""
    if element.text in FENCE_OF:
        element.text, form = FENCE_OF[element.text]
        element.tag = "mo"
        element.set("form", form)
        if "minsize" not in element.attrib and element.get("stretchy") != "true":
            element.set("stretchy", "false")
    elif element.tag == "mi" and element.text == ":":
        element.tag = "mo"
    elif element.tag == "mi" and element.text in CAPITALS:
        element.set("mathvariant", "normal")
    elif element.tag == "mo" and element.text in ORDINARY:
        element.tag = "mi"
    elif element.tag == "mo" and element.text == "/":
        element.attrib |= TIGHT
    elif element.tag == "mspace" and element.get("width") == "negativethinmathspace":
        element.set("width", "-0.167em")
    elif element.tag == "mover" and element[1].text in ACCENTS:
        element.set("accent", "true")
        element[1].text = ACCENTS[element[1].text]
    elif element.tag == "mrow" and not any(inner.tag in TALL for inner in element.iter()):
        for fence in element.iterfind("mo[@fence][@form]"):
            fence.set("stretchy", "false")  # a stretchy fence takes the width of its largest size


def _space(row: Element) -> None:
    """Spaces that depend on the neighbours: thin ones around log and max, none after a sign."""
    children = list(row) if row.tag not in SCRIPTS else []
    for i, child in enumerate(children):
        core = _core(child)
        before = _core(children[i - 1]) if i else None
        after = _core(children[i + 1], rows=True) if i + 1 < len(children) else None
        if _is_name(core):
            tight = after is None or (after.tag == "mo" and after.text in CLOSE_TO_NAMES)
            core.tag = "mo"
            core.set("lspace", "0" if before is None or before.tag == "mo" else "0.167em")
            core.set("rspace", "0" if tight else "0.167em")
        elif core.tag == "mo" and core.text in SIGNS and before is not None:
            closed = before.get("form") == "postfix" or before.text in tuple(")]}")
            if before.tag == "mo" and not closed:
                core.set("form", "prefix")


def _is_name(element: Element) -> bool:
    """A function name: letters in an operator, or several letters in an identifier."""
    name = element.text or ""
    letters = name.isascii() and name.isalpha()
    return letters and (element.tag == "mo" or (element.tag == "mi" and len(name) > 1))


def _core(element: Element, rows: bool = False) -> Element:
    """What a base with scripts, or a row that is to be entered, begins with."""
    while len(element) and (element.tag in SCRIPTS or (rows and element.tag == "mrow")):
        element = element[0]
    return element


def visit_inline(self: HTML5Translator, node: nodes.math) -> None:
    """Inline formula."""
    where = f"{self.builder.current_docname}:{node.line or node.parent.line}"
    self.body.append(to_mathml(node.astext(), "inline", where))
    self.body.append("\u2060")  # a word joiner: no line begins with the comma after a formula
    raise nodes.SkipNode


def visit_block(self: HTML5Translator, node: nodes.math_block) -> None:
    """Displayed formula, its number or tag at the right."""
    where = f"{self.builder.current_docname}:{node.line}"
    latex, tag = node.astext(), ""
    if found := re.search(r"\\tag\{([^}]*)\}", latex):
        latex, tag = latex.replace(found[0], ""), f"({found[1]})"
    elif node.get("number"):
        tag = f"({get_node_equation_number(self, node)})"
    self.body.append(self.starttag(node, "div", CLASS="formula"))
    self.body.append(to_mathml(latex, "block", where))
    if tag:
        self.body.append(f'<span class="eqno">{self.encode(tag)}</span>')
    self.body.append("</div>\n")
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the renderer under the name `mathml`."""
    app.add_html_math_renderer("mathml", (visit_inline, None), (visit_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
