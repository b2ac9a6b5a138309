"""What `normstorm estimate` is asked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from .requests import DEFAULT_PROBLEM

USUAL_BUDGET = 20_000


@dataclass(frozen=True)
class EstimateRequest:
    """`problem` is a name of the registry or path/to/file.py:name."""

    problem: Annotated[str, "A name, or path/to/file.py:name.", "[PROBLEM]"] = DEFAULT_PROBLEM
    budget: Annotated[int, f"Sample gradients of the run; {USUAL_BUDGET} if left out."] = USUAL_BUDGET
    seed: Annotated[int, "Of the run and of the samples; 0 if left out."] = 0
