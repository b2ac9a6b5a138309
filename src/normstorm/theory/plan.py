"""A plan: parameters of Normalized STORM, what they guarantee, and why."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from normstorm._shared import validate

from .certificates import MEANINGS, Bound
from .constants import Constants

DEFAULT_CONFIDENCE = 0.99  # of plans and certificates for which no other is asked


@dataclass(frozen=True)
class Term:
    """One summand of a bound."""

    name: str
    meaning: str
    value: float


@dataclass(frozen=True)
class Plan:
    """Parameters and the bound that was proven for them before any gradient is asked.

    constants     what the proof assumes
    rule          "sharp" (minimised over certificates and parameters) or "paper" (the paper's own)
    certificate   the proof behind the bound: a name in normstorm.theory.certificates.CATALOGUE
    horizon       T, the number of steps
    alpha, eta    weight of the fresh gradient (beta = 1 - alpha) and step size
    batch         K, samples at x_t;   sub_batch  k, samples used at both x_t and x_{t-1}
    confidence    probability of the guarantee; None: it is in expectation
    bound         of the average of ||grad F(x_t)|| over t = 1..T
    terms         the summands of the bound
    free          the parameter that the proof left open (lam or share), fixed here; None if it has none
    error, slope  P/T and Q: with the plan's confidence sum ||m_t - grad F(x_t)|| <= P + Q sum ||grad F(x_t)||, which
                  `observed_bound` needs; None in expectation
    """

    constants: Constants
    rule: str
    certificate: str
    horizon: int
    alpha: float
    eta: float
    batch: int
    sub_batch: int
    confidence: float | None
    bound: float
    terms: tuple[Term, ...]
    free: float | None = None
    error: float | None = None
    slope: float | None = None

    @property
    def beta(self) -> float:
        return 1 - self.alpha

    @property
    def sample_gradients(self) -> int:
        """K at the first step, K + k at each later one."""
        return sample_gradients(self.horizon, self.batch, self.sub_batch)

    def observed_bound(self, mean_estimate_norm: float) -> float | None:
        """A bound of the average of ||grad F(x_t)|| of one run from the mean of ||m_t|| over its steps.

        It holds on the event of the plan's own bound, so that both hold together with the plan's confidence; None for
        a plan in expectation, which says nothing of one run (docs/theory/observed.md).
        """
        mean = validate.number("observed_bound", "mean_estimate_norm", mean_estimate_norm, validate.NONNEGATIVE)
        if self.error is None or self.slope is None:
            return None
        left = 1 - self.slope - 1e-13
        return (mean + self.error) / left * (1 + 1e-11) if left > 0 else math.inf

    @property
    def guarantee(self) -> str:
        """The guarantee in one sentence."""
        bound = round_up(self.bound)
        over = f"over t = 1..{self.horizon}"
        both = self.constants.mean_square is not None
        if self.confidence is None:
            sure = self.constants.noise == "almost-sure" and not both
            assumptions = "3A and 4A" if sure else "3B and 4B"
            promise = f"In expectation, the average of ||grad F(x_t)|| {over} is at most {bound}"
        else:
            assumptions = "3A, 4A, 3B and 4B" if both else "3A and 4A"
            promise = (
                f"With probability at least {self.confidence!r}, the average of ||grad F(x_t)|| {over} is at most "
                f"{bound}"
            )
        return (
            f"{promise} (certificate {self.certificate}), if assumptions 1, 2, {assumptions} hold with these "
            "constants; the last iterate is promised nothing."
        )

    @property
    def notes(self) -> tuple[str, ...]:
        """What a person should know before acting on the plan."""
        notes = []
        start = self.constants.first_gradient
        if self.bound >= start:
            notes.append(
                f"The bound is not below ||grad F(x1)|| <= {start:.4g}: at this cost nothing better than the starting "
                "point is proven."
            )
        if self.alpha == 1:
            notes.append(
                "beta = 0: the gradients at x_{t-1} are multiplied by 0; skipping them saves "
                f"{(self.horizon - 1) * self.sub_batch} of the {self.sample_gradients} sample gradients counted."
            )
        return tuple(notes)

    def explain(self) -> str:
        """The plan in plain text: parameters, each term of the bound, what dominates."""
        largest = max(self.terms, key=lambda term: term.value)
        lines = [
            self.guarantee,
            "",
            f"alpha = {self.alpha:.6g} (beta = 1 - alpha), eta = {self.eta:.6g}, T = {self.horizon}, "
            f"K = {self.batch}, k = {self.sub_batch}; {self.sample_gradients} sample gradients.",
            f"The bound {round_up(self.bound, 6)} is the sum of",
            *term_lines(self.terms, self.bound),
            f"The largest is {largest.name}: {largest.value / self.bound:.0%}.",
            *self.notes,
        ]
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON-ready values."""
        return {
            "beta": self.beta,
            "alpha": self.alpha,
            "eta": self.eta,
            **told(self),
            "error": self.error,
            "slope": self.slope,
        }


def told(plan: Any) -> dict[str, Any]:
    """What plans of either kind tell, as JSON-ready values."""
    names = ("horizon", "batch", "sub_batch", "bound", "certificate", "guarantee", "sample_gradients", "confidence")
    return {
        **{name: getattr(plan, name) for name in (*names, "rule", "free")},
        "constants": plan.constants.to_dict(),
        "terms": [asdict(term) for term in plan.terms],
        "notes": list(plan.notes),
    }


def term_lines(terms: tuple[Term, ...], bound: float) -> list[str]:
    """The summands of a bound, a line for each."""
    width = max(len(term.name) for term in terms)
    return [f"  {t.name:<{width}}  {t.value:<11.5g} {t.value / bound:6.1%}  {t.meaning}" for t in terms]


def sorted_terms(parts: Mapping[str, float], unit: float) -> tuple[Term, ...]:
    """The summands of a bound in the caller's units, largest first."""
    terms = [Term(name, MEANINGS[name], value * unit) for name, value in parts.items()]
    return tuple(sorted((t for t in terms if t.value > 0), key=lambda t: -t.value))


def sample_gradients(T: int, K: int, k: int) -> int:
    """What Algorithm 1 asks: K at x_1, then K at x_t and k of the same samples at x_{t-1}."""
    return K + (T - 1) * (K + k)


def mean_error(bound: Bound, T: int, unit: float, confidence: float | None) -> dict[str, float | None]:
    """P/T in the caller's units and Q, where the bound's event is one of single runs."""
    if confidence is None or bound.error is None or bound.slope is None or not math.isfinite(bound.error):
        return {"error": None, "slope": None}
    return {"error": float(bound.error) / T * unit * (1 + 1e-14), "slope": float(bound.slope)}


def round_up(value: float, digits: int = 4) -> str:
    """At least `value`, in so many significant digits: a bound that is printed must stay one."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    unit = 10.0 ** (math.floor(math.log10(value)) + 1 - digits)
    text = f"{math.ceil(value / unit) * unit:.{digits}g}"
    return text if float(text) >= value else f"{(math.ceil(value / unit) + 1) * unit:.{digits}g}"
