"""What the coordinator's core is told about ways between members. Plain data, as in
coordinator/core/events/events.py."""

from __future__ import annotations

from dataclasses import dataclass

from rollcast.wire.ids import PeerId


@dataclass(frozen=True, slots=True)
class ReachabilityTold:
    """What a peer found out about its own ways to be reached. Replaces what it told before."""

    peer_id: PeerId
    nat: str  # one of coordinator.core.reach.holes.NAT_KINDS; empty: it has not looked yet
    punch_address: str = ""  # ip:port as we see the port that it punches from; empty: none
    circuits: tuple[str, ...] = ()  # its addresses through relays that hold a reservation of its
    relay_address: str = ""  # where its libp2p host takes reservations of others; empty: it takes none
    advertise: str = ""  # in place of what it said when it joined; empty: that holds
    local_address: str = ""  # private ip:port of its links, for members of the same site; empty: none


@dataclass(frozen=True, slots=True)
class SeenAt:
    """A member watches from here how it is seen. Its session may come from another address: there are IPv4 and IPv6."""

    peer_id: PeerId
    host: str  # IP address


@dataclass(frozen=True, slots=True)
class PunchRequested:
    """A peer wants to be told, with that other, to dial each other now."""

    peer_id: PeerId
    to_peer: PeerId


@dataclass(frozen=True, slots=True)
class PunchEnded:
    """What came of a punch at one of its ends."""

    peer_id: PeerId
    punch_id: int
    opened: bool
    seconds: float  # from the order to the link, or to giving up


@dataclass(frozen=True, slots=True)
class DialBackEnded:
    """What came of dialling a peer's address. ``peer_id``: who dialled; empty: this coordinator did (TryAddress)."""

    peer_id: PeerId
    check_id: int
    reached: bool
    problem: str = ""
    tried: bool = True  # False: it could not be, for this problem
    address: str = ""  # ip:port that a name was found to lead to


@dataclass(frozen=True, slots=True)
class RecordGiven:
    """A peer's own signed record, to be handed on to others. Form and signature are checked by who makes the event."""

    peer_id: PeerId
    signed: bytes  # a serialized Signed


ReachEvent = ReachabilityTold | SeenAt | PunchRequested | PunchEnded | DialBackEnded | RecordGiven
