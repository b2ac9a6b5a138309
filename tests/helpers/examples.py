"""Examples in pages: a piece of Python or a command, and the text that it prints."""

import math
import re

NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?%?")
TOLERANCE = 1e-3


def assert_same_text(now: str, shown: str) -> None:
    """Words agree exactly, numbers to 1 part in 1000, percentages to 1."""
    words, expected = (" ".join(NUMBER.sub("#", text).split()) for text in (now, shown))
    assert words == expected
    for new, old in zip(NUMBER.findall(now), NUMBER.findall(shown), strict=True):
        values = [float(text.strip("%").replace(",", "")) for text in (new, old)]
        slack = 1.0 if old.endswith("%") else 0.0
        assert math.isclose(*values, rel_tol=TOLERANCE, abs_tol=slack), (new, old)
