"""Define the events about how members reach each other, as plain data like coordinator/core/events/events.py."""

from __future__ import annotations

from dataclasses import dataclass

from rollcast.wire.ids import PeerId


@dataclass(frozen=True, slots=True)
class ReachabilityTold:
    """A peer reported how it can be reached; this replaces its earlier report."""

    peer_id: PeerId
    nat: str  # one of coordinator.core.reach.holes.NAT_KINDS; empty if it is not known yet
    punch_address: str = ""  # ip:port that we see of the port from which it punches; empty if none
    circuits: tuple[str, ...] = ()  # its addresses through relays at which it has a reservation
    relay_address: str = ""  # where its libp2p host accepts reservations of others; empty if it accepts none
    advertise: str = ""  # replaces the address with which it joined; empty if that remains valid
    local_address: str = ""  # private ip:port of its links, for members of the same site; empty if none
    punch_address_ipv6: str = ""  # as punch_address, which is IPv4; empty if none


@dataclass(frozen=True, slots=True)
class SeenAt:
    """A member watches from this host how it is seen; its session may come from another, as with IPv4 and IPv6."""

    peer_id: PeerId
    host: str  # IP address


@dataclass(frozen=True, slots=True)
class PunchRequested:
    """A peer asked that it and another peer be ordered to dial each other now."""

    peer_id: PeerId
    to_peer: PeerId


@dataclass(frozen=True, slots=True)
class PunchEnded:
    """One end of a hole punch reported its outcome."""

    peer_id: PeerId
    punch_id: int
    opened: bool
    seconds: float  # from the order to the link, or to giving up


@dataclass(frozen=True, slots=True)
class DialBackEnded:
    """Dialing a peer's address ended. ``peer_id`` is the dialing peer; empty if the coordinator did (TryAddress)."""

    peer_id: PeerId
    check_id: int
    reached: bool
    problem: str = ""
    tried: bool = True  # False if ``problem`` prevented the attempt
    address: str = ""  # ip:port to which a name resolved


@dataclass(frozen=True, slots=True)
class RecordGiven:
    """A peer sent its signed record, to be passed on to others; the event's maker has checked form and signature."""

    peer_id: PeerId
    signed: bytes  # a serialized Signed


ReachEvent = ReachabilityTold | SeenAt | PunchRequested | PunchEnded | DialBackEnded | RecordGiven
