"""Numbers of the steps of a block, (n,): running sums and maxima, and what stands first."""

from __future__ import annotations

import math
from typing import Any


def _upto(xp: Any, values: Any) -> Any:
    """(n, n): whether step j comes before step s or is it."""
    steps = xp.arange(values.shape[0])
    return steps[None, :] <= steps[:, None]


def running_sums(xp: Any, values: Any) -> Any:
    """Running sums. A block is short: of all pairs at once it is quicker than one after the other."""
    return xp.sum(xp.where(_upto(xp, values), values, 0.0), 1)


def running_maxima(xp: Any, values: Any) -> Any:
    """Running maxima."""
    return xp.max(xp.where(_upto(xp, values), values, -math.inf), 1)


def totals(xp: Any, which: Any, parts: dict[str, Any]) -> dict[str, Any]:
    """The sums of several numbers over some of the steps, `which`; each is of every step, or one for all of them."""
    count = xp.sum(which)
    return {k: xp.sum(xp.where(which, v, 0.0)) if xp.ndim(v) else v * count for k, v in parts.items()}


def one_step_later(xp: Any, first: Any, values: Any) -> Any:
    """`first`, and what stands one step earlier."""
    return xp.concatenate([xp.asarray(first)[None], values[:-1]])


def first_place(xp: Any, which: Any) -> Any:
    """The place of the first one, or the number of all."""
    return xp.min(xp.where(which, xp.arange(which.shape[0]), which.shape[0]), 0)


def at_first(values: Any) -> Any:
    return values[0] if values.ndim else values
