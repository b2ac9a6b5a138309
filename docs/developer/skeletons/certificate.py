"""A certificate: copy to src/normstorm/theory/certificates/<page>.py. The proof comes first, in docs/theory/<page>.md.

Claim: the mean of ||grad F(x_t)|| is at most the value, surely. Proof, in the notation of docs/theory/setting.md:
eps_t = beta eps_{t-1} + D_t with ||D_t|| <= A0 + A1 g_t and ||eps_1|| <= n_1, so by the triangle inequality

    sum_{t <= T} ||eps_t|| <= n_1 (1 - beta^T)/alpha + ((T - 1) A0 + A1 sum_{t <= T} g_t)/alpha,

and the closing lemma turns a bound of this form into one of the mean of g_t. (`sure` is sharper; this is an example.)
"""

from __future__ import annotations

from normstorm.theory.certificates.case import Bound, Case, close_linear, deterministic


def my_certificate(case: Case) -> Bound:
    """The triangle inequality alone (docs/theory/my-page.md)."""
    # Without noise every estimate is the gradient, and every certificate is the descent lemma.
    if case.constants.is_deterministic:
        return deterministic(case)
    # Arrays broadcast: no `if` on parameters. alpha = 1 - beta is given; never form 1 - beta yourself.
    A0, A1 = case.radius
    # Names of parts are keys of MEANINGS (case.py), which says them in words.
    error = {
        "first gradient": case.first_noise * case.forgotten(case.T) / case.alpha,
        "noise": (case.T - 1) * A0 / case.alpha,
    }
    # Infinity where the conditions fail, and rounding up, are the closing lemma's. At T = 1 this keeps its formula
    # (docs/theory/setting.md, edge cases), so its oracle begins with `edge()`.
    return close_linear(case, error, A1 / case.alpha)
