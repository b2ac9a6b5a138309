"""The page of a race in a real browser: wide and narrow, light and dark."""

from pathlib import Path

import pytest
from browser import browser, measured

SECTIONS = ("The returned point", "Certificate at the returned point", "Guarantee against observation")
CHARTS = ("guarantee", "gradient", "value", "error")


@pytest.mark.skipif(browser() is None, reason="no Chromium is installed")
def test_a_page_in_a_browser(run) -> None:
    """Nothing is cut or beside the screen, every chart is drawn, nothing complains, and dark is dark."""
    code, _, err = run("run", "quadratic", "--target", 0.5, "--seeds", 3)
    assert (code, err) == (0, "")
    page, backgrounds = Path("build/run.html").read_text(encoding="utf-8"), {}
    for width, dark in ((1440, False), (1440, True), (390, False), (390, True)):
        seen = measured(page, width, dark=dark)
        assert seen["wrong"] == [] and seen["width"] == width and seen["scroll"] <= width
        names = [name for name, *_ in seen["sections"]]
        assert names[0].startswith("quadratic") and set(SECTIONS) < set(names)
        for _, left, right, *size in seen["sections"]:
            assert left >= 0 and right <= width and min(size) > 0
        assert [chart[0] for chart in seen["charts"]] == list(CHARTS)
        for _, paths, left, right, *size in seen["charts"]:
            assert paths > 10 and left >= 0 and right <= width and min(size) > 100
        backgrounds[width, dark] = seen["background"], seen["colour"]
    assert backgrounds[1440, False] == backgrounds[390, False] != backgrounds[1440, True] == backgrounds[390, True]
