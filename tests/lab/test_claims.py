"""The claims at a tiny scale: findings are well formed, every rule can fail, and page, JSON and command agree."""

import json
import math
import re
from datetime import UTC, datetime
from html import unescape
from pathlib import Path

import jax
import numpy as np
import pytest

from normstorm.lab import claims
from normstorm.lab.claims import CLAIMS, base, batches, confidence, generalized, thresholds
from normstorm.report import reproduce_page as reproduction

ROOT = Path(__file__).parents[2]
TINY = {
    "rate": {"objectives": ("exp-quad",), "horizons": (10, 30, 100), "seeds": 4},
    "confidence": {"objectives": ("exp-quad",), "steps": 1000, "seeds": 200},
    "one-sample": {"horizons": (100, 300), "seeds": 4},
    "sub-batch": {"sizes": (1, 6), "budget": 400, "seeds": 2},
    "strong-growth": {"objectives": ("quadratic",), "horizons": (10, 30), "seeds": 2},
    "adaptivity": {"horizons": (10, 30), "seeds": 2},
    "constant-batch": {"targets": (2.0, 1.0, 0.5, 0.2), "observed": 2.0, "seeds": 2},
    "lemmas": {"names": ("quadratic", "matrix-regression"), "points": 20, "martingales": 50, "steps": 20},
    "no-log-t": {"horizons": (10**4, 10**6), "steps": 50, "seeds": 4},
    "phase-retrieval": {"problem": generalized.noisy_retrieval(60, 5), "iterations": 2, "steps": 21, "seeds": 2},
    "robust-regression": {"problem": generalized.stand_in(80, 5), "iterations": 2, "steps": 21, "seeds": 2},
    "hybrid": {"n": 100, "dim": 3, "batch": 4, "passes": (1, 2), "seeds": 2},
    "agnostic": {"curvatures": (8.0, 32.0, 40.0), "steps": 200, "seeds": 2},
    "adagrad": {"factors": (1.0, 6.0, 8.0), "steps": 200, "seeds": 2},
}
# For every claim, and each of its rules in order, figures that must break it.
BREAKING = {
    "rate": [{"mean_off": 0.031}, {"quantile_off": 0.031}, {"own_rule_off": 0.031}, {"own_rule_off_with_L1": 0.031}],
    "confidence": [{"growth": 1.01}, {"certificate_growth": 1.01}, {"tail": 2.1}, {"above": 1e-9}],
    "one-sample": [{"batch_in_expectation": 1}, {"violations": 17}, {"high": -0.30}],
    "sub-batch": [
        *({"miscounted": 1}, {"worst_loss": 1.01}, {"best_bound": 1.0}, {"best_observed": 1.0}),
        {"paper_best_bound": 1.0},
    ],
    "strong-growth": [{"observed_off": 0.051}, {"certificate_slope": -0.49}],
    "adaptivity": [
        *({"L1_limit": 1e-5}, {"noise_limit": 1e-3}, {"slope_off_without_L1": 0.02}),
        *({"slope_off_without_noise": 0.02}, {"observed_without_noise": -0.44}),
    ],
    "constant-batch": [
        *({"spider_batch_slope": -1.9}, {"largest_batch_here": 2}, {"samples_slope": -4.0}),
        *({"least_advantage": 0.9}, {"observed_here": 1.0}, {"observed_here_with_L1": 1.0}),
    ],
    "lemmas": [{"descent": 1.001}, {"tight_gradient": 1.001}, {"violations_over_delta": 1.1}],
    "no-log-t": [{"log_exponent_low": 0.0}, {"largest_rise": 1e-6}, {"violations_ours": 3}],
    "phase-retrieval": [{"worst_other": 1e9}, {"worst_other_gd": 1e9}, {"best_other_gd": 1e9}],
    "robust-regression": [{"worst_other": 1e9}, {"worst_other_gd": 1e9}, {"best_other_gd": 1e9}],
    "hybrid": [{"largest_over_SGD": 1.1}, {"largest_over_best": 2.1}],
    "agnostic": [{"growth_per_l1": math.inf}, {"growth_known": 1.6}, {"slowest_agnostic": 9.0}],
    "adagrad": [{"slowest_below": 51.0}, {"growth_per_unit": 0.4}, {"slowest_above": 99.0}],
}


def committed() -> dict:
    return json.loads((ROOT / "benchmarks" / "results" / "reproduce.json").read_text(encoding="utf-8"))


