"""One way to refuse what does not hold of bytes from the network."""

from __future__ import annotations

from rollcast.runtime.errors import MalformedMessage


def require(condition: bool, problem: str) -> None:
    """Raises MalformedMessage with ``problem`` where ``condition`` does not hold."""
    if not condition:
        raise MalformedMessage(problem)
