"""Settings of theorems, against their formulas written out in NumPy."""

import numpy as np
import pytest

from normstorm import plan
from normstorm.algorithms.catalogue import CATALOGUE
from normstorm.lab.compare.methods import build
from normstorm.lab.compare.theorems import CONFIDENCE, THEOREMS, theorems
from normstorm.problems import registry

BUDGET = 20_000


def given(place: str):
    problem = registry.get(place)
    return problem, problem.constants(None, "mean-square")


def only(name: str, place: str, budget: int = BUDGET) -> dict:
    (found,) = theorems(name, registry.get(place), budget)
    return found.settings


@pytest.mark.parametrize("place", ["noisy-valley", "dro-chi2"])
def test_normalized_storm_is_the_planner(place: str) -> None:
    problem = registry.get(place)
    found = {t.label: t.settings for t in theorems("normalized_storm", problem, BUDGET)}
    for sense, confidence in (("almost-sure", CONFIDENCE), ("mean-square", None)):
        words = "expectation" if confidence is None else "probability 0.95"
        for rule in ("sharp", "paper"):
            p = plan(problem.constants(None, sense), budget=BUDGET, confidence=confidence, rule=rule)
            settings = found.pop(f"{rule} plan, {words}")
            assert settings == {"alpha": p.alpha, "eta": p.eta, "K": p.batch, "k": p.sub_batch}
            assert p.sample_gradients <= BUDGET
    assert found == {}


def test_the_anytime_schedule_is_the_planner() -> None:
    known = registry.get("dro-chi2").constants(None, "almost-sure")
    p = plan(known, horizon=(BUDGET + 1) // 2, confidence=CONFIDENCE, anytime=True)
    assert only("normalized_storm_anytime", "dro-chi2") == {"alpha": p.alpha, "eta": p.eta, "shift": p.shift}
    assert p.sample_gradients <= BUDGET


@pytest.mark.parametrize("place", ["noisy-valley", "exp-quad"])
def test_momentum_nsgd(place: str) -> None:
    _, c = given(place)
    K = max(1, int(np.ceil(64 * c.sigma1**2)))
    T = BUDGET // K
    alpha = np.minimum(1, np.sqrt(K * c.gap * c.L0 / (c.sigma0**2 * T)))
    with np.errstate(divide="ignore"):
        eta = np.minimum(np.sqrt(c.gap * alpha / (c.L0 * T)), np.divide(alpha, 2 * (4 + alpha) * c.L1))
    assert only("momentum_nsgd", place) == pytest.approx({"alpha": alpha, "eta": eta, "K": K})


@pytest.mark.parametrize("place", ["noisy-valley", "exp-quad"])
def test_normalized_sgd(place: str) -> None:
    _, c = given(place)
    K = max(1, int(np.ceil(64 * c.sigma1**2))) * 2 ** np.arange(40)
    K = K[K <= BUDGET]
    T = BUDGET // K
    bound = 2 * np.sqrt(2 * c.gap * c.L0 / T) + 4 * c.L1 * c.gap / T + 4 * c.sigma0 / np.sqrt(K)
    i = np.argmin(bound)
    with np.errstate(divide="ignore"):
        eta = np.minimum(np.sqrt(2 * c.gap / (c.L0 * T[i])), np.divide(1, 2 * c.L1))
    assert only("normalized_sgd", place) == pytest.approx({"eta": eta, "K": K[i]})


@pytest.mark.parametrize("budget", [1, BUDGET])  # each of the two terms is the smaller one once
@pytest.mark.parametrize("place", ["noisy-valley", "least-squares"])
def test_sgd(place: str, budget: int) -> None:
    problem, c = given(place)
    L = problem.objective_smoothness()[0]
    eta = np.minimum(1 / (L * (1 + c.sigma1**2)), np.sqrt(2 * c.gap / (L * c.sigma0**2 * budget)))
    assert only("sgd", place, budget) == pytest.approx({"eta": eta})


@pytest.mark.parametrize("place", ["noisy-valley", "dro-cvar"])
def test_page(place: str) -> None:
    _, c = given(place)
    S1 = 2 ** np.arange(14)
    S2 = np.floor(np.sqrt(S1))
    p = S2 / (S1 + S2)
    eta = 1 / (c.L0 * (1 + np.sqrt((1 - p) / (p * S2))))
    T = (BUDGET - S1) / (p * S1 + (1 - p) * 2 * S2)
    s = c.sigma0**2 / S1
    i = np.argmin(2 * c.gap / (eta * T) + s / (p * T) + s)
    assert only("page", place) == pytest.approx({"eta": eta[i], "chance": p[i], "S1": S1[i], "S2": S2[i]})


@pytest.mark.parametrize("place", ["noisy-valley", "dro-cvar"])
def test_spider_2(place: str) -> None:
    _, c = given(place)

    def sizes(eps: float) -> list[int]:
        return [int(np.ceil(v)) for v in (2 * (c.sigma0 / eps) ** 2, 2 * c.sigma0 / eps, c.sigma0 / eps)]

    def cost(eps: float) -> float:
        S1, S2, q = sizes(eps)
        return S1 + (4 * c.L0 * c.gap / eps**2 + 1) * (S1 + 2 * S2 * (q - 1)) / q

    found = only("spider_2", place)
    eps = found["eps"]
    S1, S2, q = sizes(eps)
    assert found == {"eps": eps, "L": c.L0, "S1": S1, "S2": S2, "q": q}
    assert cost(eps) <= BUDGET < cost(eps * (1 - 1e-6))


@pytest.mark.parametrize("place", ["least-squares", "logistic-nonconvex"])
def test_sarah(place: str) -> None:
    problem, c = given(place)
    m = problem.size
    found = only("sarah", place)
    assert found == pytest.approx({"eta": 2 / (c.L0 * (1 + np.sqrt(1 + 4 * m))), "period": m})
    assert 1 - c.L0 * found["eta"] - c.L0**2 * found["eta"] ** 2 * m == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("name", ["sgd", "page", "spider_2", "sarah"])
def test_what_does_not_apply_says_nothing(name: str) -> None:
    assert theorems(name, registry.get("exp-quad"), BUDGET) == [], "L1 > 0"


def test_everything_builds_or_is_left_out() -> None:
    assert THEOREMS.keys() <= CATALOGUE.keys() and theorems("adagrad_norm", registry.get("noisy-valley"), BUDGET) == []
    for place in ("separable-logistic", "exp-quad"):
        problem = registry.get(place)
        for name in THEOREMS:
            for found in (*theorems(name, problem, 1), *theorems(name, problem, BUDGET)):
                build(name, found.settings)
