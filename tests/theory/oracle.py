"""Sixty-digit transcription of the rules and certificates, the yardstick for the fast code.

Scalar functions over mpmath, written from the paper (Liu, Jagabathula, Zhou, "Near-Optimal
Non-Convex Stochastic Optimization under Generalized Smoothness") and the theory pages, never
from the implementation under test. ``c`` is any object with L0, L1, sigma0, sigma1, gap and
grad_norm; a missing grad_norm stands for the gradient-norm lemma's value. An attribute mean_square
with four numbers of its own gives 3B and 4B beside 3A and 4A. Nothing is rounded
up here, so a safe implementation may lie above these numbers by its own margin, never below.
"""

from collections.abc import Callable
from typing import Any

from mpmath import mp, mpf

mp.dps = 60
Num = Any


def _quiet(c: Any) -> Any:
    """Where 3B and 4B are: in mean_square, or in the constants themselves."""
    return getattr(c, "mean_square", None) or c


def gradient_bound(c: Any, Delta: Num) -> Num:
    """Largest gradient norm at a point whose gap is Delta (the lemma's tighter form)."""
    L0, L1, D = mpf(_quiet(c).L0), mpf(_quiet(c).L1), mpf(Delta)
    return L1 * D + mp.sqrt(L1**2 * D**2 + 2 * L0 * D)


def _letters(c: Any, cut: bool = True) -> tuple[Num, ...]:
    """L0, L1, s0, s1, Delta1, g1; a given g1 is cut at the lemma's bound on request."""
    lemma = gradient_bound(c, c.gap)
    g1 = lemma if c.grad_norm is None else mpf(c.grad_norm)
    g1 = min(g1, lemma) if cut else g1
    return mpf(c.L0), mpf(c.L1), mpf(c.sigma0), mpf(c.sigma1), mpf(c.gap), g1


def _ratio(a: Num, b: Num) -> Num:
    return a / b if b != 0 else mp.inf


def _paper_limits(c: Any, T: Num, alpha: Num, delta: Num) -> tuple[Num, Num]:
    """The two caps on eta that involve L1 in the high-probability proof."""
    L1, s1, log4 = mpf(c.L1), mpf(c.sigma1), mp.log(4 * mpf(T) / mpf(delta))
    alpha = mpf(alpha)
    with_noise = _ratio(mpf(1), 64 * s1 * L1 * T * mp.sqrt(alpha * log4))
    without = _ratio(alpha ** mpf("0.25"), 8 * mp.sqrt(2) * L1 * mp.sqrt(T) * log4 ** mpf("0.25"))
    return with_noise, without


def paper_high_probability_rule(c: Any, T: int, delta: Num) -> tuple[Num, Num]:
    """(alpha, eta) of the full high-probability theorem; g1 as given, x/0 read as infinity."""
    L0, L1, s0, s1, D1, g1 = _letters(c, cut=False)
    if L0 == 0 and L1 == 0:
        raise ValueError("paper_high_probability_rule: L0 and L1 must not both be 0")
    T = mpf(T)
    log4 = mp.log(4 * T / mpf(delta))
    h = mp.sqrt(D1 * L0) + D1 * L1
    noise = s0 + s1 * h
    first = _ratio(s0 + s1 * g1, noise * T * mp.sqrt(log4))
    second = _ratio(h**2, noise**2 * T * mp.sqrt(log4))
    alpha = min(mpf(1), max(first, second) ** (mpf(2) / 3))
    eta = min(
        mp.sqrt(_ratio(D1 * mp.sqrt(alpha), L0 * T * mp.sqrt(log4))),
        _ratio(mp.sqrt(D1), s1 * T * mp.sqrt(L0 * alpha * log4)),
        *_paper_limits(c, T, alpha, delta),
    )
    return alpha, eta


def _paper_batch(c: Any) -> int:
    return max(int(mp.ceil(64 * mpf(c.sigma1) ** 2)), 1)


def _paper_expectation_limit(c: Any, alpha: Num, k: int) -> Num:
    """The cap on eta that involves L1 in the expectation proof."""
    return _ratio(mpf(alpha), 2 * (4 * mp.sqrt(mpf(2) / k) + mpf(alpha)) * mpf(c.L1))


