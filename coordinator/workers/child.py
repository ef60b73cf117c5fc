"""Serve JSON lines as a child process: the other end of coordinator/workers/line_process.py.

The process ends when stdin closes, even while it works, so that a killed parent leaves no process behind. Only the
standard library is imported here: children also run in interpreters that have none of our packages.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import logging
import os
import queue
import signal
import sys
import threading
import warnings
from collections.abc import Callable
from typing import Any

LINE_BYTES_MAX = 32 << 20
LINES_AHEAD_MAX = 2  # lines read ahead while one is worked on
PR_SET_PDEATHSIG = 1  # linux/prctl.h


class Pipe:
    """The pipe to the parent. What libraries print goes to stderr from here on.

    Args:
        dies_with_parent: whether the kernel kills this process with its parent, at once.
    """

    def __init__(self, *, dies_with_parent: bool = True) -> None:
        if dies_with_parent:
            _die_with_parent()
        self._answers = os.dup(1)
        os.dup2(2, 1)
        self._lines: queue.Queue[bytes] = queue.Queue(LINES_AHEAD_MAX)

    def listen(self, heard: Callable[[bytes | None], None] | None = None) -> None:
        """Read lines in a thread, for ``receive``, or for ``heard``, which is called in that thread.

        When stdin ends, ``heard`` is called with None; without ``heard`` the process ends.
        """
        put = heard or self._put
        threading.Thread(target=_read_lines, args=(put,), name="stdin", daemon=True).start()

    def receive(self) -> Any:
        """Return the next value that the parent sent."""
        return json.loads(self._lines.get())

    def send(self, value: Any) -> None:
        """Send a value to the parent."""
        data = memoryview(json.dumps(value).encode() + b"\n")
        while data:
            data = data[os.write(self._answers, data) :]

    def _put(self, line: bytes | None) -> None:
        if line is None:
            os._exit(0)
        self._lines.put(line)


def keep_quiet() -> None:
    """Keep libraries' warnings about what they are given out of the log."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the parent, which ends this process
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)


def _read_lines(put: Callable[[bytes | None], None]) -> None:
    """Read lines in a thread, which notices the end of stdin even while the main thread works."""
    while line := sys.stdin.buffer.readline(LINE_BYTES_MAX + 1):
        if not line.endswith(b"\n"):
            os._exit(1)
        put(line)
    put(None)


def _die_with_parent() -> None:
    """Ask the kernel to kill this process with its parent, for code that never lets the stdin thread run."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
