"""The command `normstorm algorithms`, and the same rows as a page.

    python -m normstorm.cli.algorithms > docs/algorithms.md

writes the page of the algorithms anew.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from typing import Any

from .options import Params, parsed, with_options
from .output import ListInvocation, exit_on_error, show

WORDS = ("cost", "assumes", "rate", "source", "departures")


@with_options(ListInvocation)
def algorithms(params: Params) -> None:
    """List the algorithms of the engine with their sources and costs."""
    with exit_on_error("algorithms"):
        from normstorm.report import terminal

        call, found = parsed(ListInvocation, params), rows()
    show(lambda: found, lambda: terminal.algorithm_parts(found), as_json=call.json)


def rows() -> list[dict[str, Any]]:
    """One row for every algorithm; all words are those of the modules that define it."""
    from normstorm.algorithms.catalogue import CATALOGUE

    return [_row(name, make) for name, make in CATALOGUE.items()]


def _row(name: str, make: Any) -> dict[str, Any]:
    from normstorm.algorithms import introspection

    own, module = _docs(make)
    return {
        "name": name,
        "description": " ".join(own.partition("\n\n")[0].split()),
        **{key: _paragraph(own, key.title()) or _paragraph(module, key.title()) for key in WORDS},
        "sample_gradients": introspection.cost(make),
        "state": introspection.state(make),
        "needs": introspection.requirements(make),
        "parameters": list(inspect.signature(make).parameters),
    }


def _docs(make: Any) -> tuple[str, str]:
    return inspect.getdoc(make) or "", (sys.modules[make.__module__].__doc__ or "").strip()


def _paragraph(text: str, word: str) -> str:
    """What follows `word:` up to the next such word or an empty line."""
    found = re.search(rf"^{word}: (.+?)(?=\n\s*\n|\n(?:{'|'.join(w.title() for w in WORDS)}): |\Z)", text, re.M | re.S)
    return " ".join(found[1].split()) if found else ""


INTRODUCTION = """# Algorithms

<!-- Generated from the code: python -m normstorm.cli.algorithms > docs/algorithms.md -->

Every algorithm of the catalogue, `normstorm.algorithms.CATALOGUE`. Recursions, sources, assumptions and rates are those
of the docstrings. Cost, state and needs are found by trying the code.

- **Letters**: $d$ numbers in $x$, $n$ components of a finite sum, $T$ steps, `g` a mean of sample gradients.
- **Assumes** and **Rate**: under which assumptions which order of the gradient norm is proven, with parameters that
  suit the horizon. "None stated" means that we vouch for none, "none known" that we know of none.
- **Sample gradients**: those of the first step, of every later one, and of a later step that restarts.
- **State**: how many numbers go from one step to the next beside $x$. The engine hands the old point and the estimate
  on for all algorithms, also for those that need neither. State and sample gradients are those of the default options.
- **Needs**: what problem and $x$ must be. `Algorithm.refusal(problem, x)` says it in a sentence.
- **Departures**: where the code differs from the source.
"""


def cards_page() -> str:
    """docs/algorithms.md: a section for every module, a card for every algorithm."""
    from normstorm.algorithms.catalogue import CATALOGUE

    parts, title = [INTRODUCTION], ""
    for row in rows():
        make = CATALOGUE[row["name"]]
        own, module = _docs(make)
        if (heading := re.split(r"[.:;,]", module)[0]) != title:
            title = heading
            parts += [f"## {title}\n", *_prose_and_formulas(module, skip=module.startswith(f"{title}.\n"))]
        parts += [f"### `{row['name']}`\n", *_prose_and_formulas(own), _card(make, row)]
    return "\n".join(parts)


def _prose_and_formulas(text: str, skip: bool = False) -> Iterator[str]:
    """The paragraphs without the fixed words; indented ones are formulas. `skip` leaves the first one out."""
    fixed = tuple(f"{word.title()}: " for word in WORDS)
    for paragraph in re.split(r"\n\s*\n", text)[skip:]:
        if paragraph.startswith("    "):
            yield f"```text\n{inspect.cleandoc(paragraph)}\n```\n"
        elif not paragraph.startswith(fixed):
            yield " ".join(paragraph.split()) + "\n"


def _card(make: Any, row: dict[str, Any]) -> str:
    asked = ", ".join(f"{step} `{form}`" for step, form in row["sample_gradients"].items())
    signature = inspect.signature(make).parameters.values()
    given = [p.name if p.default is p.empty else f"{p.name}={p.default!r}" for p in signature]
    lines = {
        "Source": row["source"],
        "Assumes": row["assumes"],
        "Rate": row["rate"],
        "Cost": row["cost"],
        "Sample gradients": asked,
        "State": f"`{row['state']}`",
        "Needs": _needed(row),
        "Departures": row["departures"],
        "Parameters": ", ".join(f"`{name}`" for name in given),
    }
    return "".join(f"- **{name}**: {value}\n" for name, value in lines.items())


def _needed(row: dict[str, Any]) -> str:
    """The needs of an algorithm in words."""
    words = (need if when == "always" else f"{need} ({when})" for need, when in row["needs"].items())
    return "; ".join(words) or "nothing special"


if __name__ == "__main__":
    print(cards_page(), end="")
