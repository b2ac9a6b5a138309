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


def launch(folder: Path, *jobs: dict[str, Any]) -> list[dict[str, Any]]:
    """What each job has found; `agent.py` says how they are started."""
    file = str(HERE / "worker.py")
    described = json.dumps([{"file": file, "words": [job["name"], str(folder)], **job} for job in jobs])
    helpers = [str(HERE.parent / "helpers"), str(HERE), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, helpers)), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(HERE / "agent.py"), described]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 0, done.stderr[-4000:]
    return [json.loads((folder / f"{job['name']}.json").read_text(encoding="utf-8")) for job in jobs]


def wrong(found: dict[str, Any]) -> dict[str, Any]:
    """The checks that failed: with a text, or with a distance."""
    return {name: value for name, value in found.items() if not isinstance(value, float) or not value < CLOSE}


def test_two_processes_of_which_one_is_killed_then_three(tmp_path: Path) -> None:
    """One story, because to start processes takes longer than what they do.

    Two: every check; then one of them dies, and the agent starts both again, which go on from the last checkpoint as if
    nothing had happened. Three: geometries again, and they finish what two have begun and saved.
    """
    checks, resume = {"name": "checks", "processes": 2, "restarts": 1}, {"name": "resume", "processes": 3}
    survived, found = launch(tmp_path, checks, resume)
    assert (survived.pop("attempt"), survived.pop("resumed from")) == (1, 3)
    assert wrong(survived) == {}
    checked = json.loads((tmp_path / "before.json").read_text(encoding="utf-8"))
    assert wrong(checked) == {}
    assert len(checked) == 58
    assert wrong(found) == {}
    assert {"fsdp, resumed", "ddp, resumed"} <= set(found)
    assert len(found) == 12
