"""Several processes, as torchrun starts them: equal to one process, resumed by another number of them, restarted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

HERE = Path(__file__).parent
CLOSE = 1e-12

pytestmark = pytest.mark.skipif(
    not (dist.is_available() and dist.is_gloo_available()), reason="needs torch.distributed with gloo"
)


def launch(processes: int, job: str, folder: Path, *options: str) -> dict[str, Any]:
    agent = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    command = [*agent, *options, str(HERE / "worker.py"), job, str(folder)]
    helpers = os.pathsep.join(filter(None, [str(HERE.parent / "helpers"), os.environ.get("PYTHONPATH")]))
    environment = os.environ | {"PYTHONPATH": helpers}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, Any] = json.loads((folder / f"{job}.json").read_text(encoding="utf-8"))
    return found


def wrong(found: dict[str, Any]) -> dict[str, Any]:
    """The checks that failed: with a text, or with a distance."""
    return {name: value for name, value in found.items() if not isinstance(value, float) or not value < CLOSE}


def test_two_processes_of_which_one_is_killed_then_three(tmp_path: Path) -> None:
    """One story, because to start processes takes longer than what they do.

    Two: every check; then one of them dies, and the agent starts both again, which go on from the last checkpoint as if
    nothing had happened. Three: geometries again, and they finish what two have begun and saved.
    """
    survived = launch(2, "checks", tmp_path, "--max-restarts=1", "--monitor-interval=0.1")
    assert (survived.pop("attempt"), survived.pop("resumed from")) == (1, 3)
    assert wrong(survived) == {}
    checked = json.loads((tmp_path / "before.json").read_text(encoding="utf-8"))
    assert wrong(checked) == {}
    assert len(checked) == 56
    found = launch(3, "resume", tmp_path)
    assert wrong(found) == {}
    assert {"fsdp, resumed", "ddp, resumed"} <= set(found)
    assert len(found) == 12
