"""The hops of a broadcast: chunk links as their ends measure them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from coordinator.events import LinkFacts
from coordinator.figures import percentile_of
from coordinator.membership import Member
from coordinator.state import CoreState
from rollcast.wire.ids import PeerId

HOPS_SHOWN_MAX = 256
"""Hops listed one by one, the slowest first."""


@dataclass(frozen=True, slots=True)
class Hop:
    """Chunks that went one way over one open link. ``bytes_per_s``: while chunks waited for it; None: not measured."""

    from_peer_id: str
    from_name: str
    to_peer_id: str
    to_name: str
    bytes_per_s: float | None
    rtt_s: float | None
    bytes: int
    transport: str
    congestion_control: str


@dataclass(frozen=True, slots=True)
class HopRates:
    """Of the hops that were measured, in bytes a second."""

    measured: int
    slowest: float | None
    p50: float | None
    fastest: float | None


def hops_from(state: CoreState, shown: Iterable[Member]) -> Iterator[Hop]:
    """Of the listed members and of those that the plan lets them receive from: links as their sending ends see them.

    Where the sending end does not report to us (a mirror, the learner) the receiving end's count stands in.
    """
    members = {one.peer_id: one for one in shown}
    for peer_id in list(members):
        for parent in state.relay.parents_of(peer_id):
            found = state.members.get(parent)
            if found is not None:
                members[parent] = found
    for member in members.values():
        for link in () if member.facts is None else member.facts.links:
            if link.peer_id != member.peer_id:
                yield from _of_link(state, member, link)


def _of_link(state: CoreState, member: Member, link: LinkFacts) -> Iterator[Hop]:
    here = (member.peer_id, member.name)
    other = state.members.get(link.peer_id)
    there = (link.peer_id, _unreported_name(link) if other is None else other.name)
    if link.bytes_sent or link.sent_bytes_per_second:
        rate = link.sent_bytes_per_second or None
        yield _hop(link, here, there, rate, link.bytes_sent, link.congestion_control)
    if other is None and link.bytes_received:
        yield _hop(link, there, here, None, link.bytes_received, "")


def _unreported_name(link: LinkFacts) -> str:
    return "mirror" if link.transport == "mirror" else f"…{link.peer_id[-8:]}"


def _hop(
    link: LinkFacts,
    source: tuple[PeerId, str],
    target: tuple[PeerId, str],
    bytes_per_s: float | None,
    size_bytes: int,
    congestion_control: str,
) -> Hop:
    return Hop(*source, *target, bytes_per_s, link.rtt_s or None, size_bytes, link.transport, congestion_control)


def slowest_first(hop: Hop) -> tuple[bool, float, int]:
    """Measured ones from the slowest, then the others from the busiest."""
    return hop.bytes_per_s is None, hop.bytes_per_s or 0.0, -hop.bytes


def hop_rates(hops: Iterable[Hop]) -> HopRates:
    """How fast the measured ones are."""
    rates = [hop.bytes_per_s for hop in hops if hop.bytes_per_s is not None]
    return HopRates(len(rates), min(rates, default=None), percentile_of(rates, 50), max(rates, default=None))
