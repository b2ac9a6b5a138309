"""Algorithm = estimator x geometry x schedule: how we look, how we measure, how far and how much we trust.

    g_t       estimator:  gradients of samples at x_t (and at x_{t-1})
    a_t       schedule:   the weight of g_t, perhaps from the gradients seen
    m_t       estimator:  from m_{t-1}, the gradients and the weight
    u_t       geometry:   direction from m_t
    eta_t     schedule:   how far
    x_{t+1} = x_t - eta_t u_t

and, optionally, averaging: which point is handed out, the iterate or an average (it may also move another point than
the one at which gradients are asked); and an observer, which watches the run and may end it.

Each word keeps its own state. Floats are data, so a sweep over them is a vmap; integers are part of the program.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from normstorm._shared.pytrees import pytree

from .averaging import NoAveraging
from .estimators import GradientSample, static
from .observers import NoObserver
from .requirements import FINITE_SUM, NOTHING, refusal

Tree = Any


class State(NamedTuple):
    """What the next step needs: after step t, x = x_{t+1}, x_prev = x_t and m = m_t.

    These are the points at which gradients are asked; `Algorithm.point` is the one to measure and to hand out.
    """

    x: Tree
    x_prev: Tree
    m: Tree
    estimator: Tree
    geometry: Tree
    schedule: Tree
    averaging: Tree = ()
    observer: Tree = ()


@pytree
@dataclass(frozen=True)
class Algorithm:
    """Three words and a name; a fourth if it hands out another point than its iterate, a fifth if it is watched."""

    estimator: Any
    geometry: Any
    schedule: Any
    name: str = static("algorithm")
    averaging: Any = field(default_factory=NoAveraging)
    observer: Any = field(default_factory=NoObserver)

    def draw(self, problem: Any, key: jax.Array) -> Tree:
        """The samples of one step."""
        return self.estimator.draw(problem, key)

    def first(self, problem: Any, x: Tree, samples: Tree) -> tuple[State, Any]:
        """Step 1 from x_1: the new state and the sample gradients asked."""
        grads, estimator, cost = self.estimator.first_gradients(problem, x, samples)
        weight, schedule = self.schedule.weight(1, grads, self.schedule.init(x))
        m = self.estimator.first_estimate(grads, weight)
        watched = self.observer.first(problem, x, m, grads)
        begun = State(x, x, m, estimator, self.geometry.init(x), schedule, self.averaging.init(x), watched)
        return self._move(1, begun, grads), cost

    def step(self, problem: Any, state: State, samples: Tree, t: Any) -> tuple[State, Any]:
        """Step t >= 2: the new state and the sample gradients asked."""
        stopped = self.geometry.stopped(state.geometry)
        if stopped is False:
            return self._step(problem, state, samples, t)

        # No branch: it would be taken for each seed apart, and one inside that the loop's t decides would then be, too.
        moved, cost = self._step(problem, state, samples, t)
        kept = jax.tree.map(lambda old, new: jnp.where(stopped, old, new), state, moved)
        return kept, jnp.where(stopped, 0, jnp.asarray(cost, jnp.uint32))

    def point(self, state: State) -> Tree:
        """The point that is handed out at step t, after it: x_t, or an average up to it."""
        handed: Tree = self.averaging.point(state.x_prev, state.averaging)
        return handed

    def last(self, state: State, t: Any) -> Tree:
        """The point that is handed out after the last step t: `point` of step t + 1, for which no gradient is asked."""
        handed: Tree = self.averaging.last(t, state.x, state.averaging)
        return handed

    @property
    def watched(self) -> bool:
        """Whether an observer follows its steps."""
        return not isinstance(self.observer, NoObserver)

    @property
    def may_stop(self) -> bool:
        """Whether its observer may end it."""
        return self.watched and self.observer.target is not None

    @property
    def requirements(self) -> frozenset[str]:
        """What of "finite sum" and "matrix" problem and x must be."""
        words = self.estimator, self.geometry
        return NOTHING.union(*(getattr(word, "requirements", NOTHING) for word in words))

    def refusal(self, problem: Any, x: Tree) -> str | None:
        """The sentence with which a run from x would end at once; None if it would not."""
        return refusal(self.requirements, problem, x)

    def cost(self, steps: int, size: int | None = None) -> int | float:
        """The sample gradients that so many steps ask, with `size` components if the problem is a finite sum.

        Exact but for PAGE, whose coins make it an expectation, and for a path that stops, which asks no more.
        """
        self._whole("steps", steps)
        if size is not None or FINITE_SUM in self.requirements:
            self._whole("size", size)
        asked: int | float = self.estimator.cost(int(steps), size)
        return asked

    def steps(self, budget: float, size: int | None = None) -> int:
        """The most steps that cost no more than the budget."""
        first = self.cost(1, size)
        if not first <= budget < math.inf:
            raise ValueError(
                f"{self.name}: budget must be at least the cost {first} of the first step; got budget={budget!r}"
            )
        enough, much = 1, 2
        while self.cost(much, size) <= budget:
            enough, much = much, 2 * much
        while much - enough > 1:
            middle = (enough + much) // 2
            enough, much = (middle, much) if self.cost(middle, size) <= budget else (enough, middle)
        return enough

    def _whole(self, name: str, value: Any) -> None:
        if not isinstance(value, (int, np.integer)) or isinstance(value, bool) or value < 1:
            raise ValueError(f"{self.name}: {name} must be an integer >= 1; got {name}={value!r}")

    def _step(self, problem: Any, state: State, samples: Tree, t: Any) -> tuple[State, Any]:
        x, x_prev = state.x, state.x_prev
        grads, estimator, cost = self.estimator.sample_gradients(problem, t, x, x_prev, state.estimator, samples)
        foresee = getattr(self.schedule, "foreseen", None)
        foreseen = None if foresee is None else foresee(state.schedule)
        weight, schedule = self.schedule.weight(t, grads, state.schedule)
        m = self.estimator.update_estimate(state.m, grads, weight)
        foreseen = weight if foreseen is None else foreseen
        watched = self.observer.note(state.m, m, grads, weight, foreseen, state.observer)
        after = state._replace(m=m, estimator=estimator, schedule=schedule, observer=watched)
        return self._move(t, after, grads), cost

    def _move(self, t: Any, state: State, grads: GradientSample) -> State:
        """From x_t, with m_t in place, to x_{t+1}."""
        x, _, m, estimator, geometry, schedule, averaging, observer = state
        direction, geometry = self.geometry.step(t, x, m, grads.g, geometry)
        eta, schedule = self.schedule.step(t, m, grads, schedule)
        moved = jax.tree.map(lambda x, u: x - eta * u, self.averaging.base(x, averaging), direction)
        moved, averaging = self.averaging.step(t, moved, x, averaging)
        return State(moved, x, m, estimator, geometry, schedule, averaging, observer)
