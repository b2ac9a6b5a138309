"""How far, and how much we trust: step size and weight of the fresh gradient.

A schedule is a frozen, JAX-registered dataclass with

    init(x)              -> state
    weight(t, state)     -> a_t, the weight of the fresh gradient in m_t
    step(t, m, state)    -> (eta_t, state)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..pytrees import pytree

Tree = Any


@pytree
@dataclass(frozen=True)
class Constant:
    """The same alpha = 1 - beta and eta at every step."""

    alpha: float
    eta: float

    def init(self, x: Tree) -> Tree:
        return ()

    def weight(self, t: Any, state: Tree) -> Any:
        return self.alpha

    def step(self, t: Any, m: Tree, state: Tree) -> tuple[Any, Tree]:
        return self.eta, state