def paper_expectation_rule(c: Any, T: int, K: int, k: int) -> tuple[Num, Num]:
    """(alpha, eta) of the full expectation theorem; g1 as given, alpha = 1 without s0."""
    L0, L1, s0, s1, D1, g1 = _letters(c, cut=False)
    if L0 == 0 and L1 == 0:
        raise ValueError("paper_expectation_rule: L0 and L1 must not both be 0")
    if _paper_batch(c) > K:
        raise ValueError(f"paper_expectation_rule: K must be >= {_paper_batch(c)}; got K={K}")
    T, K, k = mpf(T), mpf(K), mpf(k)
    first = _ratio(D1 * L0 * K, s0**2 * mp.sqrt(k) * T)
    second = _ratio(s0 + s1 * g1 + D1 * L1 * mp.sqrt(K / k), s0 * T)
    alpha = min(mpf(1), max(first, second) ** (mpf(2) / 3))
    root = mp.sqrt(_ratio(D1 * min(mp.sqrt(k * alpha), mpf(1)), T * L0))
    return alpha, min(root, _paper_expectation_limit(c, alpha, k))


def paper(c: Any, T: int, alpha: Num, eta: Num, delta: Num) -> Num:
    """The high-probability proof's explicit bound, without shortcuts for no noise or T = 1."""
    L0, L1, s0, s1, D1, g1 = _letters(c)
    T, alpha, eta, delta = mpf(T), mpf(alpha), mpf(eta), mpf(delta)
    if eta * L1 > 1 or eta > min(_paper_limits(c, T, alpha, delta)):
        return mp.inf
    log4 = mp.log(4 * T / delta)
    up, down = mp.sqrt(log4 / alpha), mp.sqrt(alpha * log4)
    M = D1 + 33 * eta**2 * T * L0 / 2 * up + 2 * eta * (s0 + s1 * g1) / alpha
    M += 8 * eta * T * s0 * down
    N = 16 * eta**2 * T * L1 * up + 8 * eta * T * s1 * down
    return 2 * (4 * M + 8 * L0 * N**2) / (eta * T)


def paper_expectation(c: Any, T: int, alpha: Num, eta: Num, K: int, k: int) -> Num:
    """The last explicit line of the expectation proof, divided by T (no shortcuts either)."""
    *_, D1, g1 = _letters(c)
    c = _quiet(c)
    L0, L1, s0, s1 = (mpf(x) for x in (c.L0, c.L1, c.sigma0, c.sigma1))
    if _paper_batch(c) > K:
        return mp.inf
    T, alpha, eta, K, k = mpf(T), mpf(alpha), mpf(eta), mpf(K), mpf(k)
    if eta * L1 > 1 or eta > _paper_expectation_limit(c, alpha, k):
        return mp.inf
    total = 2 * D1 / eta + (1 + 4 * mp.sqrt(2) / mp.sqrt(k * alpha)) * eta * T * L0
    total += 4 * (s0 + s1 * g1) / (alpha * mp.sqrt(K)) + 4 * mp.sqrt(alpha) * T * s0 / mp.sqrt(K)
    return total / T


def _crossing(h: Callable[[Num], Num], lo: Num, hi: Num) -> Num:
    """Root of h between lo and hi, to some 48 digits."""
    tol = hi * mp.eps * 10**12
    return mp.findroot(h, (lo, hi), solver="illinois", tol=tol, maxsteps=500, verify=False)


