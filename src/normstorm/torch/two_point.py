"""One step of the optimizer: gradients into estimates, estimates into moves.

`Walk` is a step between two points, from its first pass to its last. Its passes are

    old     k samples at x_{t-1}       m <- beta m - c beta g,   and the weights move to x_t
    new     the same k at x_t          m <- m + (c beta + (1 - beta) k / K) g
    rest    the other K - k at x_t     m <- m + (1 - beta) (1 - k / K) g

An estimate that does not exist yet starts at the mean over all K samples. A gradient that is None in one pass counts as
zero there; a parameter without any gradient in a whole step keeps its estimate and stays where it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from . import kernels
from .moves import DUE, NONE, READY, Group, Move, buffer, first_weight, gradients, mixed, with_gradient
from .options import WHO
from .replay import RandomState
from .shards import local, spread
from .update import blend, carry

if TYPE_CHECKING:
    from .optimizer import NormalizedStorm


class Walk:
    """A step between two points. `scaled`: gradients carry a GradScaler's factor; nothing is folded before the end."""

    def __init__(self, optimizer: NormalizedStorm, scaled: bool) -> None:
        self.optimizer = optimizer
        self.scaled = scaled
        self.state = optimizer.state
        self.fused = optimizer.fused
        self.groups: list[Group] = optimizer.param_groups
        self.group_of = {p: group for group in self.groups for p in group["params"]}
        self.due = {p for p in self.group_of if self.state[p]["stage"] == DUE}
        self.corrected = bool(self.due)  # without a move there is no difference to correct by
        self.share = 1.0
        self.passes: list[str] = []
        self.inside: str | None = None
        self.touched: set[Tensor] = set()
        self.refreshed: set[Tensor] = set()
        self.moved = False
        self.kept: dict[Tensor, Tensor] = {}
        self.before: dict[Tensor, Tensor] = {}
        self.sums: list[Tensor] | None = None
        self.random: RandomState | None = None
        self.move = Move(self.fused, self.estimates)
        if self.due:
            self._measure()

    def _measure(self) -> None:
        euclidean = [group for group in self.groups if group["geometry"] == "euclidean"]
        due = [(group, [p for p in group["params"] if p in self.due]) for group in euclidean]
        sums, measured = self.optimizer._sums or (None, set())
        plain = self.optimizer.plain_estimates
        sums = sums if plain and measured == {p for _, params in due for p in params} else None
        if sums is None and plain:
            lists = [[self.state[p]["momentum"] for p in params] for _, params in due if params]
            sums = [part for part in map(self._kernel_squares, lists) if part is not None]
            sums = sums if len(sums) == len(lists) and sums else None
        self.move.measure(due, sums)

    def _kernel_squares(self, estimates: list[Tensor]) -> Tensor | None:
        """As the kernels add them, so that a run that is resumed goes on bit by bit."""
        fit = not any(map(spread, estimates)) and kernels.serve(self.fused, estimates)
        return kernels.squares(estimates) if fit else None

    def estimates(self, group: Group, params: Sequence[Tensor]) -> list[Tensor]:
        beta = float(group["beta"])
        m = [self.state[p]["momentum"] for p in params]
        return mixed(m, [self.state[p]["fresh"] for p in params], beta, 1 - beta) if group["nesterov"] else m

    def weight(self, p: Tensor, kind: str) -> float:
        group = self.group_of[p]
        beta = float(group["beta"])
        part = 1 - self.share if kind == "rest" else self.share
        if self.state[p]["stage"] == NONE:
            return 0.0 if kind == "old" else part * first_weight(group)
        across = beta * float(group["correction"]) if self.corrected else 0.0
        if kind == "old":
            return -across
        return (1 - beta) * part + (across if kind == "new" else 0.0)

    def keep(self, p: Tensor) -> float:
        """What is left of the old estimate when the first gradient of a step arrives."""
        if p in self.touched:
            return 1.0
        return 0.0 if self.state[p]["stage"] == NONE else float(self.group_of[p]["beta"])

    def check_order(self, kind: str) -> None:
        before = {"old": ([],), "new": ([], ["old"]), "rest": (["new"], ["old", "new"])}
        if self.inside is not None or self.passes not in before[kind]:
            done = f"inside {self.inside}" if self.inside else f"after {', '.join(self.passes) or 'none'}"
            raise RuntimeError(f"{WHO}: passes must come in the order old_point, new_point, rest; got {kind} {done}")
        if kind == "rest" and self.share == 1:
            raise RuntimeError(f"{WHO}: rest needs new_point(share=k/K) with a share below 1; got share=1")

    # Gradients arrive: a few at a time from a backward's hooks (lean), or all at the end of a pass.

    def enter(self, kind: str, share: float) -> None:
        self.inside = kind
        self.share = share if kind == "new" else self.share
        for p in self.group_of:
            p.grad = None
        if kind == "old":
            self.random = RandomState(self.group_of)
        if kind == "new":
            torch.clear_autocast_cache()  # it would hold the weights of the old point
            if self.random is not None:
                self.random.restore()
        if self.scaled and kind != "old":
            self._enter_scaled(kind)

    def _enter_scaled(self, kind: str) -> None:
        """What has arrived waits in .grad, in units of the weight of the pass that comes."""
        if kind == "new":
            self.before = {p: local(p).clone() for p in self.due}
            self._move_rest()
        earlier = "old" if kind == "new" else "new"
        for p, grad in self.kept.items():
            p.grad = grad.mul_(self.weight(p, earlier) / self.weight(p, kind))
        self.kept = {}

    def fold(self, params: Sequence[Tensor], kind: str) -> None:
        """Gradients of some parameters into their estimates; the gradients are given back."""
        if kind == "old":
            leaving = [p for p in params if p in self.due]
            params = [p for p in params if p not in self.due]
            self._carry(leaving)
        sums = []
        for some in self._alike(params, kind):
            first = some[0]
            part = blend(
                self._shards(some, "momentum"), gradients(some), self.keep(first), self.weight(first, kind), self.fused
            )
            if kind != "old":
                self._refresh(some, kind)
            self._finish(some)
            sums.append(part)
        self.sums = None if None in sums or not sums else [part for part in sums if part is not None]

    def _carry(self, params: list[Tensor]) -> None:
        """Move from where an estimate is due, then begin the next one."""
        for some in self._alike(params, "old"):
            group, first = self.group_of[some[0]], some[0]
            keep, take = self.keep(first), self.weight(first, "old")
            m = self._shards(some, "momentum")
            if group["geometry"] == "euclidean" and not group["nesterov"]:
                x = [local(p) for p in some]
                carry(x, m, gradients(some), *self.move.lengths(group), keep, take, self.fused)
            else:
                self.move(group, some)
                blend(m, gradients(some), keep, take, self.fused)
            self.due.difference_update(some)
            self.moved = True
            self._finish(some)

    def _finish(self, params: list[Tensor]) -> None:
        self.touched.update(params)
        for p in params:
            p.grad = None

    def _refresh(self, params: list[Tensor], kind: str) -> None:
        if self.group_of[params[0]]["nesterov"]:
            part = 1 - self.share if kind == "rest" else self.share
            again = [p for p in params if p in self.refreshed]
            for some, keep in ((again, 1.0), ([p for p in params if p not in self.refreshed], 0.0)):
                if some:
                    blend(self._shards(some, "fresh"), gradients(some), keep, part, self.fused)
            self.refreshed.update(params)

    def _shards(self, params: Sequence[Tensor], name: str) -> list[Tensor]:
        return [local(buffer(self.state[p], p, name)) for p in params]

    def _alike(self, params: Sequence[Tensor], kind: str) -> list[list[Tensor]]:
        """Lists of parameters of one group that take the same two weights."""
        lists: dict[tuple[int, float, float], list[Tensor]] = {}
        for p in params:
            lists.setdefault((id(self.group_of[p]), self.keep(p), self.weight(p, kind)), []).append(p)
        return list(lists.values())

    def _move_rest(self) -> None:
        """Whatever has not moved yet: parameters without a gradient at the old point, or all of them."""
        for group in self.groups:
            params = [p for p in group["params"] if p in self.due]
            self.move(group, params)
            self.moved = self.moved or bool(params)
        self.due = set()

    # Ends.

    def leave(self, kind: str) -> None:
        """A pass ended well."""
        self.inside = None
        self.passes.append(kind)
        if self.scaled:
            self.kept = {p: g for p in self.group_of if (g := p.grad) is not None and (kind == "new" or self.corrected)}
            for p in self.group_of if kind == "old" else ():
                p.grad = None
            return
        if kind != "old" or self.corrected:
            self._fold_all(kind)
        if kind == "old":
            self._move_rest()
            for p in self.group_of:
                p.grad = None

    def _fold_all(self, kind: str) -> None:
        sums: list[Tensor] = []
        measured = 0
        for group in self.groups:
            some = with_gradient(group["params"])
            if some:
                self.fold(some, kind)
                if group["geometry"] == "euclidean" and self.sums is not None:
                    sums += self.sums
                    measured += len(some)
        euclidean = [p for p in self.touched if self.group_of[p]["geometry"] == "euclidean"]
        self.sums = sums if sums and measured == len(euclidean) else None

    def finish(self, factor: float) -> None:
        """The step is complete: every estimate that saw a gradient has a move due. `factor` undoes a scaler's."""
        if self.scaled:
            last = self.passes[-1]
            for group in self.groups:
                for some in self._alike(with_gradient(group["params"]), last):
                    take = factor * self.weight(some[0], last)
                    blend(self._shards(some, "momentum"), gradients(some), self.keep(some[0]), take, self.fused)
                    self._finish(some)
        for p in self.group_of:
            if p in self.touched:
                self.state[p]["stage"] = DUE
                if self.group_of[p]["nesterov"] and p not in self.refreshed:  # no gradient at the new point
                    local(buffer(self.state[p], p, "fresh")).zero_()
            elif self.state[p]["stage"] == DUE:
                self.state[p]["stage"] = READY
        plain = self.optimizer.plain_estimates and not any(map(spread, self.group_of))
        euclidean = {p for p in self.touched if self.group_of[p]["geometry"] == "euclidean"}
        self.optimizer._sums = (self.sums, euclidean) if plain and self.sums is not None else None

    def abandon(self) -> None:
        """A pass failed: all is as before if nothing has happened yet; else at the new point, without estimates."""
        for p in self.group_of:
            p.grad = None
        if self.scaled:
            for p, old in self.before.items():
                local(p).copy_(old)
        elif self.touched or self.moved:
            self._move_rest()
            for p in self.group_of:
                self.state[p]["stage"] = NONE
            self.optimizer._sums = None
