"""Kalman-STORM, nothing to tune."""

from __future__ import annotations

from normstorm._shared.validate import batch, flag

from .core import Algorithm
from .filtering import Filtered, FilteredSteps
from .geometries import Euclidean


def kalman_storm(*, K: int = 1, k: int | None = None, table: bool = False) -> Algorithm:
    who = "kalman_storm"
    K = batch(who, "K", K)
    k = K if k is None else batch(who, "k", k, at_most=K)
    return Algorithm(Filtered(K, k, flag(who, "table", table)), Euclidean(), FilteredSteps(), who)
