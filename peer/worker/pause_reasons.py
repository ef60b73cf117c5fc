"""Why a worker draws nothing more, or takes no new work, and since when. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from peer.worker.events import RestingState
from peer.worker.status import PeerState


@dataclass(slots=True)
class Halt:
    """Reasons in words; empty where there is none. The gravest counts.

    Args:
        stopping: it ends as soon as what it has is uploaded.
        resting: it draws nothing for now, and goes on later.
        finishing: it completes what it holds and takes nothing new.
        ends: whether it stops then.
        standby: the coordinator gives it nothing for now.
        since_s: when drawing had to end.
    """

    stopping: str = ""
    resting: str = ""
    resting_state: RestingState = "resting"
    finishing: str = ""
    ends: bool = True
    standby: str = ""
    since_s: float = 0.0

    @property
    def draws(self) -> bool:
        """Whether a slice may be drawn."""
        return not (self.stopping or self.resting)

    @property
    def takes_work(self) -> bool:
        """Whether more slots may be asked for."""
        return not (self.stopping or self.resting or self.finishing)

    @property
    def in_words(self) -> str:
        """For whoever is given leases back, or is refused."""
        if self.stopping:
            return f"stopping: {self.stopping}"
        if self.resting:
            return f"{self.resting_state}: {self.resting}"
        return f"finishing: {self.finishing}" if self.finishing else ""

    def status(self, *, unfinished: int, unsent: int) -> tuple[PeerState, str] | None:
        """State and reason in words; None: nothing is halted."""
        if self.stopping:
            return "draining", f"{self.stopping}; {unsent} finished rollouts to upload"
        if self.resting:
            return self.resting_state, self.resting
        return ("finishing", f"{self.finishing}; {unfinished} rollouts to go") if self.finishing else None

    def stop(self, reason: str, now: float) -> bool:
        """Whether it was not stopping yet."""
        if self.stopping:
            return False
        self.stopping, self.since_s = reason or "asked to", now
        return True

    def rest(self, reason: str, state: RestingState, now: float) -> None:
        """Draw nothing from now on; an empty reason: go on."""
        if self.draws:
            self.since_s = now
        self.resting, self.resting_state = reason, state
