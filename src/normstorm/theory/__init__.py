"""Theory is arithmetic: constants in, parameters and proven bounds out. No framework is imported here."""

from .certificates import CATALOGUE, Bound, Certificate, bound
from .constants import Constants, gradient_bound
from .plan import DEFAULT_CONFIDENCE, Plan, Term
from .planner.planner import plan
from .rules import Parameters, expectation_batch, paper_expectation, paper_high_probability

__all__ = [
    "CATALOGUE",
    "DEFAULT_CONFIDENCE",
    "Bound",
    "Certificate",
    "Constants",
    "Parameters",
    "Plan",
    "Term",
    "bound",
    "expectation_batch",
    "gradient_bound",
    "paper_expectation",
    "paper_high_probability",
    "plan",
]
