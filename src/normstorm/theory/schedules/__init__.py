"""Steps and weights that change along a run, and bounds that hold at every t (docs/theory/any-schedule.md)."""

from .follow import ScheduleCertificate
from .shrinking import Shrinking
from .statements import agnostic_bound, agnostic_coefficients, agnostic_guarantee, clipped_bound

__all__ = [
    "ScheduleCertificate",
    "Shrinking",
    "agnostic_bound",
    "agnostic_coefficients",
    "agnostic_guarantee",
    "clipped_bound",
]