# Those of many programs take half a minute to compile.
LONG = ("hybrid", "robust-regression", "constant-batch", "agnostic", "phase-retrieval", "sub-batch")


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.study) if n in LONG else n for n in CLAIMS])
def test_a_finding_is_well_formed(name: str) -> None:
    claim = CLAIMS[name]
    finding = claim.check(**TINY[name])
    found = json.loads(json.dumps(finding.to_dict(), allow_nan=False))
    assert found["name"] == name and found["statement"] and found["place"] and found["title"]
    assert [r["words"] for r in found["rules"]] == [r.words for r in claim.rules]
    assert found["figures"] and all(isinstance(v, int | float | None) for v in found["figures"].values())
    assert len({tuple(row) for row in found["rows"]}) == 1
    if found["chart"] is not None:
        assert {p["series"] for p in found["chart"]["points"]} and set(found["chart"]["scales"]) <= {"log", "linear"}
    judged = [r["holds"] for r in found["rules"] if r["judged"]]
    assert found["verdict"] == ("not judged" if not judged else "holds" if all(judged) else "fails")
    assert claim.judge(finding.seen.figures) == finding.outcomes
    text = reproduction.page(reproduction.report([finding], datetime(2026, 1, 2, tzinfo=UTC)))
    assert claim.statement in unescape(text) and all(r.words in unescape(text) for r in claim.rules)


@pytest.mark.parametrize("name", CLAIMS)
def test_every_rule_can_fail(name: str) -> None:
    claim = CLAIMS[name]
    figures = next(c["figures"] for c in committed()["claims"] if c["name"] == name)
    assert len(BREAKING[name]) == len(claim.rules)
    for i, change in enumerate(BREAKING[name]):
        assert change.keys() <= figures.keys()
        assert not claim.judge(figures | change)[i], claim.rules[i].words
        assert not claim.judge(figures | dict.fromkeys(change, math.nan))[i], (
            "a number that is not there proves nothing"
        )


def test_the_committed_report_holds_and_is_of_these_claims() -> None:
    found = committed()
    assert [c["name"] for c in found["claims"]] == list(CLAIMS)
    assert found["counts"]["fails"] == 0 and sum(found["counts"].values()) == len(CLAIMS)
    assert found["seconds"] < 600
    for c in found["claims"]:
        claim = CLAIMS[c["name"]]
        assert (c["title"], c["place"], c["statement"]) == (claim.title, claim.place, claim.statement)
        assert c["notes"] == list(claim.notes)
        outcomes = zip(claim.rules, claim.judge(c["figures"]), strict=True)
        assert c["rules"] == [{"words": r.words, "judged": r.judged, "holds": ok} for r, ok in outcomes]


def test_the_page_shows_the_committed_figures() -> None:
    text = (ROOT / "docs" / "reproduce.md").read_text(encoding="utf-8")
    shown = text.split("<!-- reproduce: begin -->")[1].split("<!-- reproduce: end -->")[0]
    assert shown.strip() == reproduction.markdown(committed())


def quick(holds: bool, judged: bool = True, name: str = "quick") -> claims.Claim:
    chart = base.Chart("x", "y", base.line("<i>s</i>", (1, 2), (1.0, None)))
    seen = base.Seen({"size": 1.0, "lost": math.inf}, [{"a": 1, "b": 2.5}], chart)
    rule = base.Rule("size is <b>small</b>", lambda f: holds, judged)
    return claims.Claim(name, "A <script>title</script>", "here", "It is so.", lambda: seen, (rule,), ("A note.",))


def only(monkeypatch: pytest.MonkeyPatch, *given: claims.Claim) -> None:
    monkeypatch.setattr(claims, "CLAIMS", {claim.name: claim for claim in given})


def test_the_command_prints_a_line_for_each_claim(run, monkeypatch) -> None:
    only(monkeypatch, quick(True), quick(False, False, "open"), quick(True, name="other"))
    code, out, err = run("reproduce", "--only", "open, quick")
    lines = out.splitlines()
    assert (code, err) == (0, "") and len(lines) == 4
    assert lines[0].split()[:2] == ["quick", "holds"] and lines[1].split()[:3] == ["open", "not", "judged"]
    assert lines[2].startswith("2 claims: 1 hold, 0 fail, 1 not judged") and lines[3] == "report: build/reproduce.html"
    text = Path("build/reproduce.html").read_text(encoding="utf-8")
    assert "<script>title" not in text and "default-src 'none'" in text
    markup = re.sub(r"<script>.*?</script>", "", text, flags=re.S)
    assert not re.search(r"<(b|i|img|link|iframe|script)\b|(src|href)=", markup)


