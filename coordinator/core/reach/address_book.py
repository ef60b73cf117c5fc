"""The addresses of each member: those that it reported, and what others found when they dialled them. Pure."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from coordinator.core.events.reach_events import ReachabilityTold, SeenAt
from coordinator.core.reach.credible import credible_addresses, scope_in
from coordinator.core.reach.failed_pairs import FailedPairs
from coordinator.core.reach.holes import hole_class, lets_in
from rollcast.wire.address_scope import Scope, plain_host
from rollcast.wire.ids import PeerId

_REMEMBERED_MOST = 4096  # identities that left


@dataclass(slots=True)
class Reach:
    """The addresses at which one identity can be reached.

    Args:
        host: IP address from which its session comes; empty if not known.
        is_origin: whether it is the origin, whose addresses the operator vouches for.
        watches_from, watches_from_ipv6: IP addresses from which it watches how it is seen; empty if it does not.
        joined_address: address that it advertised when it joined.
        advertise: address that it has advertised since, in place of that; empty if none.
        dialable: whether members that dialled its address reached it; None if none has dialled it.
        nat, punch_address, punch_address_ipv6, circuits, relay_address, local_address: see ReachabilityTold.
        punched_from, punched_from_ipv6: its last punch addresses that were not empty; failed punches came from there.
        reported: whether it has reported these in this session.
        nat_reported: whether it has reported its NAT, now or earlier; this may be "unknown".
    """

    host: str = ""
    is_origin: bool = False
    watches_from: str = ""
    watches_from_ipv6: str = ""
    joined_address: str = ""
    advertise: str = ""
    dialable: bool | None = None
    nat: str = "unknown"
    punch_address: str = ""
    punched_from: str = ""
    punch_address_ipv6: str = ""
    punched_from_ipv6: str = ""
    reported: bool = False
    nat_reported: bool = False
    circuits: tuple[str, ...] = ()
    relay_address: str = ""
    local_address: str = ""
    checked: str = ""  # how many peers reached its address, for people; empty if none dialled it
    checked_address: str = ""  # host:port that was dialled last
    credible: str = ""  # of the advertised addresses, separated by spaces
    scope: Scope = Scope.PUBLIC  # how far the narrowest of these leads
    refused: tuple[str, ...] = ()  # advertised addresses that are not passed on
    doubt: str = ""  # why a part of its report is not believed; empty if all is

    @property
    def advertised(self) -> str:
        """The address at which the peer asks to be dialled."""
        return self.advertise or self.joined_address

    @property
    def address(self) -> str:
        """The addresses at which others may be told to dial the peer, separated by spaces; empty if there is none.

        These are the advertised ones that are the peer's own: at a host from which the coordinator sees it, or where a
        dial-back found it. Others may be a third party's.
        """
        return "" if self.dialable is False else self.credible

    def judge(self, addresses: str) -> tuple[str, tuple[str, ...]]:
        """Split addresses that the peer states into those that are credibly its own, and others."""
        hosts = None if self.is_origin else self.seen_at - {""}
        return credible_addresses(addresses, hosts, self.checked_address if self.dialable else "")

    @property
    def seen_at(self) -> set[str]:
        """The IP addresses at which the coordinator sees the peer, and perhaps an empty text."""
        return {self.host, self.watches_from, self.watches_from_ipv6}

    def settle(self) -> None:
        """Decide again which of the advertised addresses are credible."""
        self.credible, self.refused = self.judge(self.advertised)
        self.scope = min(map(scope_in, self.credible.split()), default=Scope.PUBLIC)

    @property
    def hole(self) -> int:
        """The peer's class of coordinator.core.reach.holes."""
        return hole_class(self.nat, self.punch_address, self.punch_address_ipv6)

    @property
    def lets_in(self) -> bool:
        """Whether others can reach the port from which the peer punches holes."""
        return lets_in(self.hole)

    @property
    def for_planning(self) -> tuple[str, int, tuple[str, ...], str]:
        """The facts about the peer on which relay plans depend: address, hole, circuits, local address."""
        return self.address, self.hole, self.circuits, self.local_address


@dataclass(slots=True)
class PunchFigures:
    """Counts of hole punches since this coordinator started."""

    asked: int = 0
    refused: int = 0
    opened: int = 0
    failed: int = 0
    seconds_sum: float = 0.0  # from the order to the link, of those that opened


@dataclass(slots=True)
class DialBackFigures:
    """Checks since this coordinator started, and how they ended."""

    begun: int = 0
    dialable: int = 0
    undialable: int = 0
    unanswered: int = 0


_NOTHING = Reach()


