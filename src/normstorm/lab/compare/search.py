"""The search for settings: who is refused, what is the best, what is tried next, and how sure the choice is.

**Refused** is a setting whose median over the seeds ends above F(x_1): a flat place far away has small gradients, and
is no solution. If all settings of a method are refused, the one that ends lowest is shown, and marked.

**Extended** is a grid whose best setting has neighbours that were not tried: they are tried next, for every goal, until
the best setting has none left or ROUNDS are over; then it is marked. Neighbours along one parameter come first, then
those along both, in which a valley that lies across the grid goes on.

**Chosen again.** The choice is part of what is uncertain. Seeds of the search are drawn again with replacement, the
setting is chosen again, and the median is taken over runs of that setting that are drawn again: those of the comparison
if it was run there, else those of the search. The interval of a tuned median holds at least 95 % of what comes out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .methods import Method, Place, Scales
from .quantiles import LEVEL, rank

ROUNDS = 8
RESAMPLES = 200
FAR = 24  # powers of the step between which a theorem's setting is looked for
STEP = "step"


@dataclass(frozen=True)
class Scores:
    """Of all settings of one algorithm, (settings, seeds): the goal's numbers, the averages, and F at the end."""

    goal: np.ndarray
    average: np.ndarray
    value: np.ndarray

    def best(self, start: float, seeds: Any = slice(None)) -> np.ndarray:
        """The setting with the smallest median among those that end at or below F(x_1), then by the average.

        If there are none, the one that ends lowest. `seeds` (..., n) are columns, perhaps with repetitions.
        """
        goal, average, value = (medians(part[:, seeds]) for part in (self.goal, self.average, self.value))
        astray = value > start
        first: np.ndarray = np.lexsort((average, np.where(astray, value, goal), astray), axis=0)[0]
        return first

    def of(self, settings: np.ndarray) -> Scores:
        """Of these settings alone."""
        return Scores(self.goal[settings], self.average[settings], self.value[settings])

    def refused(self, start: float) -> np.ndarray:
        """Which settings end above F(x_1), by the median."""
        return medians(self.value) > start


def medians(table: np.ndarray) -> np.ndarray:
    """Of every row, as `quantiles.estimate` has it."""
    found: np.ndarray = np.sort(table, axis=-1)[..., rank(table.shape[-1], 0.5) - 1]
    return found


