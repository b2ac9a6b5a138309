"""Stochastic problems with proven constants, and a way to bring one's own."""

from normstorm.problems.base import Problem as Problem
from normstorm.problems.noise import noisy as noisy
from normstorm.problems.registry import PROBLEMS as PROBLEMS
from normstorm.problems.registry import get as get
from normstorm.problems.user import from_loss as from_loss
from normstorm.problems.user import load as load
