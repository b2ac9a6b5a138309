"""A step between two points, from its first pass to its last; `passes` has the recursion.

A gradient that is None in one pass counts as zero there; a parameter without any gradient in a whole step keeps its
estimate and stays where it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from .estimates import DUE, NONE, READY, Estimates, Squares, drop_gradients, gradients, mixed, with_gradient
from .guards import INSIDE, finite, others_kept
from .hooks import Folding
from .norms import Norms
from .passes import Passes, pass_weight
from .replay import RandomState, frozen_statistics
from .sharding import local, spread
from .updates import Group, Update, axpy_lerp_


def _ahead(estimates: Estimates, group: Group, params: Sequence[Tensor]) -> list[Tensor]:
    beta, m = float(group["beta"]), estimates.momentum(params)
    return mixed(m, estimates.fresh(params), beta, 1 - beta) if group["nesterov"] else m


class TwoPointStep:
    """`passing` old, new and rest; then `finish`, or `abandon`. Both return the squares that the next step may use.

    scaled   gradients carry a GradScaler's factor; nothing is folded before the end
    skip     a pass whose gradients are not finite makes the rest of the step do nothing (`skipped`)
    norms    where squares of the gradients at the new point are added up, or None
    paired   False: the pass at the old point is left out, and the caller brings the difference with `add`
    """

    def __init__(
        self,
        estimates: Estimates,
        squares: Squares | None,
        *,
        scaled: bool = False,
        paired: bool = True,
        skip: bool = False,
        norms: Norms | None = None,
    ) -> None:
        self.estimates, self.scaled = estimates, scaled
        self.skip, self.skipped, self.norms = skip, False, norms
        self.group_of: dict[Tensor, Group] = {p: group for group in estimates.groups for p in group["params"]}
        self.passes = Passes()
        self._squares = squares
        self._due = set(estimates.due())
        self._corrected = paired and bool(self._due)  # without a move there is no difference to correct by
        self._touched: set[Tensor] = set()
        self._refreshed: set[Tensor] = set()
        self._moved = False
        self._kept: dict[Tensor, Tensor] = {}
        self._before: dict[Tensor, Tensor] = {}
        self._sums: list[Tensor] | None = None
        self._random: RandomState | None = None
        self._update = Update(estimates.fused, partial(_ahead, estimates), estimates.seconds)
        if self._due:
            self._measure()

    # What is left of an estimate, and what a gradient counts.

    @property
    def any_due(self) -> bool:
        return bool(self._due)

    def begun(self, p: Tensor) -> bool:
        return self.estimates.stage(p) != NONE

    def _weight(self, p: Tensor, kind: str) -> float:
        part = self.passes.part(kind)
        return pass_weight(self.group_of[p], kind, part, begun=self.begun(p), corrected=self._corrected)

    def _keep(self, p: Tensor) -> float:
        """What is left of the old estimate when the first gradient of a step arrives."""
        if p in self._touched:
            return 1.0
        return float(self.group_of[p]["beta"]) if self.begun(p) else 0.0

    def _alike(self, params: Sequence[Tensor], kind: str) -> list[tuple[list[Tensor], float, float]]:
        """Lists of parameters of one group that take the same two weights, and these."""
        lists: dict[tuple[int, float, float], list[Tensor]] = {}
        known: dict[tuple[int, bool, bool], tuple[float, float]] = {}  # most parameters ask for the same
        for p in params:
            case = id(self.group_of[p]), p in self._touched, self.begun(p)
            if case not in known:
                known[case] = self._keep(p), self._weight(p, kind)
            lists.setdefault((case[0], *known[case]), []).append(p)
        return [(some, keep, take) for (_, keep, take), some in lists.items()]

    # Passes.

    @contextmanager
    def passing(
        self, kind: str, share: float, folding: Folding, module: nn.Module | None, generators: Sequence[Any] = ()
    ) -> Iterator[None]:
        """Backward is called inside; `folding` gives gradients away while it goes on, if memory is lean."""
        with torch.no_grad():
            self.enter(kind, share, generators)
        with ExitStack() as stack:
            stack.enter_context(self.inside())
            if not self.counts(kind):
                stack.enter_context(frozen_statistics(module))
            if kind == "old":
                stack.enter_context(others_kept(set(self.group_of), module))
            if not self.scaled and (kind != "old" or self._corrected):
                stack.enter_context(folding(partial(self._fold, kind=kind)))
            stack.enter_context(torch.enable_grad())
            yield
        with torch.no_grad():
            self.leave(kind)

    def counts(self, kind: str) -> bool:
        """Whether running statistics count the pass: a batch counts once, by the larger of its parts."""
        part = self.passes.part(kind)
        return kind != "old" and (part > 0.5 or (part == 0.5 and kind == "new"))

    @contextmanager
    def inside(self) -> Iterator[None]:
        INSIDE.append(set(self.group_of))
        try:
            yield
        finally:
            INSIDE.pop()

    def enter(self, kind: str, share: float, generators: Sequence[Any] = ()) -> None:
        self.passes.enter(kind, share)
        drop_gradients(self.group_of)
        if kind == "old":
            self._random = RandomState(self.group_of, generators)
        if kind == "new":
            torch.clear_autocast_cache()  # it would hold the weights of the old point
            if self._random is not None:
                self._random.restore()
        if self.scaled and kind != "old":
            self._enter_scaled(kind)

    def _enter_scaled(self, kind: str) -> None:
        """What has arrived waits in .grad, in units of the weight of the pass that comes."""
        if kind == "new":
            self._before = {p: local(p).clone() for p in self._due}
            self.move_due()
        earlier = "old" if kind == "new" else "new"
        for p, grad in self._kept.items():
            p.grad = grad.mul_(self._weight(p, earlier) / self._weight(p, kind))
        self._kept = {}

    def leave(self, kind: str) -> None:
        """A pass ended well."""
        self.passes.leave(kind)
        if self.skip and not self.scaled:
            self.skipped = self.skipped or not finite([p.grad for p in self.group_of if p.grad is not None])
        if self.skipped:
            drop_gradients(self.group_of)
            return
        if self.scaled:
            wanted = kind == "new" or self._corrected
            self._kept = {p: g for p in self.group_of if (g := p.grad) is not None and wanted}
        else:
            if kind != "old" or self._corrected:
                self._fold_all(kind)
            if kind == "old":
                self.move_due()
        if kind == "old":
            drop_gradients(self.group_of)

    # Gradients arrive: a few at a time from a backward's hooks (lean), or all at the end of a pass.

    def _fold(self, params: Sequence[Tensor], kind: str) -> None:
        """Gradients of some parameters into their estimates; the gradients are given back."""
        if kind == "old":
            leaving = [p for p in params if p in self._due]
            params = [p for p in params if p not in self._due]
            self._move_and_fold(leaving)
        if kind == "new" and self.norms is not None:
            self.norms.add(params)
        sums = []
        for some, keep, take in self._alike(params, kind):
            sums.append(self.estimates.fold(some, keep, take))
            if kind != "old":
                self._refresh(some, kind)
            self._taken(some)
        self._sums = None if None in sums or not sums else [part for part in sums if part is not None]

    def _move_and_fold(self, params: list[Tensor]) -> None:
        """Move from where an estimate is due, then begin the next one."""
        for some, keep, take in self._alike(params, "old"):
            group = self.group_of[some[0]]
            if group["geometry"] == "euclidean" and not group["nesterov"]:
                x, m = [local(p) for p in some], self.estimates.shards(some)
                lengths = self._update.lengths(group)
                axpy_lerp_(x, m, gradients(some), *lengths, keep, take, self.estimates.fused)
            else:
                self._update.apply(group, some)
                self.estimates.fold(some, keep, take)
            self._due.difference_update(some)
            self._moved = True
            self._taken(some)

    def _refresh(self, params: list[Tensor], kind: str) -> None:
        if self.group_of[params[0]]["nesterov"]:
            again = [p for p in params if p in self._refreshed]
            for some, keep in ((again, 1.0), ([p for p in params if p not in self._refreshed], 0.0)):
                if some:
                    self.estimates.fold(some, keep, self.passes.part(kind), "fresh")
            self._refreshed.update(params)

    def _taken(self, params: list[Tensor]) -> None:
        self._touched.update(params)
        drop_gradients(params)

    def _fold_all(self, kind: str) -> None:
        sums: list[Tensor] = []
        measured = 0
        for group in self.estimates.groups:
            some = with_gradient(group["params"])
            if some:
                self._fold(some, kind)
                if group["geometry"] == "euclidean" and self._sums is not None:
                    sums += self._sums
                    measured += len(some)
        self._sums = sums if sums and measured == len(self._euclidean(self._touched)) else None

    def add(self, products: dict[Tensor, Tensor]) -> None:
        """To the momentum alone, after a pass: the fresh gradient of nesterov has no part in it."""
        for m, product in zip(self.estimates.momentum(products), products.values(), strict=True):
            m.add_(product)
        self._sums = None if products else self._sums

    # Moves.

    def _euclidean(self, params: set[Tensor]) -> set[Tensor]:
        return {p for p in params if self.group_of[p]["geometry"] == "euclidean"}

    def _measure(self) -> None:
        """The common norm, from squares that are known if they are those of all estimates whose move is due."""
        euclidean = [group for group in self.estimates.groups if group["geometry"] == "euclidean"]
        due = [(group, [p for p in group["params"] if p in self._due]) for group in euclidean]
        sums = None
        if self.estimates.plain:
            known = self._squares
            whole = known is not None and known.members == self._euclidean(self._due)
            sums = known.sums if known and whole else self.estimates.squares([params for _, params in due])
        self._update.measure(due, sums)

    def move_due(self) -> None:
        """Whatever has not moved yet: parameters without a gradient at the old point, or all of them."""
        for group in self.estimates.groups:
            params = [p for p in group["params"] if p in self._due]
            self._update.apply(group, params)
            self._moved = self._moved or bool(params)
        self._due = set()

    # Ends.

    def finish(self, factor: float) -> Squares | None:
        """Every estimate that saw a gradient has a move due. `factor` undoes a scaler's."""
        if self.scaled:
            last = self.passes.done[-1]
            for group in self.estimates.groups:
                for some, keep, take in self._alike(with_gradient(group["params"]), last):
                    self.estimates.fold(some, keep, factor * take)
                    self._taken(some)
        for group in self.estimates.groups:
            some = [p for p in group["params"] if p in self._touched]
            self.estimates.fold_squares(group, some, self.estimates.shards(some))
        rested = [p for p in self.group_of if p not in self._touched and self.estimates.stage(p) == DUE]
        self.estimates.set_stage(self._touched, DUE)
        self.estimates.set_stage(rested, READY)
        for p in self._touched - self._refreshed:  # no gradient at the new point
            if self.group_of[p]["nesterov"]:
                self.estimates.shards([p], "fresh")[0].zero_()
        if self._sums is None or not self.estimates.plain or any(map(spread, self.group_of)):
            return None
        return Squares(self._sums, self._euclidean(self._touched))

    def abandon(self) -> Squares | None:
        """A pass failed: all is as before if nothing has happened yet; else at the new point, without estimates."""
        drop_gradients(self.group_of)
        if self.scaled:
            for p, old in self._before.items():
                local(p).copy_(old)
        elif self._touched or self._moved:
            self.move_due()
            self.estimates.set_stage(self.group_of, NONE)
            return None
        return self._squares
