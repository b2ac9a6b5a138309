"""The engine: an algorithm is three words, a run is one loop. It knows neither problems' names nor theory."""

from .algorithms import CATALOGUE as CATALOGUE
from .algorithms import from_plan as from_plan
from .algorithms import momentum_nsgd as momentum_nsgd
from .algorithms import normalized_storm as normalized_storm
from .core import Algorithm as Algorithm
from .core import State as State
from .run import run as run
