"""Stochastic problems with proven constants, and a way to bring one's own."""

from .noise import noisy as noisy
from .protocol import Problem as Problem
from .ranges import exact_range as exact_range
from .ready import huber_regression as huber_regression
from .ready import log_cosh_regression as log_cosh_regression
from .ready import logistic_regression as logistic_regression
from .ready import ridge_regression as ridge_regression
from .ready import robust_regression as robust_regression
from .ready import softmax_regression as softmax_regression
from .ready import unit_rows as unit_rows
from .registry import PROBLEMS as PROBLEMS
from .registry import get as get
from .user import from_loss as from_loss
from .user import load as load
