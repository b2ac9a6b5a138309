"""Start a file in several processes, as torchrun does, one job after the other: `agent.py '[JOB, ..]'`.

The agent, its store and its restarts are those of torchrun. Its processes alone are not new interpreters: they are
forked from one that has imported torch, because to import it takes longer than what they do.
"""

import json
import multiprocessing
import runpy
import sys
import tempfile
from pathlib import Path

from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
from torch.distributed.launcher.api import LaunchConfig, elastic_launch


def run(file: str, words: list[str]) -> None:
    """As the interpreter runs it, to its end or to its exit."""
    sys.argv = [file, *words]
    try:
        runpy.run_path(file, run_name="__main__")
    except SystemExit as done:
        if done.code:
            raise RuntimeError(f"{file} exits with {done.code}") from done


def main(jobs: list[dict]) -> None:
    multiprocessing.set_forkserver_preload(["imports"])
    for job in jobs:
        with tempfile.TemporaryDirectory() as logs:
            config = LaunchConfig(
                min_nodes=1,
                max_nodes=1,
                nproc_per_node=job["processes"],
                max_restarts=job.get("restarts", 0),
                run_id=Path(job["file"]).stem,
                rdzv_backend="c10d",
                rdzv_endpoint="localhost:0",
                start_method="forkserver",
                logs_specs=DefaultLogsSpecs(log_dir=logs),
            )
            elastic_launch(config, run)(job["file"], job["words"])


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
