"""What a machine's owner lets pass: chunks out, chunks in. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class NetworkGate:
    """Args: send, receive: whether chunks may go out, and come in. reason: why not, in words."""

    send: bool = True
    receive: bool = True
    reason: str = ""

    @property
    def links(self) -> bool:
        """Whether there are links at all: who may not receive is of no use to others, and they of none to it."""
        return self.receive


#: Everything may pass.
OPEN = NetworkGate()
