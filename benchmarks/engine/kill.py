"""Kill a checkpointed run without warning, again and again, resume it, and compare its end bit by bit.

    python -m benchmarks.engine.kill [--race] [--kills 20] [--out benchmarks/results/kill.json, or kill-race.json]

Each round starts the run in a process of its own, sends SIGKILL after a random time, and starts it again from its
checkpoint until it has been killed so many times and then ends by itself. The digest of everything that it returns
must be that of a run that nobody touched. With --race it is a race to a certified point.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import json
import random
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from benchmarks.machine import describe
from benchmarks.pages import RESULTS

STEPS, SEEDS = 300_000, 16


def child(checkpoint: str) -> None:
    """The run; its last line is a digest of the result."""
    import jax
    import numpy as np

    jax.config.update("jax_enable_x64", True)
    from normstorm.algorithms import normalized_storm
    from normstorm.engine import run
    from normstorm.problems.registry import get

    problem = get("exp-quad")
    algorithm = normalized_storm(alpha=0.02, eta=1e-3, K=2, k=1)
    often = {"progress_steps": STEPS // 60, "checkpoint": checkpoint, "checkpoint_seconds": 0.0}
    trace = run(problem, algorithm, problem.start(), STEPS, SEEDS, **often)
    digest = hashlib.sha256()
    for leaf in jax.tree.leaves(asdict(trace)):
        digest.update(np.asarray(leaf).tobytes())
    print(digest.hexdigest())


def racing_child(checkpoint: str) -> None:
    """The fast arm of a race, with a checkpoint at every look; its last line is a digest of what it found."""
    import jax
    import numpy as np

    jax.config.update("jax_enable_x64", True)
    from normstorm.problems.registry import get
    from normstorm.solve import fast_arm

    fast_arm.SECONDS = 0.0
    problem = get("double-well")
    start, limits = problem.start(), fast_arm.Allowance(0.01, 0.01, 10**7, 10**7)
    algorithm = fast_arm.fast_algorithm(problem, start)
    found = fast_arm.run_fast_arm(problem, start, algorithm, SEEDS, limits, checkpoint=checkpoint)
    digest = hashlib.sha256(repr(found.certificates).encode())
    for leaf in jax.tree.leaves((found.standing, asdict(found.trace))):
        digest.update(np.asarray(leaf).tobytes())
    print(digest.hexdigest())


def start(checkpoint: Path, race: bool) -> subprocess.Popen[str]:
    words = ["-m", "benchmarks.engine.kill", "--child", str(checkpoint), *(["--race"] if race else [])]
    return subprocess.Popen([sys.executable, *words], stdout=subprocess.PIPE, text=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--child")
    parser.add_argument("--race", action="store_true")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    given.out = given.out or RESULTS / ("kill-race.json" if given.race else "kill.json")
    if given.child:
        (racing_child if given.race else child)(given.child)
        return
    moments = random.Random(given.seed)
    with tempfile.TemporaryDirectory() as folder:
        began = datetime.datetime.now()
        alone = start(Path(folder) / "alone", given.race).communicate()[0].split()[-1]
        seconds = (datetime.datetime.now() - began).total_seconds()
        print(f"untouched: {alone[:16]} in {seconds:.1f} s")
        same = killed = resumed = 0
        while killed < given.kills:
            checkpoint = Path(folder) / f"round-{killed}"
            process, here = start(checkpoint, given.race), 0
            while True:
                try:
                    out = process.communicate(timeout=moments.uniform(0, seconds))[0]
                    break
                except subprocess.TimeoutExpired:
                    if killed >= given.kills:
                        continue
                    process.kill()
                    process.communicate()
                    killed, here = killed + 1, here + 1
                    resumed += checkpoint.exists()
                    process = start(checkpoint, given.race)
            if out.split()[-1] != alone:
                sys.exit(f"killed {here} times, then ended elsewhere: {out.split()[-1][:16]}")
            same += 1
            print(f"killed {here} times, then ended the same")
    print(f"{killed} kills, {resumed} of them with a checkpoint to resume, {same} rounds, all bit-identical")
    given.out.parent.mkdir(parents=True, exist_ok=True)
    report = {"kills": killed, "resumed": resumed, "rounds": same, "identical": True, "untouched_seconds": seconds}
    date = datetime.date.today().isoformat()
    given.out.write_text(json.dumps({"date": date, "machine": describe(), **report}, indent=1) + "\n")


if __name__ == "__main__":
    main()
