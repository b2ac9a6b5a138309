"""Normalized STORM: parameters and a proven bound from what is known of a problem."""

from normstorm.theory import Constants as Constants
from normstorm.theory import Plan as Plan
from normstorm.theory import plan as plan

__version__ = "0.1.0"
