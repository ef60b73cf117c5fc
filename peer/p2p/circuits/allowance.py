"""Count the bytes that a relay may pass on for others: the libp2p thread requests them, the event loop grants them."""

from __future__ import annotations

import threading
from collections.abc import Callable

import trio


class Allowance:
    """The bytes that all circuits of one relay together may still pass on.

    Args:
        ask: requests that the event loop calls ``grant`` with another portion, sooner or later. Called in the libp2p
            thread.
        wake: returns a function that calls the given one in the libp2p thread and may be called from any thread.
    """

    def __init__(self, ask: Callable[[], None], wake: Callable[[Callable[[], None]], Callable[[], None]]) -> None:
        self._ask = ask
        self._wake = wake(self._granted)
        self._lock = threading.Lock()
        self._bytes = 0
        self._asked = False
        self._more = trio.Event()

    async def take(self, size_bytes: int) -> None:
        """Wait until ``size_bytes`` may pass, and use them up (libp2p thread)."""
        while not self._try(size_bytes):
            await self._more.wait()

    def grant(self, size_bytes: int) -> None:
        """Let ``size_bytes`` more pass (event loop)."""
        with self._lock:
            self._bytes += size_bytes
            self._asked = False
        self._wake()

    def _try(self, size_bytes: int) -> bool:
        with self._lock:
            if self._bytes >= size_bytes:
                self._bytes -= size_bytes
                return True
            asks, self._asked = not self._asked, True
            if self._more.is_set():
                self._more = trio.Event()
        if asks:
            self._ask()
        return False

    def _granted(self) -> None:
        self._more.set()
