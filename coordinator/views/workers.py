"""Build the table of all members: columns, and a row each. Rows are compact, as pages receive them every second."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from coordinator.core.activation.pool import price
from coordinator.core.decisions.state import CoreState
from coordinator.core.events.actions import Assignment
from coordinator.core.events.events import LinkFacts
from coordinator.core.events.prices import Price
from coordinator.core.members.membership import Departed, Member, Reputation
from coordinator.core.status.peers import accept_share, took_s, version_lag
from coordinator.core.status.turns import Turns, slices
from coordinator.core.traversal.status import reachability
from rollcast.wire.ids import PeerId
from rollcast.wire.reach_words import PATHS, path_of

ROWS_MAX = 20_000

COLUMNS = (
    "peer_id",
    "name",
    "public_name",
    "role",
    "state",
    "reason",
    "region",
    "hardware",
    "software",
    "transport",
    "reachability",
    "nat",
    "dial_check",
    "p2p",
    "active_version",
    "version_lag",
    "tokens_per_s",
    "concurrent_rollouts",
    "open_slots",
    "accepted",
    "dropped",
    "accept_share",
    "last_seen_s",
    "t_bcast_s",
    "upload_bytes_per_s",
    "download_bytes_per_s",
    "chunk_bytes_from_origin",
    "chunk_bytes_from_peers",
    "chunk_bytes_sent",
    "usd_per_hour",
    "pin",
    "standby",
    "drained",
    "banned",
    "quarantined",
    "joined_s_ago",
    "parents",
)


@dataclass(frozen=True, slots=True)
class WorkersView:
    """Rows of ``columns``: connected members in the order they joined, those that left last, other banned ones.

    Durations are in seconds, rates in bytes or tokens a second, None where nothing was measured. ``parents`` are names.
    ``transport`` and ``reachability`` are in the words of rollcast.wire.reach_words; ``nat`` is the NAT in front of the
    member; ``dial_check`` is the result of dialing its address; ``p2p`` is "running", or why its libp2p does not run.
    ``left_out`` is the number of members beyond ROWS_MAX.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    left_out: int
    at_unix_s: float


class KnownMembers:
    """Caches what seldom changes of a member: its price, its parents' names and its links' transports."""

    def __init__(self) -> None:
        self._prices: tuple[Price, ...] = ()
        self._usd: dict[int, float] = {}  # by Member.order
        self._parents: dict[PeerId, tuple[Assignment, tuple[str, ...]]] = {}
        self._transports: dict[PeerId, tuple[tuple[LinkFacts, ...], str]] = {}

    def usd_per_hour(self, state: CoreState, member: Member) -> float:
        """Return the member's price in US dollars per hour; 0 for a donated one."""
        if state.offers.backed:
            backed = state.offers.price_of(member.peer_id)
            if backed is not None:
                return backed.usd_per_hour
        if self._prices is not state.prices:
            self._prices, self._usd = state.prices, {}
        found = self._usd.get(member.order)
        if found is None:
            _make_room(self._usd)
            found = self._usd[member.order] = price(state.prices, member).usd_per_hour
        return found

    def parents(self, state: CoreState, peer_id: PeerId) -> tuple[str, ...]:
        """Return the names of the peers that send this member chunks, as they were when its plan was made."""
        part = state.relay.assignment_of(peer_id)
        if part is None:
            return ()
        known = self._parents.get(peer_id)
        if known is None or known[0] is not part:
            _make_room(self._parents)
            members = ((one, state.members.get(one)) for one in state.relay.parents_of(peer_id))
            names = tuple([one if member is None else member.name for one, member in members])
            known = self._parents[peer_id] = part, names
        return known[1]

    def transport(self, member: Member) -> str:
        """Return the transports of a member's links (rollcast.wire.reach_words), joined by "+"; empty without one."""
        links = () if member.facts is None else member.facts.links
        if not links:
            return ""
        known = self._transports.get(member.peer_id)
        if known is None or known[0] is not links:
            _make_room(self._transports)
            kinds = {(link.transport, link.lan) for link in links}
            paths = sorted({path_of(transport, lan=lan) for transport, lan in kinds}, key=_rank)
            known = self._transports[member.peer_id] = links, "+".join(paths)
        return known[1]


def _rank(path: str) -> tuple[int, str]:
    return PATHS.index(path) if path in PATHS else len(PATHS), path


def _make_room(known: dict[Any, Any]) -> None:
    if len(known) > ROWS_MAX:
        known.clear()


