"""A name for a problem that changes with anything its numbers depend on: data, parameters and the user's own code.

A checkpoint carries it, so that a run is not resumed on another problem.
"""

from __future__ import annotations

from normstorm._shared.hashing import content_hash
from normstorm.problems.protocol import Problem


def fingerprint(problem: Problem) -> str:
    """The problem's name and 16 digits."""
    return f"{problem.name}-{content_hash(problem.name, problem)[:16]}"
