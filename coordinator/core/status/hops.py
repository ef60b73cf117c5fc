"""List the hops of a broadcast: chunk links as their ends measure them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from heapq import nsmallest

from coordinator.core.decisions.state import CoreState
from coordinator.core.events.events import LinkFacts
from coordinator.core.members.membership import Member
from rollcast.runtime.windows import percentile_of
from rollcast.wire.reach_words import path_of

HOPS_SHOWN_MAX = 256
"""Most hops that are listed one by one, the slowest first."""


@dataclass(frozen=True, slots=True)
class Hop:
    """One direction of one open chunk link, with the chunks that went over it.

    Args:
        bytes_per_s: rate while chunks waited for the link; None if not measured.
        bytes: chunk bytes that went this way since the link opened.
        transport: path of the link, in the words of rollcast.wire.reach_words.
        lost_share: share of the TCP segments that were lost lately; None if the sending end does not report.
        window_limited_share: share of the sending time in which the receiver's TCP window was full; likewise.
    """

    from_peer_id: str
    from_name: str
    to_peer_id: str
    to_name: str
    bytes_per_s: float | None
    rtt_s: float | None
    bytes: int
    transport: str
    congestion_control: str
    lost_share: float | None = None
    window_limited_share: float | None = None


@dataclass(frozen=True, slots=True)
class HopRates:
    """Rates of the hops that were measured, in bytes a second, and how many these are; None if there are none.

    Args:
        congestion_control: the measured hops by the TCP congestion control of their sending ends.
    """

    measured: int
    slowest: float | None
    p50: float | None
    fastest: float | None
    congestion_control: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Hops:
    """The hops of a broadcast: listed are the measured ones, slowest first, then the others from the busiest."""

    rates: HopRates
    listed: tuple[Hop, ...]
    left_out: int


_Found = tuple[bool, float, int, int, Member, LinkFacts, bool]
"""A hop's sort key (not measured, rate, negated bytes, number), the member that reports it, and whether as sender."""


def find_hops(state: CoreState, shown: Iterable[Member]) -> Hops:
    """Return the hops of the shown members and of their parents in the plan, as their sending ends report them.

    Where the sending end does not report to us (a mirror, the learner), the receiving end's count is used.
    """
    members = {one.peer_id: one for one in shown}
    for peer_id in list(members):
        for parent in state.relay.parents_of(peer_id):
            if parent not in members and (found := state.members.get(parent)) is not None:
                members[parent] = found
    hops = list(_found(state, members.values()))
    listed = nsmallest(HOPS_SHOWN_MAX, hops)
    measured = [hop for hop in hops if not hop[0]]
    controls = Counter(hop[5].congestion_control for hop in measured if hop[5].congestion_control)
    rates = _rates([hop[1] for hop in measured], dict(sorted(controls.items())))
    return Hops(rates, tuple(_hop(state, *hop[4:]) for hop in listed), len(hops) - len(listed))


def _found(state: CoreState, members: Iterable[Member]) -> Iterator[_Found]:
    """Yield each hop's sort key and source only: in a large fleet most hops are not listed."""
    is_here, number = state.members.get, 0
    for member in members:
        own_id = member.peer_id
        for link in () if member.facts is None else member.facts.links:
            if link.peer_id == own_id:
                continue
            rate, sent = link.sent_bytes_per_second, link.bytes_sent
            if sent or rate:
                number += 1
                yield not rate, rate, -sent, number, member, link, True
            if link.bytes_received and is_here(link.peer_id) is None:
                number += 1
                yield True, 0.0, -link.bytes_received, number, member, link, False


def _hop(state: CoreState, member: Member, link: LinkFacts, is_sender: bool) -> Hop:
    other = state.members.get(link.peer_id)
    here = (member.peer_id, member.name)
    there = (link.peer_id, _unreported_name(state, link) if other is None else other.name)
    path = path_of(link.transport, lan=link.lan)
    if not is_sender:
        return Hop(*there, *here, None, link.rtt_s or None, link.bytes_received, path, "")
    rate, control = link.sent_bytes_per_second or None, link.congestion_control
    rtt_s, lost, full = link.rtt_s or None, link.lost_share, link.window_limited_share
    return Hop(*here, *there, rate, rtt_s, link.bytes_sent, path, control, lost, full)


def _unreported_name(state: CoreState, link: LinkFacts) -> str:
    """Return the name of a link's other end that is no member: a mirror, the learner, or a peer that has left."""
    if link.transport == "mirror":
        return "mirror"
    if link.peer_id == state.settings.learner_peer_id:
        return "learner"
    return state.members.known_name(link.peer_id) or f"…{link.peer_id[-8:]}"


def _rates(rates: list[float], controls: dict[str, int]) -> HopRates:
    slowest, fastest = min(rates, default=None), max(rates, default=None)
    return HopRates(len(rates), slowest, percentile_of(rates, 50), fastest, controls)