class Grid:
    """What was tried for one algorithm: settings with their places (None for those of theorems), and their runs.

    `scored` keeps what was computed from them: the numbers of a run for a goal.
    """

    def __init__(self, method: Method, known: Scales, affords: Callable[[dict[str, Any]], bool]) -> None:
        self.method, self.known, self.affords = method, known, affords
        self.settings: list[dict[str, Any]] = []
        self.places: list[Place | None] = []
        self.runs: list[Any] = []
        self.scored: dict[tuple[int, Any], np.ndarray] = {}

    def begin(self, others: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """The first settings to run: the grid's, and others beside it."""
        todo = self._add(self.method.places)
        self.settings += others
        self.places += [None] * len(others)
        return [*todo, *others]

    def extend(self, bests: Sequence[int]) -> list[dict[str, Any]]:
        """Neighbours of these settings that were not tried yet, else diagonals; for a theorem's, the place near it."""
        found: list[Place] = []
        for best in bests:
            place = self.places[best] or self._near(self.settings[best])
            around = [place, *neighbours(place)]
            found += around if any(map(self._missing, around)) else diagonals(place)
        return self._add(found)

    def _near(self, settings: dict[str, Any]) -> Place:
        """The place whose setting is the closest, by the ratios of the numbers that both have; else the default's."""
        default = (0, self.method.rung)
        if not any(_positive(value) and _positive(settings.get(name)) for name, value in self._at(default).items()):
            return default

        def far(place: Place) -> float:
            pairs = ((other, settings.get(name)) for name, other in self._at(place).items())
            return sum(abs(math.log(a / b)) for a, b in pairs if _positive(a) and _positive(b))

        rungs, powers = range(len(self.method.ladder)), range(-FAR, FAR + 1)
        return min(((power, rung) for rung in rungs for power in powers), key=far)

    def beyond(self, count: int, wanted: Callable[[dict[str, Any]], bool]) -> list[dict[str, Any]]:
        """Neighbours of the last ones that were not tried yet either, and theirs in turn, if `wanted`."""
        around, added = [place for place in self.places[len(self.places) - count :] if place is not None], []
        for place in around:
            for other in neighbours(place):
                if self._missing(other) and wanted(self._at(other)):
                    added += self._add([other])
                    around.append(other)
        return added

    def forget(self, count: int) -> None:
        """The last ones were not run."""
        del self.settings[len(self.settings) - count :], self.places[len(self.places) - count :]

    def edges(self, best: int) -> set[str]:
        """Parameters at the end of what was tried for them, though there is more beyond it."""
        place, found = self.places[best], set()
        if place is None:
            return set()
        for other in neighbours(place):
            along_step = other[1] == place[1]
            beyond = not 0 <= other[1] < len(self.method.ladder)
            more = not self.method.natural[int(other[1] > place[1])] if beyond else self._missing(other)
            found |= {STEP if along_step else str(self.method.second)} if more else set()
        return found

    def _missing(self, place: Place) -> bool:
        settings = self.method.at(self.known, place)
        return settings is not None and settings not in self.settings and self.affords(settings)

    def _at(self, place: Place) -> dict[str, Any]:
        settings = self.method.at(self.known, place)
        assert settings is not None
        return settings

    def _add(self, places: Sequence[Place]) -> list[dict[str, Any]]:
        added = []
        for place in places:
            if self._missing(place):
                settings = self._at(place)
                self.settings.append(settings)
                self.places.append(place)
                added.append(settings)
        return added


def _positive(number: Any) -> bool:
    return isinstance(number, int | float) and number > 0


def neighbours(place: Place) -> list[Place]:
    power, rung = place
    return [(power - 1, rung), (power + 1, rung), (power, rung - 1), (power, rung + 1)]


def diagonals(place: Place) -> list[Place]:
    power, rung = place
    return [(power + i, rung + j) for i in (-1, 1) for j in (-1, 1)]


@dataclass(frozen=True)
class Choice:
    """How sure the choice of a setting for one goal is.

    low, high   of the interval that counts the choice;   share   of the resamples that choose this setting
    settings    how many different ones are chosen;   spread   the range of their parameters, in words
    edge        parameters at the end of what was tried
    """

    low: float
    high: float
    share: float
    settings: int
    spread: str
    edge: tuple[str, ...]


def chosen_again(
    scores: Scores,
    pools: Sequence[np.ndarray],
    settings: Sequence[dict[str, Any]],
    start: float,
    edge: set[str],
    resamples: int = RESAMPLES,
) -> Choice:
    """Choose again and again, from seeds drawn again; `pools` has the goal's numbers of every setting's runs."""
    rng = np.random.default_rng(0)
    seeds, best = scores.goal.shape[1], int(scores.best(start))
    picks = scores.best(start, rng.integers(0, seeds, (resamples, seeds)))
    values = []
    for pick in picks:
        pool = pools[pick]
        values.append(medians(pool[rng.integers(0, pool.size, pool.size)]))
    ordered, tail = np.sort(values), (1 - LEVEL) / 2
    low, high = ordered[rank(resamples, tail) - 1], ordered[rank(resamples, 1 - tail) - 1]
    different = np.unique(picks)
    share, spread = float(np.mean(picks == best)), _spread([settings[i] for i in different])
    return Choice(float(low), float(high), share, different.size, spread, tuple(sorted(edge)))


def _spread(settings: Sequence[dict[str, Any]]) -> str:
    """Ranges of the parameters that are not the same in all of them."""
    told = []
    for name in settings[0]:
        values = [s[name] for s in settings if s.get(name) is not None]
        if len(set(values)) > 1:
            told.append(f"{name} {min(values):.3g} to {max(values):.3g}")
    return ", ".join(told)
