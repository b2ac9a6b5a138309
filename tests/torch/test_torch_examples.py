"""Every example of examples/torch runs and its loss falls; the examples themselves exit with 1 if it does not."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed")

ROOT = Path(__file__).parents[2]
EXAMPLES = {  # name: the framework that it needs beside torch, or processes
    "plain_loop": None,
    "amp": None,
    "accumulation": None,
    "ddp": 2,
    "fsdp2": 2,
    "lightning_module": "lightning",
    "accelerate_loop": "accelerate",
    "hugging_face_trainer": "transformers",
}
QUIET = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}


TEARDOWN = "terminate called without an active exception"  # of torch, now and then, after the work of a process is done


def start(words: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | QUIET | {"TMPDIR": str(folder)}
    return subprocess.run([sys.executable, *words], capture_output=True, text=True, env=environment, cwd=folder)


def test_every_example_is_run() -> None:
    assert {file.stem for file in (ROOT / "examples" / "torch").glob("*.py")} == set(EXAMPLES)


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_loss_falls(name: str, tmp_path: Path) -> None:
    needs = EXAMPLES[name]
    if isinstance(needs, str) and importlib.util.find_spec(needs) is None:
        pytest.skip(f"{needs} is not installed")
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(needs)]
    words = launcher if isinstance(needs, int) else []
    done = start([*words, str(ROOT / "examples" / "torch" / f"{name}.py")], tmp_path)
    if isinstance(needs, int) and TEARDOWN in done.stderr:
        done = start([*words, str(ROOT / "examples" / "torch" / f"{name}.py")], tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "loss" in done.stdout
