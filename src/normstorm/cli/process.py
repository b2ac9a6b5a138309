"""The command as a process of its own: Ctrl-C is answered within a second, whatever it is doing.

Python hears an interruption between two of its own instructions: not while XLA compiles; and an exception that comes
up inside somebody else's callback is lost. So the system's handler also writes to a pipe, and a thread that reads it
gives the command a moment to end by itself, with what it wants to keep. A command that has not ended then, and is not
writing a file, is ended by the thread.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

from normstorm._shared import files

INTERRUPTED = 130
MOMENT = 0.4  # seconds for the command itself
PAUSE = 0.02
SHOW_CURSOR = "\x1b[?25h"
_left: Callable[[], str] = "normstorm: interrupted".strip
_said = threading.Lock()


def process() -> None:
    """`main` for a process; an interruption does not wait for threads that still compile.

    They would find nothing left to work on, and crash.
    """
    try:
        watch()
        from .main import main

        main()
    except SystemExit as end:
        if end.code == INTERRUPTED:
            _leave()
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # what was asked for is done
        raise
    except KeyboardInterrupt:
        _leave()


def watch() -> None:
    """Answer interruptions from now on, unless they are ignored, as in the background of a shell."""
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        return
    sys.unraisablehook = _unheard
    signal.signal(signal.SIGINT, _unless_loading)
    heard, told = os.pipe()
    os.set_blocking(told, False)
    signal.set_wakeup_fd(told, warn_on_full_buffer=False)
    threading.Thread(target=_answer, args=(heard,), name="interruption", daemon=True).start()


def _unheard(lost: Any) -> None:
    """An interruption that came up inside a callback is answered by the thread; Python's words about it help nobody."""
    if lost.exc_type is not KeyboardInterrupt:
        sys.__unraisablehook__(lost)


def _unless_loading(number: int, frame: FrameType | None) -> None:
    """Python's own answer, but not inside of the import of JAX, whose libraries end the process at an exception."""
    if not getattr(getattr(sys.modules.get("jax"), "__spec__", None), "_initializing", False):
        signal.default_int_handler(number, frame)


def on_interruption(sentence: Callable[[], str]) -> None:
    """What is said of one from now on."""
    global _left, _said
    _left, _said = sentence, threading.Lock()


def interrupted() -> str | None:
    """The sentence for the first one who asks: the command, or the thread."""
    return _left() if _said.acquire(blocking=False) else None


def _answer(heard: int) -> None:
    while int(signal.SIGINT) not in os.read(heard, 64):
        pass
    ends = time.monotonic() + MOMENT
    while time.monotonic() < ends or files.writing():
        time.sleep(PAUSE)
    _leave()


def _leave() -> None:
    if sentence := interrupted():
        cursor = SHOW_CURSOR if os.isatty(2) else ""  # a bar that was broken off has hidden it
        os.write(2, f"{cursor}{sentence}\n".encode())
    for stream in (sys.stdout, sys.stderr):
        if threading.current_thread() is threading.main_thread():
            stream.flush()
    os._exit(INTERRUPTED)
