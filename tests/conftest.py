"""Settings and fixtures shared by all tests."""

import sys
from pathlib import Path

import pytest
from hypothesis import settings

from normstorm.cli import main

settings.register_profile("normstorm", deadline=None, derandomize=True)
settings.load_profile("normstorm")


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path):
    """Call the command in an empty directory: (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")

    def call(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["normstorm", *map(str, words)])
        with pytest.raises(SystemExit) as done:
            main()
        out, err = capsys.readouterr()
        return done.value.code or 0, out, err

    return call