def build_workers(state: CoreState, known: KnownMembers, *, now: float, unix_s: float) -> Turns[WorkersView]:
    """Return the table of the core's state, in turns."""
    members, rows = list(state.members), list[tuple[Any, ...]]()
    for some in slices(members[:ROWS_MAX]):
        rows += [_row(state, known, member, now, member.state, member.reason) for member in some]
        yield
    rows += _rows_of_others(state, known, now)
    return WorkersView(COLUMNS, tuple(rows), max(0, len(members) - ROWS_MAX), round(unix_s, 3))


def _rows_of_others(state: CoreState, known: KnownMembers, now: float) -> Iterator[tuple[Any, ...]]:
    gone = state.members.departed()
    for departed in gone:
        yield _departed_row(state, known, departed, now)
    listed = {departed.member.peer_id for departed in gone}
    for peer_id, reputation in state.members.banned().items():
        if peer_id not in listed and state.members.get(peer_id) is None:
            yield _banned_row(peer_id, reputation)


def _departed_row(state: CoreState, known: KnownMembers, departed: Departed, now: float) -> tuple[Any, ...]:
    how = "banned" if departed.member.reputation.banned else departed.how
    row = list(_row(state, known, departed.member, now, how, departed.member.reputation.banned or departed.reason))
    row[_TOKENS_PER_S] = 0.0
    return tuple(row)


def _banned_row(peer_id: PeerId, reputation: Reputation) -> tuple[Any, ...]:
    """Return the row of a banned peer that is no longer listed: its name and why it may not rejoin."""
    known: dict[str, Any] = {
        "peer_id": peer_id,
        "name": reputation.name,
        "role": "peer",
        "state": "banned",
        "reason": reputation.banned,
    }
    known |= {"accepted": reputation.accepted, "dropped": reputation.dropped, "pin": reputation.pin, "banned": True}
    return tuple([known.get(name, _ABSENT.get(name)) for name in COLUMNS])


_ABSENT: dict[str, Any] = {
    **dict.fromkeys(("public_name", "region", "hardware", "software", "transport"), ""),
    **dict.fromkeys(("reachability", "nat", "dial_check", "p2p"), ""),
    **dict.fromkeys(("standby", "drained", "quarantined"), False),
    **dict.fromkeys(("tokens_per_s", "concurrent_rollouts", "open_slots", "usd_per_hour"), 0),
    **dict.fromkeys(("chunk_bytes_from_origin", "chunk_bytes_from_peers", "chunk_bytes_sent"), 0),
    "parents": (),
}


def _row(
    state: CoreState, known: KnownMembers, member: Member, now: float, display: str, reason: str
) -> tuple[Any, ...]:
    """Return one row with the columns of COLUMNS."""
    facts, reputation, peer_id = member.facts, member.reputation, member.peer_id
    accepted, copied_s = accept_share(member), took_s(state, member)
    measured: tuple[Any, ...] = (0.0, None, None, 0, 0, 0)
    if facts is not None:
        measured = (
            round(facts.tokens_per_second, 1),
            round(facts.uplink_bytes_per_second) or None,
            round(facts.downlink_bytes_per_second) or None,
            facts.chunk_bytes_from_origin,
            facts.chunk_bytes_from_peers,
            facts.chunk_bytes_sent,
        )
    return (
        peer_id,
        member.name,
        member.public_name,
        member.role,
        display,
        reason,
        member.region,
        member.hardware,
        member.software,
        known.transport(member),
        *_reach(state, member),
        member.version,
        version_lag(member, state.newest_version),
        measured[0],
        None if _is_away(member) else member.concurrent_rollouts,
        state.book.held_count(peer_id),
        reputation.accepted,
        reputation.dropped,
        None if accepted is None else round(accepted, 4),
        round(now - member.last_seen, 1),
        None if copied_s is None else round(copied_s, 3),
        *measured[1:],
        known.usd_per_hour(state, member),
        reputation.pin,
        bool(reputation.standby),
        bool(reputation.drained),
        bool(reputation.banned),
        bool(reputation.quarantined),
        round(now - member.joined_at),
        known.parents(state, peer_id),
    )


def _is_away(member: Member) -> bool:
    """Return whether a member is a cell whose coordinator does not answer its uplink, so that its size is not known."""
    return member.is_cell and member.facts is not None and member.facts.cell_workers is None


def _reach(state: CoreState, member: Member) -> tuple[str, str, str, str]:
    """Return how others reach a member, its NAT, the result of dialing its address, and its libp2p state."""
    found, p2p = state.reach.of(member.peer_id), "" if member.facts is None else member.facts.p2p
    return reachability(state, member.peer_id), found.nat, found.checked, p2p


_TOKENS_PER_S = COLUMNS.index("tokens_per_s")
