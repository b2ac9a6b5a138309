"""What a problem is: samples that can be used twice, gradients, exact values, and constants with a proof.

A problem is F(x) = E f(x, s). `sample` draws values s, `grad` averages grad f(x, s) over a batch of them at any x,
and `constants` returns what the theory assumes of f, for one of two senses:

    almost-sure   3A: ||grad f(x, s) - grad f(y, s)|| <= (L0 + L1 ||grad F(x)||) ||x - y||  for ||x - y|| <= 1/L1
                  4A: ||grad f(x, s) - grad F(x)|| <= sigma0 + sigma1 ||grad F(x)||
    mean-square   3B, 4B: the same in mean square over s, with sigma0^2 + sigma1^2 ||grad F(x)||^2 on the right

Definition 1 is 3A for F itself. Every problem of the registry also has `range(x, radius)`, what is true near one x; its
parts are derived in the docstrings under **Range** and rounded up (`raised`). Problems are frozen dataclasses
registered with JAX: numbers and arrays are leaves, integers and names are static. Nothing inside `sample`, `grad`,
`value`, `full_grad` and `range` leaves the tracer.
"""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from normstorm._shared.pytrees import STATIC as STATIC
from normstorm._shared.pytrees import dimension
from normstorm._shared.pytrees import pytree as pytree
from normstorm._shared.validate import one_of
from normstorm.random import index
from normstorm.theory.constants import NOISE_SENSES, Constants, MeanSquare

CHUNK = 4096
ROUNDING = 1e-9


class Certified(ABC):
    """A built-in problem: three pairs of proven numbers, from which `constants` follows for every start.

    The pairs are properties of f alone; gap and first gradient belong to the start and are evaluated in double
    precision, whatever precision the caller works in.
    """

    is_exact: ClassVar[bool] = True

    if TYPE_CHECKING:  # only there: a dataclass would take an inherited property for the default of its field

        @property
        def name(self) -> str: ...
        @property
        def infimum(self) -> float: ...
        @property
        def infimum_kind(self) -> str: ...

    @abstractmethod
    def value(self, x: jax.Array) -> jax.Array: ...

    @abstractmethod
    def full_grad(self, x: jax.Array) -> jax.Array: ...

    @abstractmethod
    def start(self) -> jax.Array: ...

    def objective_smoothness(self) -> tuple[float, float]:
        """(L0, L1) of Definition 1 for F. By Jensen's inequality 3B is enough."""
        return self.smoothness("mean-square")

    @abstractmethod
    def smoothness(self, sense: str) -> tuple[float, float]:
        """(L0, L1) of 3A or 3B."""

    @abstractmethod
    def deviation(self, sense: str) -> tuple[float, float]:
        """(sigma0, sigma1) of 4A or 4B."""

    def constants(self, x0: Any = None, sense: str = "almost-sure") -> Constants:
        """Those of 3A and 4A come with those of 3B and 4B beside them."""
        check_sense(self.name, sense)
        L0, L1 = self.smoothness(sense)
        sigma0, sigma1 = self.deviation(sense)
        with jax.enable_x64(True):
            own = self.start()
            x = own if x0 is None else jnp.asarray(np.asarray(x0, dtype=np.float64))
            if x.shape != own.shape:
                raise ValueError(f"{self.name}: x0 must have shape {own.shape}; got shape {x.shape}")
            value, norm = map(float, _value_and_norm(self, x))
        return Constants(
            up(L0),
            up(L1),
            up(sigma0),
            up(sigma1),
            gap=up(max(value - self.infimum, 0.0)) + 1e-12 * (abs(value) + abs(self.infimum)),
            grad_norm=up(norm),
            noise=sense,
            mean_square=self._beside((up(L0), up(L1)), (up(sigma0), up(sigma1))) if sense == "almost-sure" else None,
        )

    def _beside(self, smooth: tuple[float, float], noise: tuple[float, float]) -> MeanSquare | None:
        """3B and 4B beside 3A and 4A, if no number is larger. 3A with the same numbers is 3B as well; 4A is not 4B."""
        own, spread = (tuple(map(up, pair("mean-square"))) for pair in (self.smoothness, self.deviation))
        own = own if all(map(operator.le, own, smooth)) else smooth
        return MeanSquare(*own, *spread) if all(map(operator.le, spread, noise)) else None


