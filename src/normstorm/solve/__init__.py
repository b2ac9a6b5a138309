"""The main job: plan, run, choose a point, certify it, and say what rounding can have changed."""

from .identity import fingerprint as fingerprint
from .minimiser import CANDIDATES as CANDIDATES
from .minimiser import CHOICES as CHOICES
from .minimiser import LONGEST as LONGEST
from .minimiser import Result as Result
from .minimiser import default_samples as default_samples
from .minimiser import minimize as minimize
from .rounding import Precision as Precision
