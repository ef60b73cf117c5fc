"""Define what a chunk link reports to its user."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from rollcast.wire.links.frames import LinkFrame


class LinkClosed(Exception):
    """The link ended; frames that were in flight are lost.

    Args:
        reason: a text for people.
        code: the error code that the other end reported or caused; empty if there is none.
    """

    def __init__(self, reason: str, code: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.code = code


class LinkReceiver(Protocol):
    """The user of a link. The link calls it on the event loop, never from within a call that the user makes."""

    def frames(self, frames: Sequence[LinkFrame]) -> None:
        """Handle frames that arrived, in order; at least one."""

    def drained(self) -> None:
        """Handle the moment when every chunk sent so far has left this process, so that the socket takes more."""

    def closed(self, reason: str, code: str) -> None:
        """Handle the end of the link; called once, with ``reason`` and ``code`` as in LinkClosed."""