def test_a_claim_that_fails_is_exit_code_one(run, monkeypatch) -> None:
    only(monkeypatch, quick(False))
    code, out, err = run("reproduce", "--json", "--report", "page.html")
    found = json.loads(out)
    assert code == 1 and found["counts"] == {"holds": 0, "fails": 1, "not judged": 0}
    assert found["claims"][0]["figures"] == {"size": 1.0, "lost": None}
    assert err.split()[:2] == ["quick", "fails"] and Path("page.html").is_file()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--only", "rate,what"], "only must name claims out of .*; got 'what'"),
        (["--only", " , "], "only must name claims out of .*; got none"),
        (["--report", "page.txt"], "report must end in .html; got page.txt"),
        (["--report", "missing/page.html"], "report must lie in an existing directory; got missing/page.html"),
        (["--quick"], "No such option.*"),
    ],
)
def test_refusals_are_one_sentence(run, words: list[str], message: str) -> None:
    code, out, err = run("reproduce", *words)
    assert (code, out) == (2, "") and re.fullmatch(f"normstorm reproduce: {message}\n", err)
    assert list(Path.cwd().iterdir()) == []


def test_an_interruption_leaves_no_page(run, monkeypatch) -> None:
    def stop() -> base.Seen:
        raise KeyboardInterrupt

    broken = claims.Claim("broken", "t", "p", "s", stop, ())
    only(monkeypatch, quick(True), broken)
    code, out, err = run("reproduce")
    assert code == 130 and err == "normstorm reproduce: interrupted; no page is written\n"
    assert out.split()[:2] == ["quick", "holds"] and list(Path.cwd().iterdir()) == []


def test_spiders_sizes_are_those_of_its_proof() -> None:
    known = batches.synthetic.quadratic().constants(None, "mean-square")
    sizes, T, samples = batches.spider_sizes(known, 0.05)
    eps, sigma = 0.01, known.sigma0
    assert sizes["eps"] == eps and sigma**2 / sizes["S1"] + (sizes["q"] - 1) * eps**2 / sizes["S2"] <= eps**2
    assert 4 * known.L0 * known.gap / (eps * T) <= eps
    cost = sum(sizes["S1"] if t % sizes["q"] == 0 else 2 * sizes["S2"] for t in range(T))
    assert samples == cost


def test_steps_that_a_budget_pays_for() -> None:
    def cost(T: int) -> int:
        return sum(100 if t % 5 == 0 else 6 for t in range(T))

    for budget in (100, 105, 106, 124, 223, 224, 1000, 1234):
        T = generalized.affordable(budget, 100, 3, 5)
        assert cost(T) <= budget < cost(T + 1)
    assert generalized.affordable(10, 100, 3, 5) == 1


def test_the_profile_of_the_robust_loss_is_its_minimum_over_eta() -> None:
    problem = generalized.stand_in(60, 3)
    z = np.array([0.3, -0.2, 0.1, 0.0])
    points = np.tile(z, (4001, 1))
    points[:, -1] = np.linspace(-1, 19, 4001)
    lowest = float(jax.vmap(problem.value)(points).min())
    found = problem.profile(z)
    assert math.isclose(found, lowest, rel_tol=1e-3) and found <= lowest * (1 + 1e-5)


def test_growth_is_one_for_an_exponential_tail() -> None:
    tail = [3 + 0.2 * math.log(1 / d) for d in confidence.DELTAS]
    assert math.isclose(confidence.growth(confidence.DELTAS, tail), 1)
    assert confidence.growth(confidence.DELTAS, [1 / d for d in confidence.DELTAS]) > 10


def test_settled_is_for_good() -> None:
    class Ran:
        record_steps = np.array([1, 2, 4, 8])

    def time(*means: float) -> float:
        Ran.running_mean = np.array([means])
        return thresholds.settled(Ran, 1.0)

    assert time(2, 0.5, 2, 0.5) == 8 and time(0.5, 0.5, 0.5, 0.5) == 1 and time(2, 0.5, 0.5, 0.5) == 2
    assert time(2, 0.5, 0.5, 2) == math.inf and time(2, 0.5, math.nan, math.nan) == math.inf
