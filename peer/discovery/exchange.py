"""Exchange signed address records with linked peers and the coordinator, and offer sources to the relay."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Protocol

import structlog

from peer.discovery.address_book import AddressBook
from peer.discovery.book_file import BookFile
from peer.discovery.own_record import OwnRecord
from peer.links.neighbours import Neighbour
from peer.links.transport import Link
from rollcast.runtime.errors import RollcastError
from rollcast.wire.identity.peer_record import bounded, verify_record
from rollcast.wire.ids import PeerId, RunId
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.token_bucket import TokenBucket

log = structlog.get_logger()

SEND_EVERY_S = 300.0
"""Seconds between two messages on each link; a change of this peer's own record is sent at once."""
RECORDS_SENT = 16
"""Records of others in one message."""
_LOOK_S = 2.0
_KEPT_EVERY_S = 60.0
_HOLDERS_MOST = 16
_HOLDERS_EVERY_S = 30.0
# Rate limit of messages that are checked per peer: the check of one costs some milliseconds.
_MESSAGES_AT_ONCE = 4
_MESSAGE_EVERY_S = 60.0
_SENDERS_MOST = 512


class RelayHost(Protocol):
    """The relay, which may dial peers beyond its plan."""

    def know_holders(self, holders: tuple[Neighbour, ...]) -> None:
        """Replace the peers that may hold versions, the likeliest first."""


@dataclass(slots=True)
class _Linked:
    link: Link
    due_s: float
    sent_own: pb.Signed | None = None


@dataclass(slots=True)
class _Senders:
    """The rate limit of each peer's messages."""

    _buckets: dict[PeerId, TokenBucket] = field(default_factory=dict)

    def may(self, peer_id: PeerId, now: float) -> bool:
        bucket = self._buckets.pop(peer_id, None) or TokenBucket(1.0 / _MESSAGE_EVERY_S, _MESSAGES_AT_ONCE)
        self._buckets[peer_id] = bucket
        while len(self._buckets) > _SENDERS_MOST:
            del self._buckets[next(iter(self._buckets))]
        return bucket.take(0, now) <= 0.0 and bucket.take(1, now) <= 0.0


