"""What the code says about an algorithm: found by trying, so that cost, state and requirements cannot drift from it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from .core import Algorithm
from .requirements import FINITE_SUM, MATRIX

Maker = Callable[..., Algorithm]
PERIODS = ("q", "period")
OTHERS = ("rank",)  # integers that are no numbers of samples
FEW, MANY = 3, 6
NEVER = 10**6


class _Shapes:
    """A finite sum of `size` components of which only shapes matter."""

    name = "shapes"

    def __init__(self, size: int) -> None:
        self.size = size

    def sample(self, key: jax.Array, n: int) -> jax.Array:
        return jax.random.randint(key, (n,), 0, self.size)

    def grad(self, x: jax.Array, batch: jax.Array) -> jax.Array:
        return x

    def full_grad(self, x: jax.Array) -> jax.Array:
        return x


def example(make: Maker, **given: Any) -> Algorithm:
    """An algorithm of this kind; numbers that must be given and are not are 1/2 or a few."""
    parameters = inspect.signature(make).parameters.values()
    filled = {p.name: 0.5 if p.annotation == "float" else FEW for p in parameters if p.default is p.empty}
    return make(**filled | given)


def cost(make: Maker) -> dict[str, str]:
    """Sample gradients of the first step, of a later one and, where there are any, of a later restart, in letters."""
    parameters = inspect.signature(make).parameters
    whole = [p.name for p in parameters.values() if str(p.annotation).startswith("int") and p.name not in OTHERS]
    rare = {name: NEVER for name in whole if name in PERIODS} | ({"chance": 0.0} if "chance" in parameters else {})
    often = {name: 1 for name in rare} | ({"chance": 1.0} if "chance" in rare else {})
    letters = [name for name in whole if name not in PERIODS]

    def first(algorithm: Algorithm, size: int) -> float:
        return algorithm.cost(1, size)

    def second(algorithm: Algorithm, size: int) -> float:
        return algorithm.cost(2, size) - algorithm.cost(1, size)

    def form(asked: Callable[[Algorithm, int], float], given: dict[str, Any]) -> str:
        base = {name: FEW if name == "k" else MANY for name in letters}

        def at(size: int, **more: int) -> int:
            return round(asked(example(make, **base | given | more), size))

        factors = {"n": at(MANY + 1) - at(MANY)}
        factors |= {name: at(MANY, **{name: base[name] + 1}) - at(MANY) for name in letters}
        return _sum(factors)

    found = {"first": form(first, rare), "later": form(second, rare)}
    return found | ({"restart": form(second, often)} if rare else {})


def state(make: Maker) -> str:
    """How many numbers a step with default options hands to the next one beside x, for x of d numbers."""

    def numbers(rows: int, size: int) -> int:
        x, problem = jnp.zeros((rows, 2)), _Shapes(size)
        algorithm = example(make)

        def first(key: jax.Array) -> Any:
            return algorithm.first(problem, x, algorithm.draw(problem, key))[0]

        kept = jax.tree.leaves(jax.eval_shape(first, jax.random.key(0)))
        return sum(int(leaf.size) for leaf in kept) - int(x.size)

    one, two, three = numbers(2, 5), numbers(4, 5), numbers(4, 9)  # d = 4, 8, 8
    table = (three - two) // (4 * 8)
    slope = (two - one) // 4 - 5 * table
    return _sum({"n d": table, "d": slope, "": one - 4 * slope - 20 * table})


def requirements(make: Maker) -> dict[str, str]:
    """What of "finite sum" and "matrix" is needed, and with which options: "always" or like "S1 = None"."""
    tried = {name: _options(make, p) for name, p in inspect.signature(make).parameters.items()}
    kinds = {name: [(o, example(make, **{name: o}).requirements) for o in options] for name, options in tried.items()}
    found = {}
    for requirement in (FINITE_SUM, MATRIX):
        named = {name: [str(o) for o, has in pairs if requirement in has] for name, pairs in kinds.items() if pairs}
        some = {name: with_it for name, with_it in named.items() if 0 < len(with_it) < len(kinds[name])}
        if some:
            found[requirement] = "; ".join(f"{name} = {', '.join(with_it)}" for name, with_it in some.items())
        elif requirement in example(make).requirements:
            found[requirement] = "always"
    return found


def _options(make: Maker, parameter: inspect.Parameter) -> tuple[Any, ...]:
    """The values that a parameter can choose from; those of a word are in the sentence that refuses another word."""
    if parameter.annotation == "bool":
        return False, True
    if parameter.annotation == "int | None":
        return None, 1
    if parameter.annotation != "str":
        return ()
    try:
        example(make, **{parameter.name: ""})
    except ValueError as error:
        return tuple(str(error).partition("must be one of ")[2].partition(";")[0].split(", "))
    return ()


def _sum(factors: dict[str, int]) -> str:
    """2 and "K" is "2 K", and so on with a plus; the letter "" is a plain number."""
    terms = [letter if n == 1 and letter else f"{n} {letter}".strip() for letter, n in factors.items() if n]
    return " + ".join(terms) or "0"
