"""When ports are mapped, renewed at half of their lease, tried another way, or given up for a while. Decisions only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Method = Literal["NAT-PMP", "UPnP"]

ROUND_FIRST_S = 60.0
ROUND_MOST_S = 3600.0
"""Between two rounds in which nothing worked: doubled each time. Routers are exchanged and set up, rarely."""
LOOK_AGAIN_S = 1800.0
"""After which a mapping without a lease is asked for again: a router that restarted has forgotten it."""


@dataclass(frozen=True, slots=True)
class Mapped:
    """A router maps all our ports.

    Args:
        ip: its outside address.
        ports: (inside, outside) of each.
        lease_s: the shortest of theirs; 0: for ever.
    """

    method: Method
    ip: str
    ports: tuple[tuple[int, int], ...]
    lease_s: float


@dataclass(frozen=True, slots=True)
class NotMapped:
    """It did not work.

    Args:
        jitter: 0 to 1, of the wait before the next round.
    """

    method: Method
    reason: str
    jitter: float = 1.0


@dataclass(frozen=True, slots=True)
class Woken:
    """It is ``wake_at_s``."""


Event = Mapped | NotMapped | Woken


@dataclass(frozen=True, slots=True)
class Ask:
    """Ask a router this way for all ports, with ``outside``: the outside ports that we had, if any."""

    method: Method


@dataclass(frozen=True, slots=True)
class Advertise:
    """Others dial us there; no ports: nowhere any more."""

    ip: str
    ports: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Say:
    """A line in the log: nothing maps our ports, and why."""

    reasons: tuple[str, ...]


Action = Ask | Advertise | Say


class MappingCore:
    """One machine's mappings. Ask ``wake_at_s`` after each event."""

    def __init__(self, methods: Sequence[Method] = ("NAT-PMP", "UPnP")) -> None:
        self._methods = tuple(methods)
        self._held: Mapped | None = None
        self._until_s = 0.0
        self._reasons: list[str] = []
        self._left: list[Method] = []
        self._fruitless = 0
        self.wake_at_s = 0.0

    @property
    def held(self) -> Mapped | None:
        """What is mapped at this time."""
        return self._held

    def handle(self, event: Event, now: float) -> list[Action]:
        """What to do."""
        match event:
            case Woken():
                return self._begin()
            case Mapped():
                return self._mapped(event, now)
            case NotMapped():
                return self._not_mapped(event, now)

    def _begin(self) -> list[Action]:
        """A round: the way that worked first."""
        self._reasons = []
        first = [self._held.method] if self._held is not None else []
        self._left = [*first, *(method for method in self._methods if method not in first)]
        self.wake_at_s = float("inf")
        return self._next()

    def _next(self) -> list[Action]:
        return [Ask(self._left.pop(0))] if self._left else []

    def _mapped(self, event: Mapped, now: float) -> list[Action]:
        before, self._held, self._fruitless, self._left = self._held, event, 0, []
        self._until_s = now + event.lease_s if event.lease_s else float("inf")
        self.wake_at_s = now + (event.lease_s / 2.0 or LOOK_AGAIN_S)
        same = before is not None and (before.ip, before.ports) == (event.ip, event.ports)
        return [] if same else [Advertise(event.ip, event.ports)]

    def _not_mapped(self, event: NotMapped, now: float) -> list[Action]:
        self._reasons.append(f"{event.method}: {event.reason}")
        if self._left:
            return self._next()
        ceiling_s = min(ROUND_MOST_S, ROUND_FIRST_S * 2.0 ** min(self._fruitless, 16))
        self._fruitless += 1
        self.wake_at_s = now + ceiling_s * (0.5 + 0.5 * event.jitter)
        said: list[Action] = [Say(tuple(self._reasons))] if self._fruitless == 1 else []
        if self._held is None:
            return said
        if now < self._until_s < float("inf"):
            self.wake_at_s = min(self.wake_at_s, self._until_s)  # what is left of the lease is still good
            return said
        self._held = None
        return [*said, Advertise("", ())]
