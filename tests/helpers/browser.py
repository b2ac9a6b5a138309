"""A page in a real browser: what it measures there, and its picture."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tempfile
from html import unescape
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
QUIET = ("disable-gpu", "disable-quic", "no-first-run", "disable-background-networking", "disable-component-update")
FLAGS = ["--headless", "--no-sandbox", "--disable-sync", "--hide-scrollbars", *(f"--{flag}" for flag in QUIET)]
DRAWN = 8000  # milliseconds of the page's own clock, until its charts are there
LISTEN = """<script>const wrong = []; addEventListener("error", e => wrong.push(e.message));
addEventListener("unhandledrejection", e => wrong.push(String(e.reason)));
for (const kind of ["error", "warn"]) console[kind] = (...words) => wrong.push(words.join(" "));</script>"""
MEASURE = """<script>addEventListener("load", () => setTimeout(() => {
const box = e => { const r = e.getBoundingClientRect(); return [r.left, r.right, r.width, r.height]; };
const seen = {width: innerWidth, scroll: document.documentElement.scrollWidth, wrong,
  background: getComputedStyle(document.body).backgroundColor, colour: getComputedStyle(document.body).color,
  sections: [...document.querySelectorAll("h1, h2")].map(e => [e.textContent, ...box(e)]),
  charts: [...document.querySelectorAll(".chart")].map(e => [e.id, e.querySelectorAll("svg path").length, ...box(e)])};
parent.postMessage(JSON.stringify(seen), "*"); }, 4000));</script>"""
FRAME = """<!doctype html><body style="margin: 0">
<iframe src="page.html" style="border: 0; width: {width}px; height: 900px"></iframe>
<script>addEventListener("message", e => {{ const place = document.createElement("pre");
place.id = "measured"; place.textContent = e.data; document.body.append(place); }});</script></body>"""


def browser() -> str | None:
    """The first that is installed."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


def _asked(page: str, width: int, height: int, dark: bool, *words: str, frame: str = "") -> str:
    with tempfile.TemporaryDirectory() as folder:
        file, around = Path(folder) / "page.html", Path(folder) / "frame.html"
        file.write_text(page, encoding="utf-8")
        around.write_text(frame, encoding="utf-8")
        size = [f"--window-size={width},{height}", f"--blink-settings=preferredColorScheme={0 if dark else 1}"]
        own = [f"--user-data-dir={folder}/profile", f"--virtual-time-budget={DRAWN}", *words]
        own.append((around if frame else file).as_uri())
        call = [str(browser()), *FLAGS, *size, *own]
        return subprocess.run(call, capture_output=True, encoding="utf-8", timeout=120, check=True).stdout


def measured(page: str, width: int, *, dark: bool = False) -> dict[str, Any]:
    """Widths, colours, places of headings and charts, and whatever the page complained of."""
    before, _, after = page.replace("<head>", f"<head>{LISTEN}", 1).rpartition("</body>")
    heard = f"{before}{MEASURE}</body>{after}"
    # In a frame: a window of its own is never narrower than 500 pixels.
    told = _asked(heard, 1600, 1000, dark, "--dump-dom", frame=FRAME.format(width=width))
    found = re.search(r'<pre id="measured">(.*?)</pre>', told, re.DOTALL)
    assert found is not None, "the page did not come to its end"
    seen: dict[str, Any] = json.loads(unescape(found[1]))
    return seen


def picture(page: str, file: Path, width: int, height: int, *, dark: bool = False) -> None:
    """Its first `height` lines as PNG."""
    _asked(page, width, height, dark, f"--screenshot={file}")
