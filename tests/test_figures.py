"""The pages show the committed figures and nothing else."""

from pathlib import Path

import boards
import pytest

from benchmarks import pages
from benchmarks.torch import pages as torch_pages
from normstorm._shared.jsonable import jsonable
from normstorm.lab.compare.tables import problem_facts, rows, targets

ROOT = Path(__file__).parents[1]
ENGINE, CHOICE = "docs/how-the-engine-runs.md", "docs/how-to-choose.md"


@pytest.mark.parametrize(
    ("name", "file", "table", "page"),
    [
        ("engine-cpu", "engine-cpu", "engine_table", ENGINE),
        ("engine-loops", "engine-loops", "engine_loops_table", ENGINE),
        ("engine-registry", "engine-registry", "engine_registry_table", ENGINE),
        ("engine-gpu", "engine-gpu", "gpu_table", ENGINE),
        ("comparison-table", "comparison-table", "choice_table", "README.md"),
        ("comparison-words", "comparison-table", "comparison_words", "README.md"),
        ("comparison-time", "comparison-table", "comparison_time", CHOICE),
        ("comparison-finals", "comparison-table", "finals_table", CHOICE),
        ("comparison-taken-home", "comparison-table", "taken_home_table", CHOICE),
        ("comparison-refused", "comparison-table", "refused_line", CHOICE),
        ("comparison-slopes", "comparison-slopes", "rates_table", CHOICE),
        ("selftuning-counts", "selftuning", "selftuning_counts", CHOICE),
        ("selftuning", "selftuning", "selftuning_table", CHOICE),
        ("selftuning-rivals", "selftuning", "selftuning_rivals", CHOICE),
        ("selftuning-calibration", "selftuning", "calibration_chart", CHOICE),
        ("selftuning-table", "selftuning", "filter_table", CHOICE),
        ("selftuning-ablation", "selftuning", "ablation_table", CHOICE),
        ("selftuning-forms", "selftuning", "forms_table", CHOICE),
        ("selftuning-units", "selftuning", "rescaling_line", CHOICE),
        ("torch-diagnosis", "torch-diagnosis", "diagnosis_table", "docs/diagnose.md"),
        ("torch-diagnosis-floor", "torch-diagnosis-floor", "diagnosis_table", "docs/diagnose.md"),
        ("comparison-speed", "comparison-speed", "speed_line", CHOICE),
        ("anytime", "anytime", "anytime_table", "docs/theory/any-schedule.md"),
        ("attack", "anytime", "attack_line", "docs/theory/any-schedule.md"),
        ("points", "points", "points_table", "docs/theory/fresh-samples.md"),
        ("stopping", "stopping", "stopping_table", "docs/evidence.md"),
        ("datasets", "datasets", "datasets_table", "docs/evidence.md"),
        ("race", "race", "race_table", "docs/race.md"),
        ("race-summary", "race", "race_summary", "docs/race.md"),
        ("race-splits", "race", "race_splits_table", "docs/race.md"),
        ("race-rules", "race", "race_rules_table", "docs/race.md"),
    ],
)
def test_the_page_shows_the_committed_figures(name: str, file: str, table: str, page: str) -> None:
    report = pages.loaded(ROOT / "benchmarks" / "results" / f"{file}.json")
    assert between(page, name) == getattr(pages, table)(report)


