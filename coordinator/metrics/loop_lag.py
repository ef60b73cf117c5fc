"""Whether the coordinator's loop is so late that uploads must wait, so that heartbeats and sessions do not."""

from __future__ import annotations

SHEDS_ABOVE_S = 1.0  # a peer's heartbeat must be read within its timeout, which is a few seconds
TAKES_BELOW_S = 0.25


class LoopLag:
    """The newest measurement of how late the loop is, in seconds."""

    def __init__(self) -> None:
        self.sheds = False

    def observe(self, seconds: float) -> None:
        """A tick was so late. What was shed is taken again only once the loop is well in time."""
        if seconds >= SHEDS_ABOVE_S:
            self.sheds = True
        elif seconds < TAKES_BELOW_S:
            self.sheds = False
