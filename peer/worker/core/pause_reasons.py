"""Keep why a worker generates nothing or takes no new work, and since when."""

from __future__ import annotations

from dataclasses import dataclass

from peer.worker.core.events import RestingState
from peer.worker.core.status import PeerState


@dataclass(slots=True)
class Halt:
    """Reasons in words, empty if there is none. Stopping overrides resting, which overrides finishing.

    Args:
        stopping: why the worker ends as soon as its rollouts are uploaded.
        resting: why it generates nothing for now.
        finishing: why it completes the held leases and takes no new ones.
        ends: whether it stops after finishing.
        standby: why the coordinator gives it no work for now.
        since_s: when generating had to stop.
    """

    stopping: str = ""
    resting: str = ""
    resting_state: RestingState = "resting"
    finishing: str = ""
    ends: bool = True
    standby: str = ""
    since_s: float = 0.0

    @property
    def may_generate(self) -> bool:
        """Return whether a slice may be generated."""
        return not (self.stopping or self.resting)

    @property
    def takes_work(self) -> bool:
        """Return whether more slots may be requested."""
        return not (self.stopping or self.resting or self.finishing)

    @property
    def in_words(self) -> str:
        """Return the reason that goes with leases which are returned or refused; empty if there is none."""
        if self.stopping:
            return f"stopping: {self.stopping}"
        if self.resting:
            return f"{self.resting_state}: {self.resting}"
        return f"finishing: {self.finishing}" if self.finishing else ""

    def status(self, *, unfinished: int, unsent: int) -> tuple[PeerState, str] | None:
        """Return the state and its reason in words; None if neither stopping, resting nor finishing."""
        if self.stopping:
            return "draining", f"{self.stopping}; {unsent} finished rollouts to upload"
        if self.resting:
            return self.resting_state, self.resting
        return ("finishing", f"{self.finishing}; {unfinished} rollouts left") if self.finishing else None

    def stop(self, reason: str, now: float) -> bool:
        """Begin to stop; return whether it was not stopping before."""
        if self.stopping:
            return False
        self.stopping, self.since_s = reason or "asked to", now
        return True

    def rest(self, reason: str, state: RestingState, now: float) -> None:
        """Generate nothing from now on; with an empty reason, resume."""
        if self.may_generate:
            self.since_s = now
        self.resting, self.resting_state = reason, state