def test_the_advice_agrees_with_the_committed_figures() -> None:
    """What README.md and docs/how-to-choose.md say in words; a comparison that is run again may ask for other words."""
    report = pages.loaded(ROOT / "benchmarks" / "results" / "comparison-table.json")
    order = [line.split(" | ")[0].removeprefix("| ") for line in pages.finals_table(report).splitlines()[2:]]
    tuned, default = (pages._averages(report, kind) for kind in ("tuned", "default"))
    rows = [row for row in report["rows"] if row["problem"] == "dro-chi2" and "the budget" in row["setting"]]
    whole = {row["algorithm"]: row["final_median"] for row in rows}
    valley, dro, phase, bowl = (tuned[name] for name in ("noisy-valley", "dro-chi2", "phase-retrieval", "exp-quad"))
    storm, plain = "normalized_storm", ("sgd", "momentum_nsgd")
    shrinking = (
        "storm",
        "storm_plus",
        "super_adam",
        "meta_storm",
        "hybrid_sarah_sgd",
        "measured_storm",
        "kalman_storm",
    )
    least = {problem: min(found, key=lambda name: found[name]) for problem, found in default.items()}
    said = {
        "schedule-free SGD, tuned, is first by mean rank": order[0] == "schedule_free_sgd",
        "kalman_storm, as it is, is below all that only sample on the valley and on DRO, tuned ones included": all(
            default[problem]["kalman_storm"] < min(v for n, v in tuned[problem].items() if n != "kalman_storm")
            for problem in ("noisy-valley", "dro-chi2")
        ),
        "measured_storm and META-STORM are the next with variance reduction": {"measured_storm", "meta_storm"}
        <= set(order[:5]),
        "a smaller average than SGD and NSGD on the noisy valley": all(valley[storm] < valley[name] for name in plain),
        "a larger one than both on DRO": all(dro[storm] > dro[name] for name in plain),
        "the smallest among the defaults on three of the four problems": [
            problem for problem, name in least.items() if name != "kalman_storm"
        ]
        == ["phase-retrieval"],
        "on phase retrieval AdaGrad-Norm and measured_storm are better": {
            name for name, v in default["phase-retrieval"].items() if v < default["phase-retrieval"]["kalman_storm"]
        }
        == {"adagrad_norm", "measured_storm"},
        "on DRO nothing that only samples is near SAGA, SARAH and SVRG": all(
            3 * whole[name] < min(dro.values()) for name in ("saga", "sarah", "svrg")
        ),
        "noise that vanishes: SGD, plain or clipped, or AdaGrad-Norm": sorted(phase, key=lambda name: phase[name])[0]
        in ("sgd", "clipped_sgd", "soft_clipped_sgd", "mixed_clipping", "momentum_sgd", "adagrad_norm"),
        "on exp-quad averaging pays most": set(sorted(bowl, key=lambda name: bowl[name])[:2])
        == {"averaged_sgd", "schedule_free_sgd"},
        "there SGD and normalised SGD are better than Normalized STORM": bowl[storm]
        > max(bowl["sgd"], bowl["normalized_sgd"]),
        "on the valley those with the same correction are better still": all(
            valley[name] < valley[storm] for name in shrinking
        ),
    }
    assert [sentence for sentence, true in said.items() if not true] == []


def test_a_report_is_read_as_it_was_stored(tmp_path: Path) -> None:
    rows = [{"a": i, "b": [None, {"c": i / 3}]} for i in range(pages.LONG)]
    report = {"date": "2026", "long": rows, "short": rows[:2], "mixed": [*rows, {"a": 1}], "numbers": [1] * 200}
    (tmp_path / "x.json").write_text(pages.stored(report), encoding="utf-8")
    assert pages.loaded(tmp_path / "x.json") == report
    assert (tmp_path / "x.json").read_text(encoding="utf-8").count('"b"') == 1 + 2 + len(rows)


def test_tables_of_a_comparison_mark_what_ends_above_the_start() -> None:
    made = boards.board("x", {"sgd": 0.01, "storm": 0.02, "muon": None}, astray=("storm",))
    tables = {make.__name__: jsonable(make([made])) for make in (rows, targets)}
    report = {"spec": {"budget": boards.BUDGET}, "problems": jsonable([problem_facts(made)]), **tables}
    lines = pages.choice_table(report).splitlines()
    assert lines[0] == "| algorithm | x, 0.2 |" and [line.split(" | ")[0] for line in lines[2:]] == ["| sgd", "| storm"]
    assert lines[2].startswith("| sgd | 199 [") and lines[3].startswith("| storm | ↗ ")
    assert pages.finals_table(report).splitlines()[2:] == [
        *("| sgd | 0.0474 / 0.0905 |", "| storm | ↗ 0.0243 / ↗ 0.0474 |"),
    ]
    assert pages.taken_home_table(report).splitlines()[2:] == [
        *("| sgd | 0.0237 (0.5) / 0.0452 (0.5) |", "| storm | ↗ 0.0121 (1.5) / ↗ 0.0237 (1.5) |"),
    ]
    assert pages.refused_line(report).endswith(
        "ends above $F(x_1)$: 6 of 32 on x. Rows that are marked for it: 1 default, 1 theorem, 1 tuned."
    )


@pytest.mark.parametrize("name", torch_pages.TABLES)
def test_the_torch_page_shows_the_committed_figures_or_says_that_there_are_none(name: str) -> None:
    assert between("docs/pytorch.md", name) == torch_pages.shown(name)


def between(page: str, name: str) -> str:
    text = (ROOT / page).read_text(encoding="utf-8")
    return text.split(f"<!-- {name}: begin -->")[1].split(f"<!-- {name}: end -->")[0].strip()
