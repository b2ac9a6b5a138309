"""The main job: a race to a certified point, or a plan that is run; and what rounding can have changed."""

from .certify import PointCertificate as PointCertificate
from .certify import certify as certify
from .certify import certify_first as certify_first
from .estimate import EstimatedConstants as EstimatedConstants
from .estimate import estimate_constants as estimate_constants
from .fingerprint import fingerprint as fingerprint
from .minimize import CHOICES as CHOICES
from .minimize import LONGEST as LONGEST
from .minimize import default_samples as default_samples
from .minimize import minimize as minimize
from .precision import Precision as Precision
from .result import Race as Race
from .result import Result as Result
from .trajectory import TrajectoryCertificate as TrajectoryCertificate
from .value import Value as Value
from .watch import Contradictions as Contradictions
from .watch import check_constants as check_constants
from .watch import check_run as check_run
