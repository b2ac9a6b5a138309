"""Stochastic problems with proven constants, and a way to bring one's own."""

from .noise import noisy as noisy
from .protocol import Problem as Problem
from .ranges import exact_range as exact_range
from .registry import PROBLEMS as PROBLEMS
from .registry import get as get
from .user import from_loss as from_loss
from .user import load as load
