"""Normalized STORM for PyTorch (extra: normstorm[torch])."""

from .optimizer import NormalizedStorm as NormalizedStorm
from .presets import assign as assign
from .presets import spectral_storm as spectral_storm