class _Run:
    """Letters of one run: constants, T, beta, eta, K, k and the coefficients at g^0 and g^1."""

    def __init__(self, c: Any, T: int, alpha: Num, eta: Num, K: int = 1, k: int = 1) -> None:
        self.c = c
        self.L0, self.L1, self.s0, self.s1, self.D1, self.g1 = _letters(c)
        self.T, self.alpha, self.eta, self.K, self.k = map(mpf, (T, alpha, eta, K, k))
        self.beta = beta = 1 - self.alpha
        self.n1 = self.s0 + self.s1 * self.g1
        self.o, self.root = mp.sqrt(1 - beta**2), mp.sqrt(1 - self.alpha**2)
        self.q = mp.sqrt(beta * (2 + beta)) / self.o
        self.pairs = ((self.L0, self.s0), (self.L1, self.s1))
        m = _quiet(c)
        self.l0, self.l1, self.t0, self.t1 = map(mpf, (m.L0, m.L1, m.sigma0, m.sigma1))
        self.quiet = ((self.l0, self.t0), (self.l1, self.t1))
        self.both = m is not c
        self.A0, self.A1 = (2 * beta * self.eta * L + self.alpha * s for L, s in self.pairs)
        self.B0, self.B1 = (mp.sqrt(self.v(self.eta * L, s)) for L, s in self.quiet)
        self.a0, self.a1 = (mp.sqrt(self.v(2 * self.eta * L, s)) for L, s in self.pairs)

    def v(self, z: Num, n: Num) -> Num:
        """Sum of the squared piece radii when each Z is at most z and each xi at most n."""
        b, a = self.beta, self.alpha
        return b**2 * z**2 / self.k + 2 * b * a * z * n / self.K + a**2 * n**2 / self.K

    def drift(self, omega: int) -> tuple[Num, Num]:
        """alpha P and alpha Q of the Lyapunov family without initial term and noise."""
        spread, steps = self.q * omega * self.B1, self.T - 1
        alpha_P = steps * self.alpha * self.B0 / self.o + self.q * self.B0 * (1 - self.root)
        alpha_P += spread / 2 * self.eta * steps * self.l0
        tau = spread * max(mpf(1) / 2 - self.root, mpf(0))
        alpha_Q = self.alpha * omega * self.B1 / self.o + (1 - omega) * self.B1
        return alpha_P, alpha_Q + spread / 2 * self.eta * self.l1 + tau

    def linear(self, P: Num, Q: Callable[[Num], Num]) -> Num:
        """Close an error sum bounded by P + Q(G) sum g."""
        Delta = self.D1 + self.eta**2 * self.T * self.l0 / 2 + 2 * self.eta * P
        slope = Q(gradient_bound(self.c, Delta))
        A = 1 - self.eta * self.l1 / 2 - 2 * slope
        self.P, self.Q = P, slope
        return Delta / (A * self.eta * self.T) if A > 0 else mp.inf

    def edge(self, start: Num = None) -> Num | None:
        """Bound if eta L1 > 1, without noise, or at T = 1 with a known start; else None."""
        if self.eta * self.L1 > 1:
            return mp.inf
        if self.s0 == 0 and self.s1 == 0:
            return self.linear(mpf(0), lambda G: mpf(0))
        return self.linear(start, lambda G: mpf(0)) if self.T == 1 and start is not None else None

    def sup(self, S: Callable[[Num], Num]) -> Num:
        """Close an error sum bounded by S(G) where all gradients are at most G."""
        free = self.D1 + self.eta**2 * self.T * self.l0 / 2

        def excess(Delta: Num) -> Num:
            return free + 2 * self.eta * S(gradient_bound(self.c, Delta)) - Delta

        lo = hi = self.D1
        while (e := excess(hi)) > 0:
            # Psi grows with Delta, so hi + e = Psi(hi) never jumps over the smallest solution.
            lo, hi = hi, max(hi + e, hi * mpf("1.125"))
            if hi > mpf(10) ** 40 * (1 + self.D1):
                return mp.inf
        Delta = _crossing(excess, lo, hi) if lo < hi else hi
        return Delta / ((1 - self.eta * self.l1 / 2) * self.eta * self.T)


def _ks(r: Num, m: Num) -> Num:
    """Kearns-Saul proxy of Bennett's two-point law on {-m/r, r}."""
    if m in (0, r**2):
        return m
    pi = m / (m + r**2)
    log_odds = 2 * mp.atanh(1 - 2 * pi)  # log((1-pi)/pi), with all its digits near pi = 1/2
    return r**2 * (1 + m / r**2) ** 2 * (1 - 2 * pi) / (2 * log_odds)


def _best_ratio(A: Callable[[Num], Num], dA: Callable[[Num], Num], ell: Num) -> Num:
    """Infimum over theta > 0 of (A(theta) + ell)/theta for a convex A with A(0) = 0."""

    def above(theta: Num) -> Num:
        return ell - (theta * dA(theta) - A(theta))

    theta = mpf(1)
    while above(theta) > 0 and theta < 10**9:
        theta *= 2
    while above(theta / 2) <= 0:
        theta /= 2
    if above(theta) <= 0:
        theta = _crossing(above, theta / 2, theta)
    return (A(theta) + ell) / theta


