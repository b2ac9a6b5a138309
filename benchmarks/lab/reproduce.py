"""The claims of the paper, checked: results/reproduce.json, and the text of docs/reproduce.md between its markers.

    python -m benchmarks.lab.reproduce [FILE]

FILE is what `normstorm reproduce --json` printed; without it the checks run here.
"""

from __future__ import annotations

import datetime
import json
import sys
from pathlib import Path

from benchmarks.machine import describe
from benchmarks.pages import RESULTS, publish
from normstorm.lab.claims import reproduce
from normstorm.report import reproduce_page as reproduction

RESULT = RESULTS / "reproduce.json"


def main() -> None:
    if sys.argv[1:]:
        found = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    else:
        now = datetime.datetime.now().astimezone()
        found = reproduction.report(reproduce(progress=lambda f: print(f.claim.name, f.verdict, flush=True)), now)
    publish(RESULT, {"machine": describe(), **found}, "reproduce.md", "reproduce", reproduction.markdown(found))


if __name__ == "__main__":
    main()
