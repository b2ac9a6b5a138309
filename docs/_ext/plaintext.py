"""Docstrings as they are written: plain text, whose columns and formulas are not markup.

The first paragraph becomes prose, examples become Python, everything else is shown as it stands.
"""

from __future__ import annotations

import re
from typing import Any

from sphinx.application import Sphinx

MARKUP = re.compile(r"([\\*`|_<>\[\]])")


def to_rst(text: str) -> list[str]:
    """A docstring as reStructuredText without markup of its own."""
    first, *rest = re.split(r"\n\s*\n", text.strip("\n"))
    lines = [MARKUP.sub(r"\\\1", " ".join(first.split())), ""]
    blocks: list[tuple[str, list[str]]] = []
    for paragraph in rest:
        kind = "python" if paragraph.lstrip().startswith(">>>") else "text"
        if blocks and blocks[-1][0] == kind:
            blocks[-1][1].append("")
        else:
            blocks.append((kind, []))
        blocks[-1][1].extend(paragraph.split("\n"))
    for kind, block in blocks:
        lines += [f".. code-block:: {kind}", "", *(f"   {line}".rstrip() for line in block), ""]
    return lines


def _plain(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    if any(line.strip() for line in lines):
        lines[:] = to_rst("\n".join(lines))


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("autodoc-process-docstring", _plain)
    return {"parallel_read_safe": True}
