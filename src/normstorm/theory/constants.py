"""What is known of a problem before it is solved."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from typing import Any

from normstorm._shared.validate import NONNEGATIVE, number, real, refuse

NOISE_SENSES = ("almost-sure", "mean-square")


@dataclass(frozen=True)
class MeanSquare:
    """The same four numbers as they hold in mean square (3B and 4B), beside larger ones that hold almost surely."""

    L0: float
    L1: float
    sigma0: float
    sigma1: float

    def __post_init__(self) -> None:
        for field in fields(self):
            value = number("MeanSquare", field.name, getattr(self, field.name), NONNEGATIVE)
            object.__setattr__(self, field.name, value)


@dataclass(frozen=True)
class Constants:
    """The numbers in the assumptions of the theory, for one problem and one starting point.

    L0, L1          smoothness: ||grad f(x, s) - grad f(y, s)|| <= (L0 + L1 ||grad F(x)||) ||x - y|| for
                    ||x - y|| <= 1/L1, for almost every sample s (assumption 3A) or in mean square over s (3B)
    sigma0, sigma1  noise: ||grad f(x, s) - grad F(x)|| <= sigma0 + sigma1 ||grad F(x)|| for almost every s (4A),
                    or its mean square <= sigma0^2 + sigma1^2 ||grad F(x)||^2 (4B)
    gap             F(x1) - F*, or an upper bound of it (assumption 1)
    grad_norm       ||grad F(x1)||, or an upper bound of it; None means unknown, and then the proven bound
                    L1 gap + sqrt(L1^2 gap^2 + 2 L0 gap) stands in
    noise           the sense in which they hold. None: in the sense that a guarantee asks for, as in the paper (3A
                    and 4A in high probability, 3B and 4B in expectation). "almost-sure": 3A and 4A, which serves
                    both kinds. "mean-square": 3B and 4B, so that a guarantee in high probability is refused
    mean_square     L0, L1, sigma0, sigma1 of 3B and 4B, none above those of 3A and 4A; a MeanSquare, or the four.
                    A guarantee in high probability then takes the sizes of errors from these and their ranges from
                    the others, a guarantee in expectation takes these alone. None: not known
    """

    L0: float
    L1: float
    sigma0: float
    sigma1: float
    gap: float
    grad_norm: float | None = None
    noise: str | None = None
    mean_square: MeanSquare | None = None

    def __post_init__(self) -> None:
        for name in ("L0", "L1", "sigma0", "sigma1", "gap", "grad_norm"):
            value = getattr(self, name)
            if value is None and name == "grad_norm":
                continue
            object.__setattr__(self, name, number("Constants", name, value, NONNEGATIVE))
        if self.noise is not None and (not isinstance(self.noise, str) or self.noise not in NOISE_SENSES):
            refuse("Constants", "noise", f"None or one of {', '.join(NOISE_SENSES)}", self.noise)
        if self.L0 == 0 and self.L1 == 0:
            raise ValueError(
                "Constants: L0 and L1 must not both be 0 (F would be affine, and bounded below only if it is "
                "constant); got L0=0, L1=0"
            )
        if self.mean_square is not None:
            object.__setattr__(self, "mean_square", self._checked(self.mean_square))

    def _checked(self, given: object) -> MeanSquare:
        names = [field.name for field in fields(MeanSquare)]
        if isinstance(given, Mapping) and set(given) == set(names):
            given = MeanSquare(**given)
        elif isinstance(given, tuple | list) and len(given) == len(names):
            given = MeanSquare(*given)
        if not isinstance(given, MeanSquare):
            refuse("Constants", "mean_square", f"None or a MeanSquare of {', '.join(names)}", given)
        if self.noise == "mean-square":
            raise ValueError(
                "Constants: mean_square must be None for noise='mean-square', as the constants themselves are in that "
                f"sense; got mean_square={given!r}"
            )
        for name in names:
            if getattr(given, name) > getattr(self, name):
                raise ValueError(
                    f"Constants: mean_square must have no number above the almost-sure one; got {name}="
                    f"{getattr(given, name)!r} above {name}={getattr(self, name)!r}"
                )
        if given.L0 == given.L1 == 0:
            raise ValueError(
                "Constants: L0 and L1 of mean_square must not both be 0 (F would be affine); got L0=0, L1=0"
            )
        return given

    @cached_property
    def in_mean_square(self) -> Constants:
        """What is known in mean square, and of F itself: 3B and 4B where they are given, else these constants."""
        if self.mean_square is None:
            return self
        return replace(self, **asdict(self.mean_square), noise="mean-square", mean_square=None)

    @cached_property
    def first_gradient(self) -> float:
        """The smallest proven bound of ||grad F(x1)||. F is as smooth as its samples are in mean square."""
        smooth = self.in_mean_square
        proven = gradient_bound(smooth.L0, smooth.L1, self.gap)
        return proven if self.grad_norm is None else min(self.grad_norm, proven)

    @property
    def is_deterministic(self) -> bool:
        return self.sigma0 == 0 and self.sigma1 == 0

    @property
    def is_plain(self) -> bool:
        """Nothing grows with the gradient: ordinary smoothness, bounded noise."""
        return self.L1 == 0 and self.sigma1 == 0

    def scaled(self, *, length: float, value: float) -> Constants:
        """The constants of c F(x / b) for length b and value c: the same problem in other units."""
        slope = value / length
        return replace(
            self,
            L0=self.L0 * slope / length,
            L1=self.L1 / length,
            sigma0=self.sigma0 * slope,
            gap=self.gap * value,
            grad_norm=None if self.grad_norm is None else self.grad_norm * slope,
            mean_square=self.mean_square
            and MeanSquare(
                self.mean_square.L0 * slope / length,
                self.mean_square.L1 / length,
                self.mean_square.sigma0 * slope,
                self.mean_square.sigma1,
            ),
        )

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def gradient_bound(L0: float, L1: float, gap: float) -> float:
    """||grad F(x)|| <= L1 D + sqrt(L1^2 D^2 + 2 L0 D) whenever F(x) - F* <= D (docs/theory/setting.md)."""
    for name, value in (("L0", L0), ("L1", L1), ("gap", gap)):
        if not real(value) >= 0:
            refuse("gradient_bound", name, "a number >= 0", value)
    return L1 * gap + math.hypot(L1 * gap, math.sqrt(2 * L0) * math.sqrt(gap))