def union(c: Any, T: int, alpha: Num, eta: Num, delta: Num) -> Num:
    """Pinelis' inequality at every t <= T and a union bound; batches are not used."""
    s = _Run(c, T, alpha, eta)
    if (edge := s.edge()) is not None:
        return edge
    first = s.n1 * (1 - s.beta**s.T) / s.alpha
    radius = mp.sqrt(2 * mp.log(2 * s.T / mpf(delta)) / (1 - s.beta**2))
    return s.sup(lambda G: first + s.T * radius * (s.A0 + s.A1 * G))


def ville(c: Any, T: int, alpha: Num, eta: Num, delta: Num, K: int, k: int, split: Num = None) -> Num:
    """Ville's inequality for the squared error; only K > 1 spends (1 - split) on the squares."""
    s = _Run(c, T, alpha, eta, K, k)
    if (edge := s.edge()) is not None:
        return edge
    f = mpf(1) if split is None or K == 1 else mpf(split)
    T, beta = s.T, s.beta

    def S(G: Num) -> Num:
        z, n = 2 * s.eta * (s.L0 + s.L1 * G), s.s0 + s.s1 * G
        R, v = beta * z + s.alpha * n, s.v(z, n)
        W = T * R**2
        if f < 1 and R > 0:
            p, ell2 = v / R**2, mp.log(1 / ((1 - f if beta else 1) * mpf(delta)))
            best = _best_ratio(lambda t: T * p * mp.expm1(t), lambda t: T * p * mp.exp(t), ell2)
            W = min(W, R**2 * best)
        b = 2 * beta**2 * v * mp.log(1 / (f * mpf(delta))) / (1 - beta**2)
        tail = mp.sqrt(T) * (mp.sqrt(W + b) + mp.sqrt(b)) / mp.sqrt(1 - beta**2)
        return s.n1 * (1 - beta**T) / s.alpha + tail

    return s.sup(S)


def ville2(c: Any, T: int, alpha: Num, eta: Num, delta: Num, K: int, k: int, split: Num = None) -> Num:
    """The squared-error certificate with second moments (Bernoulli squares, Kearns-Saul)."""
    s = _Run(c, T, alpha, eta, K, k)
    if (edge := s.edge(s.n1)) is not None:
        return edge
    T, beta, K, k, d = s.T, s.beta, s.K, s.k, mpf(delta)
    delta1 = d if split is None else d * mpf(split)
    delta2 = d if split is None or beta == 0 else d * (1 - mpf(split))

    def S(G: Num) -> Num:
        z, n = 2 * s.eta * (s.L0 + s.L1 * G), s.s0 + s.s1 * G
        change = s.eta * (s.l0 + s.l1 * G)
        noise = mp.sqrt(s.t0**2 + s.t1**2 * G**2) if s.both else n
        r1, q1 = beta * z / k + s.alpha * n / K, beta * change / k + s.alpha * noise / K
        R = beta * z + s.alpha * n
        W = (T - 1) * R**2
        if split is not None and R > 0:
            p = s.v(change, noise) / R**2
            best = _best_ratio(
                lambda t: (T - 1) * mp.log1p(p * mp.expm1(t)),
                lambda t: (T - 1) * p * mp.exp(t) / (1 + p * mp.expm1(t)),
                mp.log(1 / delta2),
            )
            W = min(W, R**2 * best)
        w = k * _ks(r1, q1**2) + (K - k) * _ks(s.alpha * n / K, (s.alpha * noise / K) ** 2)
        b = 2 * beta**2 * w * mp.log(1 / delta1) / (1 - beta**2)
        tail = mp.sqrt((T - 1) / (1 - beta**2)) * (mp.sqrt(W + b) + mp.sqrt(b))
        return s.n1 * (1 - beta**T) / s.alpha + tail

    return s.sup(S)


def _initial(s: _Run, lam: Num, omega: int) -> Num:
    """J: the smallest of the three forms of the initial term, each at its worse end of [0, g1]."""

    def forms(g: Num) -> tuple[Num, ...]:
        n, rho = s.s0 + s.s1 * g, s.q * (s.B0 + omega * s.B1 * g)
        H = mp.sqrt(n**2 + rho**2) - rho
        square = s.t0**2 + s.t1**2 * g**2 if s.both else n**2
        mean = mp.sqrt(square / s.K + rho**2) - rho
        choices = (H, mean + lam * n**2 / (2 * s.K), mean + lam * H**2 / 8)
        return tuple(form + s.q * omega * s.B1 * g / 2 for form in choices)

    return min(max(ends) for ends in zip(forms(mpf(0)), forms(s.g1), strict=True))


