"""What a chunk link tells whoever uses it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from rollcast.wire.links.frames import LinkFrame


class LinkClosed(Exception):
    """The link ended; what was on its way is lost.

    Args:
        reason: in words.
        code: of the error that the other end reported or made; empty otherwise.
    """

    def __init__(self, reason: str, code: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.code = code


class LinkReceiver(Protocol):
    """Whoever uses a link. All calls come on the event loop, none from within a call of the link."""

    def frames(self, frames: Sequence[LinkFrame]) -> None:
        """These came, in order; at least one."""

    def drained(self) -> None:
        """Every chunk sent so far has left this process, and the socket has room again."""

    def closed(self, reason: str, code: str) -> None:
        """The link ended. Called once; ``code`` is of the error that the other end reported or made."""
