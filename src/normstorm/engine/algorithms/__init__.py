"""The catalogue: one file per lineage, one function per algorithm."""

from .normalized_storm import from_plan as from_plan
from .normalized_storm import normalized_storm as normalized_storm
from .sgd import momentum_nsgd as momentum_nsgd

CATALOGUE = {"normalized_storm": normalized_storm, "momentum_nsgd": momentum_nsgd}
