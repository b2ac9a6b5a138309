"""Every example of examples/torch runs and its loss falls; the examples themselves exit with 1 if it does not."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed")

HERE = Path(__file__).parent
FOLDER = HERE.parents[1] / "examples" / "torch"
ALONE = {  # name: the framework that it needs beside torch
    "plain_loop": None,
    "amp": None,
    "accumulation": None,
    "lightning_module": "lightning",
    "accelerate_loop": "accelerate",
    "hugging_face_trainer": "transformers",
}
TOGETHER = ("ddp", "fsdp2")  # in two processes
QUIET = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
NO_AMX = {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"}  # virtual machines name it among their flags and then forbid it
TEARDOWN = "terminate called without an active exception"  # of torch, now and then, after the work of a process is done


def start(words: list[str], folder: Path, **more: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | QUIET | NO_AMX | more
    return subprocess.run([sys.executable, *words], capture_output=True, text=True, env=environment, cwd=folder)


def test_every_example_is_run() -> None:
    assert {file.stem for file in FOLDER.glob("*.py")} == {*ALONE, *TOGETHER}


def test_the_loss_falls(tmp_path: Path) -> None:
    """One process for all, because to import torch and its frameworks takes longer than to train."""
    missing = {name for name, needs in ALONE.items() if needs is not None and importlib.util.find_spec(needs) is None}
    names = [name for name in ALONE if name not in missing]
    results = tmp_path / "results.json"
    done = start(
        [str(HERE / "run_examples.py"), str(results), *(str(FOLDER / f"{n}.py") for n in names)],
        tmp_path,
        TMPDIR=str(tmp_path),
    )
    found = json.loads(results.read_text(encoding="utf-8")) if results.exists() else {}
    assert found == dict.fromkeys(names, 0), done.stderr[-2000:]
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.count("loss") >= len(names)
    if missing:
        pytest.skip(f"the others fell; not installed: {', '.join(sorted(missing))}")


def test_the_loss_falls_in_two_processes(tmp_path: Path) -> None:
    """One after the other, from one agent; the first that fails ends it, and names itself.

    Its socket lies in the system's own folder: the name of a test's would be too long for one.
    """
    jobs = [{"processes": 2, "file": str(FOLDER / f"{name}.py"), "words": []} for name in TOGETHER]
    words = [str(HERE / "agent.py"), json.dumps(jobs)]
    done = start(words, tmp_path)
    if TEARDOWN in done.stderr:
        done = start(words, tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.count("step 100  loss") == len(TOGETHER)
