"""Reject bytes from the network that do not hold what they should."""

from __future__ import annotations

from rollcast.runtime.errors import MalformedMessage


def require(condition: bool, problem: str) -> None:
    """Raise MalformedMessage with ``problem`` if ``condition`` is false."""
    if not condition:
        raise MalformedMessage(problem)
