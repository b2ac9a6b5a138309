"""The engine: a run is one loop. It knows neither algorithms' names, nor problems', nor theory."""

from .results import Trace as Trace
from .run import run as run
