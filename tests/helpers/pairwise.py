"""Few cases in which any two values of any two options meet, in place of the full product."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import combinations, product
from typing import Any

Case = dict[str, Any]


def every(options: Mapping[str, Sequence[Any]]) -> list[Case]:
    """The full product, the last option fastest."""
    return [dict(zip(options, values, strict=True)) for values in product(*options.values())]


def pairwise(
    options: Mapping[str, Sequence[Any]],
    *,
    allowed: Callable[[Case], bool] = lambda case: True,
    also: Iterable[Case] = (),
) -> list[Case]:
    """Cases that hold every pair of values that an allowed case can hold; the same ones in every process.

    allowed   whether a case makes sense
    also      parts of cases, as {"memory": "lean", "geometry": "sign", "nesterov": True}, that must be held too

    Greedy: again and again the first case of the product that holds the most of what is missing. So the product is
    looked through, which is right for thousands of cases and not for millions.
    """
    indices = every({name: range(len(values)) for name, values in options.items()})
    meant = [{name: options[name][i] for name, i in case.items()} for case in indices]
    parts = [frozenset((name, list(options[name]).index(value)) for name, value in part.items()) for part in also]
    found = {
        n: _pairs(case) | {part for part in parts if part <= set(case.items())}
        for n, case in enumerate(indices)
        if allowed(meant[n])
    }
    missing = set().union(*found.values())
    if lost := [part for part in parts if part not in missing]:
        raise ValueError(f"pairwise: also must be parts of allowed cases; got {len(lost)} that are not")
    chosen = []
    while missing:
        best = max(found, key=lambda n: (len(found[n] & missing), -n))
        chosen.append(best)
        missing -= found[best]
    return [meant[n] for n in sorted(chosen)]


def _pairs(case: Case) -> set[frozenset[tuple[str, int]]]:
    items = list(case.items())
    return {frozenset(pair) for pair in combinations(items, min(2, len(items)))}
