"""Which versions made a result."""

from __future__ import annotations

import platform
from importlib.metadata import version

from normstorm import __version__


def versions() -> dict[str, str]:
    return {
        "normstorm": __version__,
        "python": platform.python_version(),
        "numpy": version("numpy"),
        "jax": version("jax"),
    }
