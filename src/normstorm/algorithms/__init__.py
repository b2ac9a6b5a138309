"""Algorithms: estimator (how we look) x geometry (how we measure) x schedule (how far, how much we trust)."""

from .catalogue import CATALOGUE as CATALOGUE
from .catalogue import from_plan as from_plan
from .catalogue import momentum_nsgd as momentum_nsgd
from .catalogue import normalized_storm as normalized_storm
from .core import Algorithm as Algorithm
from .core import State as State
