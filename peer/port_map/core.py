"""Decide when to map ports, renew them (at half of their lease), try the other protocol, or back off. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Method = Literal["NAT-PMP", "UPnP", "PCP"]

ROUND_FIRST_S = 60.0
ROUND_MOST_S = 3600.0
"""Seconds between two failed rounds: the wait doubles up to the second value, because routers rarely change."""
RENEWED_SOONEST_S = 4.0
"""Seconds for which a mapping is not renewed, however short its lease (RFC 6887, section 11.2.1)."""
LOOK_AGAIN_S = 1800.0
"""Seconds after which a mapping without a lease is requested again: a router that restarted has lost it."""


@dataclass(frozen=True, slots=True)
class Mapped:
    """A router maps all ports.

    Args:
        ip: the router's outside address.
        ports: (inside, outside) of each mapping.
        lease_s: the shortest lease in seconds; 0: the mappings do not expire.
    """

    method: Method
    ip: str
    ports: tuple[tuple[int, int], ...]
    lease_s: float


@dataclass(frozen=True, slots=True)
class NotMapped:
    """The ports could not be mapped with this protocol.

    Args:
        jitter: random number from 0 to 1 for the wait before the next round.
        refused_for_s: seconds for which the router says that it will refuse again; 0: it does not say.
    """

    method: Method
    reason: str
    jitter: float = 1.0
    refused_for_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Woken:
    """The time ``wake_at_s`` has come."""


Event = Mapped | NotMapped | Woken


@dataclass(frozen=True, slots=True)
class Ask:
    """Request all ports with this protocol, preferring the outside ports that are held now."""

    method: Method


@dataclass(frozen=True, slots=True)
class Advertise:
    """Advertise the outside address; no ports: the mapping has ended."""

    ip: str
    ports: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class LogFailure:
    """Log that no protocol could map the ports, with the reason of each."""

    reasons: tuple[str, ...]


Action = Ask | Advertise | LogFailure


class MappingCore:
    """The mappings of one machine. After each event, ``wake_at_s`` is the time at which Woken is due."""

    def __init__(self, methods: Sequence[Method] = ("NAT-PMP", "UPnP")) -> None:
        self._methods = tuple(methods)
        self._held: Mapped | None = None
        self._until_s = 0.0
        self._reasons: list[str] = []
        self._refused_for_s = float("inf")  # by the protocol that may work again first
        self._left: list[Method] = []
        self._fruitless = 0
        self.wake_at_s = 0.0

    @property
    def held(self) -> Mapped | None:
        """The mapping that is held now; None: none."""
        return self._held

    def handle(self, event: Event, now: float) -> list[Action]:
        """Return the actions that this event causes."""
        match event:
            case Woken():
                return self._begin()
            case Mapped():
                return self._mapped(event, now)
            case NotMapped():
                return self._not_mapped(event, now)

    def _begin(self) -> list[Action]:
        """Start a round over all protocols, with the one that holds the mapping first."""
        self._reasons, self._refused_for_s = [], float("inf")
        first = [self._held.method] if self._held is not None else []
        self._left = [*first, *(method for method in self._methods if method not in first)]
        self.wake_at_s = float("inf")
        return self._next()

    def _next(self) -> list[Action]:
        return [Ask(self._left.pop(0))] if self._left else []

    def _mapped(self, event: Mapped, now: float) -> list[Action]:
        before, self._held, self._fruitless, self._left = self._held, event, 0, []
        self._until_s = now + event.lease_s if event.lease_s else float("inf")
        self.wake_at_s = now + (max(event.lease_s / 2.0, RENEWED_SOONEST_S) if event.lease_s else LOOK_AGAIN_S)
        same = before is not None and (before.ip, before.ports) == (event.ip, event.ports)
        return [] if same else [Advertise(event.ip, event.ports)]

    def _not_mapped(self, event: NotMapped, now: float) -> list[Action]:
        self._reasons.append(f"{event.method}: {event.reason}")
        self._refused_for_s = min(self._refused_for_s, event.refused_for_s)
        if self._left:
            return self._next()
        ceiling_s = min(ROUND_MOST_S, ROUND_FIRST_S * 2.0 ** min(self._fruitless, 16))
        self._fruitless += 1
        wait_s = max(ceiling_s * (0.5 + 0.5 * event.jitter), min(self._refused_for_s, ROUND_MOST_S))
        self.wake_at_s = now + wait_s
        said: list[Action] = [LogFailure(tuple(self._reasons))] if self._fruitless == 1 else []
        if self._held is None:
            return said
        if now < self._until_s < float("inf"):
            self.wake_at_s = min(self.wake_at_s, self._until_s)  # the mapping holds until its lease expires
            return said
        self._held = None
        return [*said, Advertise("", ())]
