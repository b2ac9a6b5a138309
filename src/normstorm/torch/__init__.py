"""Normalized STORM for PyTorch (extra: normstorm[torch])."""

from .diagnosis import Diagnosis as Diagnosis
from .diagnosis import diagnose as diagnose
from .kalman import KalmanStorm as KalmanStorm
from .optimizer import NormalizedStorm as NormalizedStorm
from .plans import estimate_constants as estimate_constants
from .plans import plan_for as plan_for
from .presets import assign as assign
from .presets import describe as describe
from .presets import spectral_storm as spectral_storm
