"""End vLLM's processes together with the peer that started them, however it ends."""

from __future__ import annotations

import fcntl
import os
import signal
import threading
from pathlib import Path


def end_with_peer(lock: Path) -> None:
    """Kill this process's group as soon as the peer is gone, which holds a lock on a file for as long as it lives.

    The kernel releases the lock of a process that ends in any way. All of vLLM's processes are one group, and each
    worker watches by itself, so that none is left if the server is killed together with the peer.
    """
    descriptor = os.open(lock, os.O_RDONLY | os.O_CLOEXEC)
    threading.Thread(target=_wait, args=(descriptor,), name="end-with-peer", daemon=True).start()


def _wait(descriptor: int) -> None:
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    os.killpg(0, signal.SIGKILL)
