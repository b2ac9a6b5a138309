"""The pages show the committed figures and nothing else."""

import importlib.util
import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ENGINE, CHOICE = "docs/how-the-engine-runs.md", "docs/how-to-choose.md"


@pytest.mark.parametrize(
    ("name", "file", "table", "page"),
    [
        ("engine-cpu", "engine-cpu", "engine_table", ENGINE),
        ("engine-gpu", "engine-gpu", "gpu_table", ENGINE),
        ("comparison-table", "comparison-table", "choice_table", "README.md"),
        ("comparison-finals", "comparison-table", "finals_table", CHOICE),
        ("comparison-slopes", "comparison-slopes", "rates_table", CHOICE),
        ("torch-diagnosis", "torch-diagnosis", "diagnosis_table", "docs/diagnose.md"),
        ("comparison-speed", "comparison-speed", "speed_line", CHOICE),
    ],
)
def test_the_page_shows_the_committed_figures(name: str, file: str, table: str, page: str) -> None:
    spec = importlib.util.spec_from_file_location("pages", ROOT / "benchmarks" / "pages.py")
    pages = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(pages)
    report = json.loads((ROOT / "benchmarks" / "results" / f"{file}.json").read_text(encoding="utf-8"))
    text = (ROOT / page).read_text(encoding="utf-8")
    shown = text.split(f"<!-- {name}: begin -->")[1].split(f"<!-- {name}: end -->")[0]
    assert shown.strip() == getattr(pages, table)(report)
