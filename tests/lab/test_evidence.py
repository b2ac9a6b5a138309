"""The committed studies keep what is claimed, at the full scale, and the page shows them and nothing else."""

import json
from pathlib import Path

import pytest

from normstorm.lab.studies import coverage, slopes
from normstorm.problems import registry

ROOT = Path(__file__).parents[2]
MODULES = {"coverage": coverage, "slopes": slopes}


def report(name: str) -> dict:
    return json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", MODULES)
def test_the_page_shows_the_committed_figures(name: str) -> None:
    page = (ROOT / "docs" / "evidence.md").read_text(encoding="utf-8")
    shown = page.split(f"<!-- {name}: begin -->")[1].split(f"<!-- {name}: end -->")[0]
    assert shown.strip() == MODULES[name].markdown(report(name)["rows"])


def test_every_problem_is_covered() -> None:
    found = report("coverage")
    rows = found["rows"]
    assert [r["problem"] for r in rows] == list(registry.PROBLEMS)
    assert all("reason" not in r for r in rows)
    assert all(r["seeds"] >= 1000 and r["sample_gradients"] <= found["scale"]["budget"] for r in rows)
    assert all(r["violations"] <= (1 - r["confidence"]) * r["seeds"] for r in rows)
    assert all((r["violations"] == 0) == (r["max"] <= r["bound"]) for r in rows)
    assert coverage.verdict(rows)["holds"]


@pytest.mark.parametrize("row", report("coverage")["rows"], ids=lambda row: row["problem"])
def test_the_rows_are_of_the_problems_as_they_are(row: dict) -> None:
    """A change of constants asks for these rows again: benchmarks.lab.evidence --only coverage --problems NAMES."""
    present = registry.get(row["problem"]).constants().to_dict()
    assert row["constants"].pop("noise") == present.pop("noise")
    assert row["constants"].pop("mean_square") == pytest.approx(present.pop("mean_square"), rel=1e-6)
    assert row["constants"] == pytest.approx(present, rel=1e-6)


def test_every_judged_slope_is_the_predicted_one() -> None:
    rows = report("slopes")["rows"]
    assert [(r["law"], r["problem"], r["judged"]) for r in rows] == [
        (s.law.name, s.objective, s.judged) for s in slopes.SETTINGS
    ]
    assert all(slopes.is_seen(r) for r in rows if r["judged"])
    for r in rows:
        law = next(s.law for s in slopes.SETTINGS if s.law.name == r["law"])
        assert (r["predicted"], r["tolerance"]) == (law.slope, law.tolerance)
        assert r["horizons"][-1] >= 100 * r["horizons"][0] and r["seeds"] >= 16
        assert abs(r["slope"] - slopes.slope(r["horizons"], r["mean"])) < 1e-12
    assert {law.tolerance for law in (slopes.STORM, slopes.MOMENTUM)} == {0.03} and slopes.GROWTH.tolerance == 0.05
