"""The picture of the page that README.md and the quickstart begin with, from `normstorm run` and a real browser.

    python -m benchmarks.picture [--page build/run.html] [--out docs/_static/run.png]

Without --page the run is made anew, in a directory of its own. Needs Chromium.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "helpers"))
WIDTH, HEIGHT = 1000, 1400


def main() -> None:
    from browser import browser, picture

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--page", type=Path)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "_static" / "run.png")
    given = parser.parse_args()
    if browser() is None:
        sys.exit("picture: a Chromium must be installed; got none")
    with tempfile.TemporaryDirectory() as folder:
        page = given.page
        if page is None:
            subprocess.run([sys.executable, "-m", "normstorm", "run", "--no-progress"], cwd=folder, check=True)
            page = Path(folder) / "build" / "run.html"
        given.out.parent.mkdir(parents=True, exist_ok=True)
        picture(page.read_text(encoding="utf-8"), given.out.resolve(), WIDTH, HEIGHT)
    print(f"{given.out}: {given.out.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
