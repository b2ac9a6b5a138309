"""The paper's claims, and some published experiments, as checks that can fail."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .base import FAILS as FAILS
from .base import HOLDS as HOLDS
from .base import OPEN as OPEN
from .base import Claim as Claim
from .base import Finding as Finding
from .batches import CONSTANT_BATCH, SUB_BATCH
from .confidence import CONFIDENCE, NO_LOG_T
from .generalized import PHASE_RETRIEVAL, ROBUST_REGRESSION
from .hybrid import HYBRID
from .lemmas import LEMMAS
from .limits import ADAPTIVITY
from .rates import GROWTH, ONE_SAMPLE, RATE
from .thresholds import ADAGRAD, AGNOSTIC

_PAPER = (RATE, CONFIDENCE, ONE_SAMPLE, SUB_BATCH, GROWTH, ADAPTIVITY, CONSTANT_BATCH, LEMMAS, NO_LOG_T)
_PUBLISHED = (PHASE_RETRIEVAL, ROBUST_REGRESSION, HYBRID, AGNOSTIC, ADAGRAD)
CLAIMS = {claim.name: claim for claim in (*_PAPER, *_PUBLISHED)}


def chosen(names: Sequence[str] | None) -> list[Claim]:
    """The claims of these names in their own order; all of them for None."""
    for name in names or ():
        if name not in CLAIMS:
            raise ValueError(f"reproduce: only must name claims out of {', '.join(CLAIMS)}; got {name!r}")
    if names is not None and not names:
        raise ValueError(f"reproduce: only must name claims out of {', '.join(CLAIMS)}; got none")
    return [claim for claim in CLAIMS.values() if names is None or claim.name in names]


def reproduce(names: Sequence[str] | None = None, progress: Callable[[Finding], None] | None = None) -> list[Finding]:
    """Check every claim, or those of the given names, at full scale; `progress` hears of each when it is done."""
    found = []
    for claim in chosen(names):
        found.append(claim.check())
        if progress is not None:
            progress(found[-1])
    return found
