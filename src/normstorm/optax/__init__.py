"""Normalized STORM for training loops in JAX, as transformations of optax (extra: normstorm[optax])."""

from .storm import normalized_storm as normalized_storm
from .storm import previous_params as previous_params
from .storm import scale_by_storm as scale_by_storm