@jax.jit
def _value_and_norm(problem: Certified, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    return problem.value(x), jnp.linalg.norm(problem.full_grad(x))


class FiniteSum(ABC):
    """f(x, i) = loss(x, row i of data), i uniform with replacement; a batch is an array of row numbers.

    Row numbers and not rows, so that the samples of many steps can be drawn in one block without copying the data.
    """

    is_exact: ClassVar[bool] = True
    data: Any

    @abstractmethod
    def loss(self, x: Any, row: Any) -> jax.Array: ...

    @property
    def size(self) -> int:
        return int(np.shape(jax.tree.leaves(self.data)[0])[0])

    def sample(self, key: jax.Array, n: int) -> jax.Array:
        return index(key, (n,), self.size)

    def grad(self, x: Any, batch: jax.Array) -> Any:
        return mean_gradient(self.loss, x, jax.tree.map(lambda a: a[batch], self._rows(x)))

    def value(self, x: Any) -> jax.Array:
        return jnp.asarray(self._mean(lambda z, rows: jnp.sum(jax.vmap(self.loss, (None, 0))(z, rows)), x))

    def full_grad(self, x: Any) -> Any:
        return self._mean(jax.grad(lambda z, rows: jnp.sum(jax.vmap(self.loss, (None, 0))(z, rows))), x)

    def _mean(self, total: Callable[[Any, Any], Any], x: Any) -> Any:
        """Mean over all rows of a sum over rows, chunk by chunk, so that memory does not grow with the data."""
        rows, n = self._rows(x), self.size
        first = (n - 1) % CHUNK + 1
        result = total(x, jax.tree.map(lambda a: a[:first], rows))
        if first < n:
            chunks = jax.tree.map(lambda a: a[first:].reshape(-1, CHUNK, *a.shape[1:]), rows)
            result = lax.scan(lambda sum_, c: (jax.tree.map(jnp.add, sum_, total(x, c)), None), result, chunks)[0]
        return jax.tree.map(lambda a: a / n, result)

    def _rows(self, x: Any) -> Any:
        """The data in the precision of x; row numbers, labels and the like keep their type."""
        precision = jnp.result_type(*jax.tree.leaves(x))
        return jax.tree.map(
            lambda a: jnp.asarray(a, precision if jnp.issubdtype(jnp.result_type(a), jnp.floating) else None), self.data
        )


def mean_gradient(loss: Callable[[Any, Any], jax.Array], x: Any, rows: Any) -> Any:
    """Gradient in x of the mean loss over the leading axis of rows."""
    return jax.grad(lambda z: jnp.mean(jax.vmap(loss, (None, 0))(z, rows)))(x)


def dot(a: jax.Array, b: jax.Array) -> jax.Array:
    """A matrix product that no accelerator shortens to fewer digits."""
    return jnp.matmul(a, b, precision=lax.Precision.HIGHEST)


def up(value: float) -> float:
    """Rounded up by more than double precision can have lost on the way."""
    return float(value) * (1 + ROUNDING)


def raised(x: Any, value: jax.Array, scale: Any = 0.0) -> jax.Array:
    """A bound at x, raised by more than the precision of x can have lost on the way.

    The margin is relative: sums of as many terms as x has numbers, and exponentials of all that does not overflow. What
    came out of a difference is told as `scale`, the size of what was subtracted.
    """
    return jnp.asarray(value + margin(x) * (value + scale), jnp.result_type(*jax.tree.leaves(x)))


def margin(x: Any) -> float:
    """256 units of the last digit, and one for every number in x."""
    return (256 + dimension(x)) * float(np.finfo(jnp.result_type(*jax.tree.leaves(x))).eps)


def longest(rows: jax.Array) -> jax.Array:
    """The largest length of a row."""
    return jnp.sqrt(jnp.max(jnp.sum(rows**2, axis=1)))


def unit(vectors: jax.Array) -> jax.Array:
    """Rows divided by their length."""
    return jnp.divide(vectors, jnp.linalg.norm(vectors, axis=-1, keepdims=True))


def check_sense(name: str, sense: str) -> None:
    one_of(name, "sense", sense, NOISE_SENSES)