def _family(s: _Run, delta: Num, lam: Num, omega: int) -> Num:
    """Lyapunov function with rho_t = q (B0 + omega B1 g_t)."""
    if (edge := s.edge(s.n1)) is not None:
        return edge
    alpha_P, alpha_Q = s.drift(omega)
    noise = lam / 2 * (s.T - 1) * s.a0**2 + mp.log(1 / mpf(delta)) / lam

    def Q(G: Num) -> Num:
        return (alpha_Q + lam / 2 * (2 * s.a0 * s.a1 + s.a1**2 * G)) / s.alpha

    return s.linear((alpha_P + _initial(s, lam, omega) + noise) / s.alpha, Q)


def lyapunov(c: Any, T: int, alpha: Num, eta: Num, delta: Num, K: int, k: int, lam: Num) -> Num:
    """Lyapunov certificate with a constant rho."""
    return _family(_Run(c, T, alpha, eta, K, k), delta, mpf(lam), 0)


def adaptive(c: Any, T: int, alpha: Num, eta: Num, delta: Num, K: int, k: int, lam: Num) -> Num:
    """Lyapunov certificate whose rho follows the gradient norm."""
    return _family(_Run(c, T, alpha, eta, K, k), delta, mpf(lam), 1)


def _tangent(s: _Run, delta: Num, lam: Num, p: list[Num], psi: list[Num]) -> Num:
    """Linear form from sqrt(w_t) <= p0 + p1 g_t and R_t e_t/mu_t <= psi0 + psi1 g_t."""
    (p0, p1), (y0, y1) = p, psi
    mu0 = s.B0 * mp.sqrt(1 + 2 * s.beta) / s.o
    left = s.alpha - (lam / 2 * p0**2 * s.beta / (2 * mu0) if p0 else 0)
    if left <= 0:
        return mp.inf
    alpha_P, alpha_Q = s.drift(1)
    alpha_P += _initial(s, lam, 1) + mp.log(1 / mpf(delta)) / lam
    alpha_P += lam / 2 * (s.T - 1) * (p0 * y0 + y0**2)

    def Q(G: Num) -> Num:
        linear = 2 * p0 * p1 + p1**2 * G
        mixed = p0 * y1 + p1 * y0 + p1 * y1 * G
        return (alpha_Q + lam / 2 * (linear + mixed + 2 * y0 * y1 + y1**2 * G)) / left

    return s.linear(alpha_P / left, Q)


def _roots(s: _Run, least: Num) -> list[Num]:
    """p0, p1: roots of the proxies of all pieces, ratios of mean-square to sure radii raised to what is allowed."""
    rest = [(s.alpha * n / s.K, s.alpha * t / s.K) for (_, n), (_, t) in zip(s.pairs, s.quiet, strict=True)]
    half = s.beta * s.eta / s.k
    smooth = ((s.L0, s.l0), (s.L1, s.l1))
    early = [(2 * half * L + r, half * quiet + q) for (L, quiet), (r, q) in zip(smooth, rest, strict=True)]

    def squares(pieces: list[tuple[Num, Num]]) -> list[Num]:
        ratios = [q / r if r else mpf(0) for r, q in pieces]
        lowest = min(max(ratios), mpf(least))
        return [_ks(r, (max(x, lowest) * r) ** 2) if r else mpf(0) for (r, _), x in zip(pieces, ratios, strict=True)]

    both = zip(squares(early), squares(rest), strict=True)
    return [mp.sqrt(s.k * a + (s.K - s.k) * b) for a, b in both]


def _chi(s: _Run) -> Num:
    largest = max(a / b if b else mpf(0) for a, b in ((s.A0, s.B0), (s.A1, s.B1)))
    return largest * s.o / mp.sqrt(1 + 2 * s.beta)


def adaptive_tangent(c: Any, T: int, alpha: Num, eta: Num, delta: Num, K: int, k: int, lam: Num) -> Num:
    """Adaptive certificate with the tangent noise bound, the better of its two e_t."""
    s = _Run(c, T, alpha, eta, K, k)
    if (edge := s.edge(s.n1)) is not None:
        return edge
    choices = [s.A0 / 4, s.A1 / 4], [s.a0, s.a1]
    return min(_tangent(s, delta, mpf(lam), _roots(s, 1), [_chi(s) * e for e in es]) for es in choices)


