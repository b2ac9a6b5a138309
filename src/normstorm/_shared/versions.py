"""Which versions made a result."""

from __future__ import annotations

import platform
from importlib import import_module
from importlib.metadata import version


def package_version() -> str:
    """Of normstorm: by its name, as the package imports this room."""
    return str(import_module("normstorm").__version__)


def versions() -> dict[str, str]:
    return {
        "normstorm": package_version(),
        "python": platform.python_version(),
        "numpy": version("numpy"),
        "jax": version("jax"),
    }
