"""Sums of many numbers that do not lose the small ones."""

from __future__ import annotations

from typing import Any


def kahan(total: Any, lost: Any, added: Any) -> tuple[Any, Any]:
    """A sum and what rounding has taken from it: a plain one stops growing, in float32 after some 10^7 steps."""
    term = added - lost
    summed = total + term
    return summed, (summed - total) - term
