"""What XLA is asked for before it starts, because it reads its flags once: small loops as one program each.

On a CPU XLA executes a loop operation by operation, at some 50 ns each, unless a pass through it touches fewer bytes
than a limit: then all of it is one program. Its limit is 1,024 bytes, which two numbers in x reach; with more of them
steps of one seed take up to seven times as long. Which loops can be one program is for XLA to say.

The digits of a run depend on it, the last ones; so a checkpoint names the limit.
"""

from __future__ import annotations

import os
import re
import sys

OPTION = "xla_cpu_small_while_loop_byte_threshold"
OURS, USUAL = 2**16, 2**10


def raise_loop_limit() -> int:
    """The limit in force. Whoever has set it keeps it, and an XLA that has started has its own."""
    flags = os.environ.get("XLA_FLAGS", "")
    given = re.search(rf"{OPTION}=(\d+)", flags)
    if given:
        return int(given[1])
    bridge = sys.modules.get("jax._src.xla_bridge")
    if bridge is not None and bridge.backends_are_initialized():
        return USUAL
    os.environ["XLA_FLAGS"] = f"{flags} --xla_backend_extra_options={OPTION}={OURS}".strip()
    return OURS


LIMIT = raise_loop_limit()