def adaptive_convex(c: Any, T: int, alpha: Num, eta: Num, delta: Num, K: int, k: int, lam: Num) -> Num:
    """adaptive_tangent with the roots and R^2/c split at g = 0 by convexity."""
    s = _Run(c, T, alpha, eta, K, k)
    if (edge := s.edge(s.n1)) is not None:
        return edge
    per_c = s.o / mp.sqrt(1 + 2 * s.beta)  # c_t / mu_t
    ranges = [per_c * A**2 / (4 * B) if B else mpf(0) for A, B in ((s.A0, s.B0), (s.A1, s.B1))]
    pairs = ranges, [_chi(s) * s.a0, _chi(s) * s.a1]
    return min(_tangent(s, delta, mpf(lam), _roots(s, mpf(1) / 4), psi) for psi in pairs)


def start(c: Any, T: int, eta: Num) -> Num:
    """The first gradient and what T - 1 steps can add to it."""
    s = _Run(c, T, mpf(1), eta)
    if s.eta * s.L1 > 1:
        return mp.inf
    travel = s.eta * (s.l0 + s.l1 * s.g1) * (s.T - 1) / 2
    return s.g1 + travel * (1 + s.eta * s.l1) ** max(s.T - 2, 0)


def sure(c: Any, T: int, alpha: Num, eta: Num) -> Num:
    """Bound that holds on every path, for any batch."""
    s = _Run(c, T, alpha, eta)
    if (edge := s.edge(s.n1)) is not None:
        return edge
    later = (1 - s.beta ** (s.T - 1)) / s.alpha
    P = s.n1 * (1 - s.beta**s.T) / s.alpha + (s.T - 1) * s.A0 * later
    return s.linear(P, lambda G: s.A1 * later)


def _first_error(s: _Run, g: Num, mean_square: bool) -> Num:
    """R1 at gradient norm g: root mean square of the first error, 4B (mean_square) or 4A."""
    if mean_square or s.both:
        return mp.sqrt((s.t0**2 + s.t1**2 * g**2) / s.K)
    return (s.s0 + s.s1 * g) / mp.sqrt(s.K)


def expectation(c: Any, T: int, alpha: Num, eta: Num, K: int, k: int, mean_square: bool) -> Num:
    """Expectation certificate by recursive conditioning: eight terms of its sum, then an integral."""
    s = _Run(c, T, alpha, eta, K, k)
    R1 = _first_error(s, s.g1, mean_square)
    if (edge := s.edge(R1)) is not None:
        return edge
    T, beta, u0 = s.T, s.beta, s.B0 / s.o

    def phi(x: Num) -> Num:
        return mp.sqrt(u0**2 + (R1**2 - u0**2) * beta ** (2 * x))

    def integral(low: Num, high: Num) -> Num:
        y, z = phi(low), phi(high)
        log_term = u0 * mp.log((y + u0) / (z + u0)) if u0 else mpf(0)
        return u0 * (high - low) + (y - z - log_term) / -mp.log(beta)

    terms = mp.fsum(phi(mpf(j)) for j in range(min(8, int(T))))
    if beta == 0:
        S0 = R1 + (T - 1) * s.B0
    elif u0 <= R1:
        S0 = terms + (integral(mpf(15) / 2, T - mpf(1) / 2) if T > 8 else 0)
    else:
        S0 = terms + (integral(mpf(8), T - 1) + (phi(mpf(8)) + phi(T - 1)) / 2 if T > 8 else 0)
        S0 = min(S0, T * phi(T - 1), R1 + (T - 1) * u0)
    return s.linear(S0, lambda G: s.B1 * (1 - beta ** (T - 1)) / s.alpha)


def expectation_adaptive(c: Any, T: int, alpha: Num, eta: Num, K: int, k: int, mean_square: bool) -> Num:
    """Expectation certificate whose rho follows the gradient norm."""
    s = _Run(c, T, alpha, eta, K, k)
    if (edge := s.edge(_first_error(s, s.g1, mean_square))) is not None:
        return edge
    alpha_P, alpha_Q = s.drift(1)

    def J(g: Num) -> Num:
        rho = s.q * (s.B0 + s.B1 * g)
        return mp.sqrt(_first_error(s, g, mean_square) ** 2 + rho**2) - rho + s.q * s.B1 * g / 2

    P = (alpha_P + max(J(mpf(0)), J(s.g1))) / s.alpha
    return s.linear(P, lambda G: alpha_Q / s.alpha)
