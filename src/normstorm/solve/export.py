"""A result as text, as HTML for a notebook, as a file and as a table: x with its names, F(x) and the certificate."""

from __future__ import annotations

import csv
import io
import json
import os
from html import escape
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from normstorm._shared.files import checked, writable, write_atomically
from normstorm._shared.jsonable import jsonable

if TYPE_CHECKING:
    from .result import Result

Tree = Any
MOST_NUMBERS = 12  # of x that are shown
ABOVE = ", where F is larger than at the start"  # the end of a reason


def named_numbers(x: Tree) -> list[tuple[str, float]]:
    """Every number of x with its name: x[3], or where x has parts, ['weights'][3, 0]."""
    found = []
    for path, leaf in jax.tree_util.tree_leaves_with_path(x):
        name = jax.tree_util.keystr(path) or "x"
        for place, value in np.ndenumerate(np.asarray(leaf, np.float64)):
            found.append((f"{name}[{', '.join(map(str, place))}]" if place else name, float(value)))
    return found


def shown_numbers(x: Tree, where: str = "result.x") -> str:
    """The first numbers of x, and where all of them are."""
    numbers = np.concatenate([np.ravel(np.asarray(leaf, np.float64)) for leaf in jax.tree.leaves(x)])
    shown = ", ".join(f"{number:.6g}" for number in numbers[:MOST_NUMBERS])
    return shown + (f", ... ({len(numbers):,} numbers, all in {where})" if len(numbers) > MOST_NUMBERS else "")


def result_rows(result: Result) -> list[tuple[str, str]]:
    """What a reader wants first."""
    found = [("x", shown_numbers(result.x)), ("F(x)", "unknown" if result.value is None else str(result.value))]
    found += [("certificate", result.certificate.guarantee), ("sample gradients", f"{result.sample_gradients:,}")]
    if ABOVE in result.reason:
        found.insert(2, ("which", result.reason))
    if not result.certificate.certified and result.certificate.target is not None:
        found.insert(-1, ("target", f"not reached: {result.certificate.target:.4g} was asked for; {result.reason}"))
    return [*found, ("warning", result.void)] if result.void else found


def as_text(result: Result) -> str:
    return "\n".join(f"{name + ':':18}{value}" for name, value in result_rows(result))


def as_html(result: Result) -> str:
    cells = "".join(f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in result_rows(result))
    return f"<table>{cells}</table>"


def as_csv(x: Tree) -> str:
    """Two columns, name and value, with all digits."""
    lines = io.StringIO()
    table = csv.writer(lines, lineterminator="\n")
    table.writerow(("name", "value"))
    table.writerows((name, repr(value)) for name, value in named_numbers(x))
    return lines.getvalue()


def as_json(result: Result) -> str:
    found = {
        "x": dict(named_numbers(result.x)),
        "value": None if result.value is None else result.value.to_dict(),
        "certificate": result.certificate.to_dict(),
        "method": result.method,
        "race": None if result.race is None else result.race.to_dict(),
        "trajectory": result.trajectory.to_dict(),
        "contradictions": None if result.contradictions is None else result.contradictions.to_dict(),
        "sample_gradients": result.sample_gradients,
        "beside": result.beside,
    }
    return json.dumps(jsonable(found), indent=2, allow_nan=False) + "\n"


def save_result(result: Result, file: str | os.PathLike[str]) -> None:
    """x as .csv, or x with its certificate as .json; whole or not at all."""
    if not isinstance(file, str | os.PathLike):
        raise ValueError(f"save: file must be a path that ends in .csv or .json; got file={file!r}")
    path = checked("save: file", file, (".csv", ".json"))
    writable("save: file", path)
    write_atomically(path, as_csv(result.x) if path.suffix.lower() == ".csv" else as_json(result))


def as_dataframe(result: Result) -> Any:
    """A pandas table of the numbers of x, a row for each, named."""
    try:
        import pandas
    except ModuleNotFoundError:
        raise ModuleNotFoundError("to_dataframe: pandas must be installed; got no module of this name") from None
    names, values = zip(*named_numbers(result.x), strict=True)
    return pandas.DataFrame({"value": values}, index=pandas.Index(names, name="name"))
