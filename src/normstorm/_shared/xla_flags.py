"""What XLA is asked for before it starts, because it reads its flags once: small loops as one program each.

On a CPU XLA executes a loop operation by operation, at some 50 ns each, unless a pass through it touches fewer bytes
than a limit: then all of it is one program. Its limit is 1,024 bytes, which few loops stay below. Which of those below
ours can be one program is for XLA to say. Whether it has heard us says `jax_internals.loops_are_programs`.
"""

from __future__ import annotations

import os
import sys

OPTION = "xla_cpu_small_while_loop_byte_threshold"
OURS, USUAL = 2**16, 2**10


def raise_loop_limit() -> None:
    """Unless somebody has set a limit, or XLA has started, or its flags are in a file, which is left alone."""
    flags = os.environ.get("XLA_FLAGS", "").strip()
    bridge = sys.modules.get("jax._src.xla_bridge")
    started = bridge is not None and bridge.backends_are_initialized()
    if not (started or OPTION in flags or (flags and not flags.startswith("-"))):
        os.environ["XLA_FLAGS"] = f"{flags} --xla_backend_extra_options={OPTION}={OURS}".strip()


raise_loop_limit()
