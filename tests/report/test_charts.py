"""The chart: its data, its scales, and files that are whole or not there."""

import re
from pathlib import Path

import pytest

from normstorm import Constants, Plan, plan
from normstorm.report import charts

PROBLEM = Constants(L0=1, L1=0.5, sigma0=1, sigma1=0, gap=1, grad_norm=1)


@pytest.fixture(scope="module")
def chosen() -> Plan:
    return plan(PROBLEM, horizon=1000, confidence=None, batch=4, sub_batch=2)


@pytest.fixture(scope="module")
def chart(chosen: Plan):
    return charts.bound_chart(chosen, target=0.5)


def data(chart, layer: int) -> list[dict]:
    spec = chart.to_dict()
    return spec["datasets"][spec["layer"][layer]["data"]["name"]]


def rows(chart, rule: str) -> list[dict]:
    return [row for row in data(chart, 0) if row["rule"] == charts.LABELS[rule]]


def test_curves_fall_and_the_sharp_one_is_below(chart) -> None:
    paper, sharp = rows(chart, "paper"), rows(chart, "sharp")
    assert len(paper) == len(sharp) == 25
    for curve in (paper, sharp):
        costs = [row["sample gradients"] for row in curve]
        bounds = [row["bound"] for row in curve]
        assert costs == sorted(costs) and bounds == sorted(bounds, reverse=True)
    for theirs, ours in zip(paper, sharp, strict=True):
        # The paper's rule with its own batches cannot spend a cost to the last gradient.
        assert theirs["sample gradients"] <= ours["sample gradients"]
        assert theirs["bound"] > ours["bound"]


def test_the_plan_lies_on_its_curve(chart, chosen: Plan) -> None:
    here = [row for row in rows(chart, "sharp") if row["horizon"] == chosen.horizon]
    assert [row["bound"] for row in here] == [chosen.bound]
    assert [row["sample gradients"] for row in here] == [chosen.sample_gradients]


@pytest.mark.parametrize("question", [{"rule": "paper", "batch": 4}, {"certificate": "expectation"}])
def test_a_plan_that_was_asked_for_by_name_lies_on_its_curve(question) -> None:
    chosen = plan(PROBLEM, horizon=50, confidence=None, **question)
    chart = charts.bound_chart(chosen, certificate=question.get("certificate"))
    bounds = {row["horizon"]: row["bound"] for row in rows(chart, chosen.rule)}
    assert bounds[50] == chosen.bound


def test_scales_title_and_target(chart, chosen: Plan) -> None:
    spec = chart.to_dict()
    encoding = spec["layer"][0]["encoding"]
    assert encoding["x"]["scale"]["type"] == encoding["y"]["scale"]["type"] == "log"
    assert "L1 = 0.5" in spec["title"]["subtitle"][0]
    assert "in expectation" in spec["title"]["subtitle"][1]
    labels = {row.get("label") for i in range(len(spec["layer"])) for row in data(chart, i)}
    assert {"target 0.5", "this plan"} < labels
    without = charts.bound_chart(chosen).to_dict()
    assert len(spec["layer"]) - len(without["layer"]) == 2


def test_horizons_beyond_the_longest_end_the_curve() -> None:
    chart = charts.bound_chart(plan(PROBLEM, horizon=10**17, confidence=None))
    assert max(row["horizon"] for row in rows(chart, "sharp")) == 10**18


@pytest.mark.parametrize(("suffix", "start"), [("svg", b"<svg"), ("png", b"\x89PNG"), ("PDF", b"%PDF")])
def test_pictures(chart, tmp_path: Path, suffix: str, start: bytes) -> None:
    file = tmp_path / f"bound.{suffix}"
    charts.save(chart, file)
    assert file.read_bytes().startswith(start)
    assert list(tmp_path.iterdir()) == [file]


def test_html_needs_no_network(chart, tmp_path: Path) -> None:
    file = tmp_path / "bound.html"
    charts.save(chart, file)
    page = file.read_text(encoding="utf-8")
    assert "this plan" in page and "vegaEmbed" in page
    assert not re.search(r"<(script|link|img)[^>]*(src|href)=[\"']?(https?:)?//", page)
    assert not re.search(r"(import|from|@import)\s*\(?['\"]https?:", page)


def test_a_failed_save_leaves_the_old_file(chart, tmp_path: Path, monkeypatch) -> None:
    file = tmp_path / "bound.svg"
    file.write_text("old")

    def refuse(self: Path, target: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "replace", refuse)
    with pytest.raises(PermissionError):
        charts.save(chart, file)
    assert file.read_text() == "old"
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("name", ["bound.jpg", "bound", "missing/bound.svg"])
def test_paths_are_refused_before_any_work(name: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^chart must .*; got "):
        charts.checked_path(tmp_path / name)
