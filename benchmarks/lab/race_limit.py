"""The cheapest tuned search to half of a target, for the limit beside which a race is told (benchmarks.lab.race).

Exact gradients are free here, and nobody has to know when to stop: a setting costs what it has asked when ||grad F|| at
the point that it hands out is first at most half of the target, looked at whenever a twentieth more steps are done; the
median of the seeds. Of every method all settings that a comparison begins with (lab/compare/methods.py) are run; for
every problem and target the best one counts.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from normstorm.algorithms.catalogue import CATALOGUE
from normstorm.algorithms.geometries import norm
from normstorm.lab.compare.methods import METHODS, scales
from normstorm.random import seed_words, step_key

TUNED = ("sgd", "averaged_sgd", "schedule_free_sgd", "adagrad_norm", "meta_storm")
BUDGET = 10_000  # that the scales of settings are made for
FURTHER = 1.05  # from look to look


def tuned_searches(problem: Any, goals: list[float], seeds: int, most: float) -> dict[str, list[float | None]]:
    """For every method the cost of its best setting for each goal, if that is below `most`."""
    known = scales(problem, BUDGET)
    found = {}
    for name in TUNED:
        method = METHODS[name]
        settings = [method.at(known, place) for place in method.places]
        made = [CATALOGUE[name](**setting) for setting in settings if setting is not None]
        costs = np.median(first_costs_of(problem, made, goals, seeds, most), axis=2)
        found[name] = [float(cost) if math.isfinite(cost) else None for cost in costs.min(axis=1)]
    return found


def first_costs_of(problem: Any, algorithms: list[Any], goals: list[float], seeds: int, most: float) -> np.ndarray:
    """(goals, algorithms, seeds): sample gradients until the point is good enough; infinite if that is beyond `most`.

    The algorithms differ in numbers alone, so that all of them are one program.
    """
    stacked = jax.tree.map(lambda *leaves: jnp.stack([jnp.asarray(leaf, float) for leaf in leaves]), *algorithms)
    words, x, size = jnp.asarray(seed_words(range(seeds))), problem.start(), getattr(problem, "size", None)
    halves = np.array(goals)[:, None, None] / 2

    def every(function: Any) -> Any:
        return jax.jit(jax.vmap(jax.vmap(function, (None, 0, 0, None)), (0, 0, None, None)))

    def begun(algorithm: Any, _: Any, seed: jax.Array, __: Any) -> Any:
        return algorithm.first(problem, x, algorithm.draw(problem, step_key(seed, 1)))[0]

    def taken(algorithm: Any, state: Any, seed: jax.Array, span: jax.Array) -> Any:
        def step(t: Any, state: Any) -> Any:
            return algorithm.step(problem, state, algorithm.draw(problem, step_key(seed, t)), t)[0]

        return jax.lax.fori_loop(span[0], span[1], step, state)

    def length(algorithm: Any, state: Any, seed: jax.Array, _: Any) -> jax.Array:
        return norm(problem.full_grad(algorithm.point(state)))

    lanes = jnp.zeros((len(algorithms), seeds))
    advance, measure, cost = every(taken), every(length), partial(algorithms[0].cost, size=size)
    state, t = every(begun)(stacked, lanes, words, jnp.zeros(2, jnp.int32)), 1
    reached = np.full((len(goals), len(algorithms), seeds), np.inf)
    while True:
        below = np.asarray(measure(stacked, state, words, jnp.zeros(2, jnp.int32)))[None] <= halves
        reached = np.where(np.isinf(reached) & below, cost(t), reached)
        after = max(t + 1, math.ceil(FURTHER * t))
        best = np.median(reached, axis=2).min(axis=1)
        if cost(after) > most or cost(after) > best.max():  # nobody can be better than the best any more
            return reached
        state, t = advance(stacked, state, words, jnp.array([t + 1, after + 1], jnp.int32)), after
