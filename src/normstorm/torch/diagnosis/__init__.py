"""Whether the two-point term can pay on a model: a probe, a forecast, an answer, a page."""

from .diagnosis import Diagnosis as Diagnosis
from .diagnosis import diagnose as diagnose