class Exchange:
    """The exchange of records, a connectivity component (peer.connect.connectivity) that also watches the relay's links
    (peer.relay.link.LinkWatcher).

    Create it inside a running event loop.

    Args:
        learn: called with further addresses of a peer, for links that the relay plan asks for.
        addresses: returns the addresses at which this peer can be reached now, the preferred first.
        send: queues a message in the session; it is dropped while no session is open.
    """

    kinds = frozenset({"peer_records"})

    def __init__(
        self,
        own: OwnRecord,
        book: AddressBook,
        file: BookFile,
        relay: RelayHost,
        *,
        run_id: RunId,
        learn: Callable[[PeerId, tuple[str, ...]], None],
        addresses: Callable[[], tuple[str, ...]],
        send: Callable[[pb.PeerMessage], None],
        random: Random,
        unix_time: Callable[[], float] = time.time,
    ) -> None:
        self._own = own
        self._book = book
        self._file = file
        self._relay = relay
        self._run_id = run_id
        self._learn = learn
        self._addresses = addresses
        self._send = send
        self._random = random
        self._unix_time = unix_time
        self._loop = asyncio.get_running_loop()
        self._links: dict[int, _Linked] = {}
        self._senders = _Senders()
        self._changed = False  # since the book was written to disk
        self._kept_at_s = self._offered_at_s = float("-inf")

    # ------------------------------------------------------------ ConnectivityComponent

    async def run(self) -> None:
        """Send records to links, save them to disk and offer sources to the relay, until cancelled."""
        for signed, record in await asyncio.to_thread(self._file.read, self._unix_time()):
            self._book.add(signed, record, source=None)
            self._learn(record.peer_id, self._book.addresses(record.peer_id))
        try:
            while True:
                self.refresh()
                if self._changed and self._loop.time() - self._kept_at_s >= _KEPT_EVERY_S:
                    self._changed, self._kept_at_s = False, self._loop.time()
                    await asyncio.to_thread(self._file.write, self._book.to_keep())
                await asyncio.sleep(_LOOK_S)
        finally:
            if self._changed:
                self._file.write(self._book.to_keep())

    def opened(self, welcome: pb.Welcome) -> None:
        """Send this peer's record to the coordinator, which passes it on to others."""
        self._renew()
        self._send_own()

    def lost(self) -> None:
        """Keep everything that was learnt."""

    def received(self, message: pb.CoordinatorMessage) -> None:
        """Add records from the coordinator.

        Raises:
            MalformedMessage: there are too many records.
        """
        self._add(message.peer_records, source=None)

    # ------------------------------------------------------------ LinkWatcher

    def linked(self, link: Link) -> None:
        """Schedule the first message to the other end soon: not at once, since many links open at the same moment."""
        if link.role in ("peer", "origin"):
            self._links[id(link)] = _Linked(link, self._loop.time() + self._random.uniform(0.0, _LOOK_S))
            self._book.met(link.peer_id, self._unix_time())

    def unlinked(self, link: Link) -> None:
        """Send nothing more on this link."""
        self._links.pop(id(link), None)

    def not_reached(self, peer_id: PeerId) -> None:
        """Dial other peers before this one from now on."""
        self._book.failed(peer_id)

    def records_received(self, link: Link, records: pb.PeerRecords) -> None:
        """Add the records that a member sends about itself and others; a peer that sends too often is ignored."""
        if not self._senders.may(link.peer_id, self._loop.time()):
            return
        try:
            self._add(records, source=link.peer_id)
        except RollcastError as error:
            link.close(error.what, error.code)
            return
        self._book.met(link.peer_id, self._unix_time())

    def found_nearby(self, peer_id: PeerId, role: str, addresses: tuple[str, ...]) -> None:
        """Add a host on the local network that claims to be this peer."""
        self._book.found_nearby(peer_id, role, addresses, self._unix_time())
        self._learn(peer_id, self._book.addresses(peer_id))
        self._offered_at_s = float("-inf")

    def hinted(self, peer_id: PeerId, addresses: tuple[str, ...]) -> None:
        """Add claimed addresses of this peer, which no trusted peer vouches for."""
        self._book.hinted(peer_id, addresses, self._unix_time())

    def keep_out(self, banned: frozenset[PeerId]) -> None:
        """Replace the peers that the operator has banned."""
        self._book.keep_out(banned)
        self._changed, self._offered_at_s = True, float("-inf")

    def known(self, most: int) -> list[tuple[PeerId, str]]:
        """Return at most ``most`` peers that this one could dial, each with its addresses separated by spaces."""
        return [(one.peer_id, one.address) for one in self._book.holders(self._random, most)]

    # ------------------------------------------------------------ inside

    def refresh(self) -> None:
        """Discard expired records, and send and offer what is due."""
        now = self._loop.time()
        if self._book.discard_expired(self._unix_time()):
            self._changed = True
        if self._renew():
            self._send_own()
        for linked in list(self._links.values()):
            if now >= linked.due_s or (linked.sent_own is not None and linked.sent_own is not self._own.signed):
                self._send_records(linked, now)
        if now - self._offered_at_s >= _HOLDERS_EVERY_S:
            self._offered_at_s = now
            self._offer()

    def _renew(self) -> bool:
        return self._own.update(self._addresses(), self._unix_time())

    def _send_own(self) -> None:
        if self._own.signed is not None:
            self._send(pb.PeerMessage(peer_records=pb.PeerRecords(records=[self._own.signed])))

    def _send_records(self, linked: _Linked, now: float) -> None:
        linked.due_s = now + SEND_EVERY_S * self._random.uniform(0.75, 1.25)
        linked.sent_own = self._own.signed
        records = self._book.to_send(self._random, RECORDS_SENT, besides={linked.link.peer_id})
        own = [] if self._own.signed is None else [self._own.signed]
        linked.link.send(pb.LinkMessage(peer_records=pb.PeerRecords(records=[*own, *records])))

    def _add(self, records: pb.PeerRecords, *, source: PeerId | None) -> None:
        """Add the records that verify; one that does not may have expired on the way, or be of a newer release."""
        for signed in bounded(records):
            if self._book.has(signed):
                continue
            try:
                record = verify_record(signed, run_id=self._run_id, now_unix_s=self._unix_time())
            except RollcastError as error:
                log.debug("peer record dropped", told_by=source, code=error.code, reason=error.what)
                continue
            if self._book.add(signed, record, source=source):
                self._changed = True
                self._learn(record.peer_id, self._book.addresses(record.peer_id))
                self._offered_at_s = min(self._offered_at_s, self._loop.time() - _HOLDERS_EVERY_S + _LOOK_S)

    def _offer(self) -> None:
        holders = self._book.holders(self._random, _HOLDERS_MOST)
        self._relay.know_holders(
            tuple(Neighbour(one.peer_id, one.role, one.address, we_dial=True, lan=one.lan) for one in holders)
        )
