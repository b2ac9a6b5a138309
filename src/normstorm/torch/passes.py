"""The passes of a step between two points: their order, and what a gradient counts in each.

    old     k samples at x_{t-1}       m <- beta m - c beta g,   and the weights move to x_t
    new     the same k at x_t          m <- m + (c beta + (1 - beta) k / K) g
    rest    the other K - k at x_t     m <- m + (1 - beta) (1 - k / K) g

An estimate that does not exist yet starts at the mean over all K samples.
"""

from __future__ import annotations

from .options import WHO
from .updates import Group

BEFORE = {"old": ([],), "new": ([], ["old"]), "rest": (["new"], ["old", "new"])}


class Passes:
    """Which are done, which one is under way, and the share k / K."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.inside: str | None = None
        self.share = 1.0

    def check_order(self, kind: str) -> None:
        if self.inside is not None or self.done not in BEFORE[kind]:
            where = f"inside {self.inside}" if self.inside else f"after {', '.join(self.done) or 'none'}"
            raise RuntimeError(f"{WHO}: passes must come in the order old_point, new_point, rest; got {kind} {where}")
        if kind == "rest" and self.share == 1:
            raise RuntimeError(f"{WHO}: rest needs new_point(share=k/K) with a share below 1; got share=1")

    def check_complete(self) -> None:
        if "new" not in self.done or (self.share < 1 and "rest" not in self.done):
            missing = "rest" if "new" in self.done else "new_point"
            raise RuntimeError(f"{WHO}: step() must come after the last pass; {missing} is missing")

    def enter(self, kind: str, share: float) -> None:
        self.inside = kind
        self.share = share if kind == "new" else self.share

    def leave(self, kind: str) -> None:
        self.inside = None
        self.done.append(kind)

    def part(self, kind: str) -> float:
        """Of all samples, how many the pass sees."""
        return 1 - self.share if kind == "rest" else self.share


def first_weight(group: Group) -> float:
    """The weight of the first gradient of an estimate."""
    return 1.0 if group["start"] == "first" else 1 - float(group["beta"])


def across(group: Group) -> float:
    """The weight of the difference."""
    return float(group["beta"]) * float(group["correction"])


def pass_weight(group: Group, kind: str, part: float, *, begun: bool, corrected: bool) -> float:
    """What a gradient counts; `begun`: there is an estimate, `corrected`: by the difference of two gradients."""
    if not begun:
        return 0.0 if kind == "old" else part * first_weight(group)
    difference = across(group) if corrected else 0.0
    if kind == "old":
        return -difference
    return (1 - float(group["beta"])) * part + (difference if kind == "new" else 0.0)
