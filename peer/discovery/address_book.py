"""Keep the addresses of other peers, bounded in number and ranked by which peer vouches for them. Decisions only.

Records from the coordinator, and from a peer about itself, rank above those that third peers send: a member that
invents peers fills its own share of the book and no more, and its records are not passed on before a link was opened
with the peer that they name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, MutableSequence, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from peer.links.paths import is_peer_address
from rollcast.wire.identity.peer_record import PeerRecord
from rollcast.wire.ids import PeerId
from rollcast.wire.proto import rollcast_pb2 as pb

ENTRIES_MOST = 256
HEARSAY_MOST = 24
"""Records about other peers with which one peer may fill the book."""
NEARBY_MOST = 64
NEARBY_S = 600.0
"""Seconds after which an address on the local network expires, unless it is found again."""


class Chance(Protocol):
    """The methods of random.Random that the book needs; its callers pass the generator."""

    def sample(self, population: Sequence[_Entry], k: int) -> list[_Entry]: ...

    def shuffle(self, x: MutableSequence[_Entry]) -> None: ...


@dataclass(frozen=True, slots=True)
class Holder:
    """A peer that can be dialled.

    Args:
        role: "peer" or "origin".
        address: addresses separated by spaces, the preferred first, as in a relay plan.
        lan: whether it was found on the local network.
    """

    peer_id: PeerId
    role: str
    address: str
    lan: bool


@dataclass(slots=True)
class _Entry:
    record: PeerRecord
    signed: pb.Signed
    source: PeerId | None  # None: the coordinator, or the peer itself
    met_unix_s: float = 0.0
    failures: int = 0  # dials that failed since the last link with it, or since it has these addresses

    @property
    def trusted(self) -> bool:
        return self.source is None or self.met_unix_s > 0.0

    @property
    def addresses(self) -> tuple[str, ...]:
        """Return the addresses that can be a peer's; others may read as a mirror's, such as a path on this disk."""
        return tuple(filter(is_peer_address, self.record.addresses))


@dataclass(frozen=True, slots=True)
class _Nearby:
    role: str
    addresses: tuple[str, ...]
    until_unix_s: float


@dataclass(slots=True)
class AddressBook:
    """Records of others by peer id. All times are seconds since 1970."""

    own_peer_id: PeerId
    _entries: dict[PeerId, _Entry] = field(default_factory=dict)
    _nearby: dict[PeerId, _Nearby] = field(default_factory=dict)
    _hinted: dict[PeerId, _Nearby] = field(default_factory=dict)
    _banned: frozenset[PeerId] = frozenset()

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, peer_id: PeerId) -> bool:
        return peer_id in self._entries

    # ------------------------------------------------------------ what is learnt

    def add(self, signed: pb.Signed, record: PeerRecord, *, source: PeerId | None) -> bool:
        """Add a verified record, or replace an older one of the same peer.

        Args:
            source: the peer that sent it; None: the coordinator. A peer's record of itself is trusted like
                one that the coordinator sends.

        Returns:
            whether anything changed.
        """
        if self._is_of_no_use(record.peer_id):
            return False
        third = None if source == record.peer_id else source
        known = self._entries.get(record.peer_id)
        if known is None:
            return self._insert(_Entry(record, signed, third))
        if third is None:
            known.source = None
        if record.sequence <= known.record.sequence:
            return False
        if record.addresses != known.record.addresses:
            known.failures = 0
        known.record, known.signed = record, signed
        return True

    def found_nearby(self, peer_id: PeerId, role: str, addresses: tuple[str, ...], now_unix_s: float) -> None:
        """Add addresses that a host on the local network claims: tried first, trusted only after the handshake."""
        if self._is_of_no_use(peer_id) or not addresses:
            return
        self._nearby.pop(peer_id, None)
        self._nearby[peer_id] = _Nearby(role, addresses, now_unix_s + NEARBY_S)
        while len(self._nearby) > NEARBY_MOST:
            del self._nearby[next(iter(self._nearby))]  # the oldest

    def hinted(self, peer_id: PeerId, addresses: tuple[str, ...], now_unix_s: float) -> None:
        """Add addresses that no trusted peer vouches for; they are dialled if nothing better is known."""
        if self._is_of_no_use(peer_id) or not addresses:
            return
        self._hinted.pop(peer_id, None)
        self._hinted[peer_id] = _Nearby("peer", addresses, now_unix_s + NEARBY_S)
        while len(self._hinted) > NEARBY_MOST:
            del self._hinted[next(iter(self._hinted))]  # the oldest

    def keep_out(self, banned: frozenset[PeerId]) -> None:
        """Replace the peers that the operator has banned: they are neither dialled nor named to others."""
        self._banned = banned
        for known in (self._entries, self._nearby, self._hinted):
            for peer_id in banned & known.keys():
                del known[peer_id]

    def has(self, signed: pb.Signed) -> bool:
        """Return whether exactly this record is in the book, verified and from a trusted peer."""
        same = (entry for entry in self._entries.values() if entry.signed.signature == signed.signature)
        return any(entry.signed == signed and entry.trusted for entry in same)

    def met(self, peer_id: PeerId, now_unix_s: float) -> None:
        """Note that a link with this peer is open."""
        if (entry := self._entries.get(peer_id)) is not None:
            entry.met_unix_s, entry.failures = now_unix_s, 0

    def failed(self, peer_id: PeerId) -> None:
        """Note that no address of this peer answered."""
        if (entry := self._entries.get(peer_id)) is not None:
            entry.failures += 1

    def addresses(self, peer_id: PeerId) -> tuple[str, ...]:
        """Return all addresses at which the peer may answer, those on the local network first."""
        nearby, entry = self._nearby.get(peer_id), self._entries.get(peer_id)
        return (*(() if nearby is None else nearby.addresses), *(() if entry is None else entry.addresses))

    def discard_expired(self, now_unix_s: float) -> bool:
        """Discard what has expired; return whether a record or a nearby peer was discarded."""
        old = [peer_id for peer_id, one in self._entries.items() if one.record.expires_unix_s <= now_unix_s]
        gone = [peer_id for peer_id, one in self._nearby.items() if one.until_unix_s <= now_unix_s]
        for peer_id in old:
            del self._entries[peer_id]
        for peer_id in gone:
            del self._nearby[peer_id]
        self._hinted = {peer_id: one for peer_id, one in self._hinted.items() if one.until_unix_s > now_unix_s}
        return bool(old or gone)

    # ------------------------------------------------------------ what is sent and used

    def to_send(self, random: Chance, most: int, *, besides: Container[PeerId] = ()) -> list[pb.Signed]:
        """Return records for another peer, sampled from those vouched for by the coordinator, their peer or a link."""
        told = [
            entry
            for peer_id, entry in self._entries.items()
            if entry.trusted and entry.addresses and peer_id not in besides
        ]
        return [entry.signed for entry in random.sample(told, min(most, len(told)))]

    def to_keep(self) -> pb.PeerRecords:
        """Return the records to load again after a restart, those of the peers met last first."""
        kept = sorted((one for one in self._entries.values() if one.trusted), key=lambda one: -one.met_unix_s)
        return pb.PeerRecords(records=[entry.signed for entry in kept])

    def holders(self, random: Chance, most: int, *, besides: Container[PeerId] = ()) -> list[Holder]:
        """Return the peers to dial, the likeliest first.

        Peers on the local network come first; then peers with fewer failures, trusted ones and met ones; then hints.
        """
        nearby = [
            Holder(peer_id, one.role, " ".join(self.addresses(peer_id)), True)
            for peer_id, one in self._nearby.items()
            if peer_id not in besides
        ]
        others = [
            entry
            for peer_id, entry in self._entries.items()
            if entry.addresses and peer_id not in besides and peer_id not in self._nearby
        ]
        random.shuffle(others)
        others.sort(key=lambda entry: (entry.failures, not entry.trusted, entry.met_unix_s == 0.0))
        far = (Holder(one.record.peer_id, one.record.role, " ".join(one.addresses), False) for one in others)
        hints = (
            Holder(peer_id, one.role, " ".join(one.addresses), False)
            for peer_id, one in self._hinted.items()
            if peer_id not in besides and peer_id not in self._nearby and peer_id not in self._entries
        )
        return [*nearby, *far, *hints][:most]

    # ------------------------------------------------------------ bounds

    def _insert(self, entry: _Entry) -> bool:
        """Add a new entry, and return whether it stays: if there is no room, the worst is dropped, perhaps itself."""
        if entry.source is not None and self._from_source(entry.source) >= HEARSAY_MOST:
            return False
        self._entries[entry.record.peer_id] = entry
        if len(self._entries) > ENTRIES_MOST:
            worst = min(self._entries.values(), key=_rank)
            del self._entries[worst.record.peer_id]
        return entry.record.peer_id in self._entries

    def _is_of_no_use(self, peer_id: PeerId) -> bool:
        return peer_id == self.own_peer_id or peer_id in self._banned

    def _from_source(self, peer_id: PeerId) -> int:
        return sum(entry.source == peer_id and not entry.met_unix_s for entry in self._entries.values())

    def validate(self) -> None:
        """Assert what must always hold; called in tests."""
        assert len(self._entries) <= ENTRIES_MOST
        assert len(self._nearby) <= NEARBY_MOST
        assert self.own_peer_id not in self._entries
        assert self.own_peer_id not in self._nearby
        sources = Counter(entry.source for entry in self._entries.values() if not entry.trusted)
        assert all(count <= HEARSAY_MOST for count in sources.values())


def _rank(entry: _Entry) -> tuple[bool, bool, int, float, int]:
    """Return the sort key of an entry: the smallest is dropped first."""
    has_address = bool(entry.addresses)
    return entry.trusted, has_address, -entry.failures, entry.met_unix_s, entry.record.expires_unix_s
