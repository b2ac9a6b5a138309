"""A certificate that follows the run: the average of ||grad F(x_t)|| along a path, from what was observed on it.

For an estimate m_s = (1 - a_s) (m_{s-1} + difference) + a_s (fresh gradient) with a predictable weight a_s, any steps
and any stopping time: with probability at least 1 - delta, for all t at once,

    sum theta_s ||grad F(x_s)||  <=  sum theta_s ||m_s|| + E_t,        s = 1..t,

where the weights theta_s = w_s - (1 - a_{s+1}) w_{s+1} come from predictable numbers w_s, and E_t bounds the weighted
sum of the errors ||m_s - grad F(x_s)||. It is summed up from observed squares, so quiet noise makes it small:

    E_t = sqrt(w_1^2 E_1^2 + p_1^2) - p_t sqrt(1 - theta_t^2/w_t^2) + (1/lam + B) log(J/delta)
        + sum_{s=2}^t [C_s p_s + (p_s - p_{s-1})_+ + w_s e_s + sum_j (w_s^2/(2 p_s) + psi(lam w_s r)/(lam r^2)) O_sj^2]

O_sj is the distance of a piece of step s (its samples are cut into pieces) from a predictable centre, r and R are sure
bounds of O_sj and of the radius of a ball that holds the piece, lam w_s r < 1 and p_s >= w_s^2 R^2/B. A step whose
range is too large for that pays w_s times a sure bound of its noise in the place of the squares. J instances
(lam, B, p_1) are fixed before the run, and the smallest E_t counts. Statement and proof: docs/theory/trajectory.md.
Steps are followed a block at a time, which costs a fraction of following each as it comes. Formulas take the module
`xp` that computes them: numpy, or one with the same names.

Source: Fan, Grama and Liu's exponential inequality for observed squares; Ville's inequality; Hoeffding's lemma.
Departures: psi(x) = -log(1 - x) - x is replaced by x^2/2 + x^3/(3 (1 - x)), which is larger and needs no logarithm; one
event for the linear and the quadratic part, by Hoelder's inequality; the same centre for all pieces of a step.
"""

from .blocks import SHORTEST, Observed, block_length, block_terms, follow_block, follow_first_step, growth_of_weights
from .bound import Followed, average_bound, errors, last_weight
from .instances import (
    QUIETER,
    WHOLE,
    Closure,
    Instances,
    Layout,
    instances,
    layout,
    noise_levels,
    opening_weight,
    steps_to_settle,
)
from .ranges import Ranges, from_constants, from_problem, of_two_steps, smallest

__all__ = [
    "QUIETER",
    "SHORTEST",
    "WHOLE",
    "Closure",
    "Followed",
    "Instances",
    "Layout",
    "Observed",
    "Ranges",
    "average_bound",
    "block_length",
    "block_terms",
    "errors",
    "follow_block",
    "follow_first_step",
    "from_constants",
    "from_problem",
    "growth_of_weights",
    "instances",
    "last_weight",
    "layout",
    "noise_levels",
    "of_two_steps",
    "opening_weight",
    "smallest",
    "steps_to_settle",
]