class ReachBook:
    """Addresses of every member, and of those that left, for when they return from the same place."""

    def __init__(self) -> None:
        self._present: dict[PeerId, Reach] = {}
        self._absent: OrderedDict[PeerId, Reach] = OrderedDict()  # the peer that left longest ago first
        self.failures = FailedPairs()
        """Pairs between which no hole could be punched lately."""
        self.given_up = FailedPairs()
        """Pairs of which one end found a chunk of the other wrong, and had no receipt that proves it."""
        self.punches = PunchFigures()
        self.dial_backs = DialBackFigures()
        self.records = 0
        """Members whose signed record is sent to others."""
        self._changed = False

    def of(self, peer_id: PeerId) -> Reach:
        """Return what is known of a peer; empty for an unknown one. Only ``reported`` and ``found`` may change it."""
        return self._present.get(peer_id) or self._absent.get(peer_id, _NOTHING)

    def joined(self, peer_id: PeerId, host: str, address: str, *, is_origin: bool = False) -> Reach:
        """Note that a session was opened from this host.

        What was known is kept for plans if the host is the same, until the member's next report. A restarted process
        punches holes from another port.
        """
        reach = self._absent.pop(peer_id, None) or self._present.get(peer_id)
        if reach is None or reach.host != host or reach.joined_address != address:
            reach = Reach(host, joined_address=address)
        reach.is_origin = is_origin
        reach.settle()
        reach.reported = False
        self._present[peer_id] = reach
        return reach

    def left(self, peer_id: PeerId) -> None:
        """Note that a session ended."""
        reach = self._present.pop(peer_id, None)
        if reach is not None:
            self._absent[peer_id] = reach
        while len(self._absent) > _REMEMBERED_MOST:
            self._absent.popitem(last=False)

    def reported(self, event: ReachabilityTold) -> str:
        """Take over what a member reports. Returns why a part of it is not believed, if that is news, else empty."""
        reach = self._present[event.peer_id]
        before = reach.for_planning
        # Other peers will be ordered to dial these, so they must not be a third party's address.
        punch_address, doubt = _own(event.punch_address, reach)
        punch_address_ipv6, other_doubt = _own(event.punch_address_ipv6, reach)
        doubt = doubt or other_doubt
        if event.advertise != reach.advertise:
            reach.advertise, reach.dialable, reach.checked = event.advertise, None, ""
        if punch_address and punch_address != reach.punched_from:
            reach.punched_from = punch_address
            self._forgive(event.peer_id)
        if punch_address_ipv6 and punch_address_ipv6 != reach.punched_from_ipv6:
            reach.punched_from_ipv6 = punch_address_ipv6
            self._forgive(event.peer_id)
        if event.local_address and event.local_address != reach.local_address:
            self._forgive(event.peer_id)
        reach.nat, reach.punch_address, reach.reported = event.nat or reach.nat, punch_address, True
        reach.punch_address_ipv6 = punch_address_ipv6
        reach.circuits, reach.relay_address = event.circuits, event.relay_address
        reach.local_address = event.local_address
        reach.nat_reported = reach.nat_reported or event.nat != ""
        reach.settle()
        self._changed |= reach.for_planning != before
        news, reach.doubt = doubt if doubt != reach.doubt else "", doubt
        return news

    def seen(self, event: SeenAt) -> None:
        """Note an address from which a member was seen."""
        reach = self._present[event.peer_id]
        before, host = reach.for_planning, plain_host(event.host)
        if ":" in host:
            reach.watches_from_ipv6 = host
        else:
            reach.watches_from = host
        reach.settle()
        self._changed |= reach.for_planning != before

    def found(self, peer_id: PeerId, *, dialable: bool | None, address: str = "", checked: str = "") -> None:
        """Note the outcome of dialling an address that a member advertises; ``checked``: the outcome, for people."""
        reach = self._present[peer_id]
        before, reach.dialable, reach.checked = reach.for_planning, dialable, checked
        reach.checked_address = address
        reach.settle()
        self._changed |= reach.for_planning != before

    def mark_changed(self) -> None:
        """Note that something else changed on which plans depend."""
        self._changed = True

    def take_changed(self) -> bool:
        """Return whether something on which plans depend has changed since the last call."""
        changed, self._changed = self._changed, False
        return changed

    def _forgive(self, peer_id: PeerId) -> None:
        self._changed |= bool(self.failures.of(peer_id))
        self.failures.forgive(peer_id)


def _own(punch_address: str, reach: Reach) -> tuple[str, str]:
    """Return a punch address if the coordinator sees the peer at its host, else empty and why it is not believed."""
    if not punch_address or plain_host(host_part(punch_address)) in reach.seen_at:
        return punch_address, ""
    return "", f"its session comes from {reach.host or 'an unknown host'}, not {punch_address}"


def host_part(address: str) -> str:
    """Return the host of host:port."""
    return address.rpartition(":")[0].strip("[]")
