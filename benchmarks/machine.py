"""The kind of machine that a figure was measured on."""

from __future__ import annotations

import os
import platform
from pathlib import Path


def describe() -> dict[str, object]:
    """Processor, cores and Python version; nothing that names a particular machine."""
    model = platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [line.split(":", 1)[1].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line]
        model = names[0] if names else model
    return {"processor": model, "cores": os.cpu_count(), "python": platform.python_version()}


def one_core_in_double() -> None:
    """Stay on one core, and count in double precision."""
    import jax  # which the benchmarks of torch go without

    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    jax.config.update("jax_enable_x64", True)
