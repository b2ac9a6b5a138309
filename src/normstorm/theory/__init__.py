"""Theory is arithmetic: constants in, parameters and proven bounds out. No framework is imported here."""

from .anytime_plan import AnytimePlan
from .certificates import CATALOGUE, Bound, Certificate, bound
from .constants import Constants, MeanSquare, gradient_bound
from .plan import DEFAULT_CONFIDENCE, Plan, Term
from .planner.planner import plan
from .rules import Parameters, expectation_batch, paper_expectation, paper_high_probability
from .schedules import ScheduleCertificate, agnostic_bound, agnostic_coefficients, agnostic_guarantee, clipped_bound

__all__ = [
    "CATALOGUE",
    "DEFAULT_CONFIDENCE",
    "AnytimePlan",
    "Bound",
    "Certificate",
    "Constants",
    "MeanSquare",
    "Parameters",
    "Plan",
    "ScheduleCertificate",
    "Term",
    "agnostic_bound",
    "agnostic_coefficients",
    "agnostic_guarantee",
    "bound",
    "clipped_bound",
    "expectation_batch",
    "gradient_bound",
    "paper_expectation",
    "paper_high_probability",
    "plan",
]
