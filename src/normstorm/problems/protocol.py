"""Problem: the type that other rooms name. It costs nothing to import; no framework comes with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    import jax

    from normstorm.theory.constants import Constants


@runtime_checkable
class Sampled(Protocol):
    """What a step asks: samples that can be used twice, and the mean gradient over a batch of them at any x."""

    def sample(self, key: jax.Array, n: int) -> Any: ...
    def grad(self, x: Any, batch: Any) -> Any: ...


@runtime_checkable
class Ranged(Protocol):
    """What a certificate that follows a run asks of a problem beside gradients; a problem may do without."""

    def range(self, x: Any, radius: Any) -> tuple[jax.Array, jax.Array]:
        """(spread, change): two numbers that hold for almost every sample s, called at every step inside `jit`.

        spread   the radius of a ball that holds grad f(x, s); its centre need not be known
        change   at least ||grad f(x, s) - grad f(y, s)|| for every y with ||y - x|| <= radius; infinity where nothing
                 is known for a radius as large as this
        Both are rounded up, in the precision of x.
        """
        ...


@runtime_checkable
class Problem(Sampled, Protocol):
    """What the engine, the solver and the command line ask of a problem. x is any pytree of arrays.

    `infimum_kind` says what `infimum` is: "exact" (F*, up to rounding), "lower bound" (a proven one), "numerical"
    (found, not proven) or "unknown" (then `infimum` is None). `is_exact` is False where F can only be sampled; `value`
    and `full_grad` then refuse.
    """

    @property
    def name(self) -> str: ...
    @property
    def infimum(self) -> float | None: ...
    @property
    def infimum_kind(self) -> str: ...
    @property
    def is_exact(self) -> bool: ...
    def value(self, x: Any) -> jax.Array: ...
    def full_grad(self, x: Any) -> Any: ...
    def start(self) -> Any: ...
    def constants(self, x0: Any = None, sense: str = "almost-sure") -> Constants: ...
