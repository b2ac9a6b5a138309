"""Interrupt `normstorm run` and `normstorm compare` at random moments, and see how soon and how they end.

    python -m benchmarks.engine.interrupt [--trials 36] [--only run|compare] [--out benchmarks/results/interrupt.json]

A command is first left alone, for its length; then it is started so many times, each in a new directory, and sent
SIGINT at a random moment of that length: importing, compiling, searching, testing or writing the page. It must end
with the exit code 130 and one sentence, no traceback and no part of a file; or with 0, if its answer was out already. A
trial that was over before its moment is made again. `by the signal` are those that ended before the command was
loaded: Python's own end, which a shell calls 130 too.
"""

from __future__ import annotations

import argparse
import datetime
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.machine import describe
from benchmarks.pages import RESULTS

NAMES = "sgd,storm,adagrad_norm,kalman_storm"
COMMANDS = {
    "run": ["run", "--no-progress"],
    "compare": ["compare", "--problems", "quadratic", "--algorithms", NAMES, "--budget", "2000", "--seeds", "8"],
}
LIMIT = 1.0
LOADED = 0.5  # seconds: later, whoever ends by the signal itself has failed


def started(words: list[str], folder: str) -> subprocess.Popen[str]:
    call = [sys.executable, "-m", "normstorm", *words]
    return subprocess.Popen(call, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def trial(words: list[str], moment: float) -> dict[str, Any] | None:
    """One interruption; None if the command was over before."""
    with tempfile.TemporaryDirectory() as folder:
        process = started(words, folder)
        try:
            process.wait(moment)
            process.communicate()
            return None
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
        sent = time.monotonic()
        _, said = process.communicate()
        seconds = time.monotonic() - sent
        parts = [path.name for path in Path(folder).rglob("*") if path.name.endswith(".part")]
    sentence = said.count("\n") == 1 and "interrupted" in said
    over = process.returncode == 0 and not said and seconds < LIMIT  # its answer was out already
    early = process.returncode == -signal.SIGINT and moment < LOADED
    ended = over or early or (process.returncode == 130 and sentence and not parts)
    found = {"moment": round(moment, 3), "seconds": round(seconds, 3), "code": process.returncode}
    return found | {"good": ended and seconds < LIMIT} | ({} if ended else {"stderr": said[-400:], "parts": parts})


def trials(words: list[str], count: int, moments: random.Random) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        began = time.monotonic()
        started(words, folder).communicate()
        length = time.monotonic() - began
    found: list[dict[str, Any]] = []
    while len(found) < count:
        one = trial(words, moments.uniform(0, length))
        if one is not None:
            found.append(one)
            print(" ".join(words[:1]), one, flush=True)
    slowest = max(one["seconds"] for one in found)
    by_signal = sum(one["code"] == -signal.SIGINT for one in found)
    summary = {"trials": count, "good": sum(one["good"] for one in found), "slowest_seconds": slowest}
    return {"command": " ".join(words), "length_seconds": length, **summary, "by_the_signal": by_signal, "all": found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=36)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=[*COMMANDS])
    parser.add_argument("--out", type=Path, default=RESULTS / "interrupt.json")
    given = parser.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # in the background of a shell it would be ignored
    report: dict[str, Any] = json.loads(given.out.read_text()) if given.out.exists() else {}
    for name, words in COMMANDS.items():
        if given.only in (None, name):
            report[name] = trials(words, given.trials, random.Random(given.seed))
            report |= {"date": datetime.date.today().isoformat(), "machine": describe()}
            given.out.write_text(json.dumps(report, indent=1) + "\n")
    bad = [one for name in COMMANDS for one in report.get(name, {}).get("all", ()) if not one["good"]]
    sys.exit(f"{len(bad)} trials did not end as they should" if bad else 0)


if __name__ == "__main__":
    main()
