"""Simulate the shells of nodes: they carry messages and chunks between cores and answer for the store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Protocol

from bench.relays.story import ORIGIN, Conditions, name_of
from peer.links.neighbours import EncodingKey
from peer.relay.core.state import actions, events
from peer.relay.core.state.chunk_set import ChunkSet
from peer.relay.core.state.events import Event, LinkId
from rollcast.sim.kernel.bandwidth import Flow, Frame, Port
from rollcast.sim.kernel.event_queue import Agenda
from rollcast.sim.nodes.relay import as_received
from rollcast.wire.ids import EncodingId, PeerId, StripeId, Version

_MESSAGE_BYTES = 100.0
_ANNOUNCEMENT_BYTES = 800.0
_HASH_BYTES = 32
_INDEX_BYTES = 3


def key_of(version: int) -> EncodingKey:
    return EncodingKey(Version(version), EncodingId(0))


class State(Protocol):
    def validate(self) -> None:
        """Assert what must always hold."""


class Core(Protocol):
    """peer.relay.core.core.RelayCore, or a stub of it."""

    @property
    def state(self) -> State: ...

    def handle(self, event: Event, now: float) -> list[actions.Action]: ...


@dataclass(eq=False)
class Member:
    """A node: its core, and the state that its shell would hold."""

    number: int
    core: Core
    port: Port
    site: int | None = None  # the same for members that share an access link; None: it has one of its own
    lan: Port | None = None  # towards members of its site
    alive: bool = True
    lies: float = 0.0
    announced: set[Version] = field(default_factory=set)
    listed: set[EncodingKey] = field(default_factory=set)
    disk: dict[EncodingKey, dict[int, bool]] = field(default_factory=dict)  # index -> whether the bytes are right
    ends: dict[LinkId, End] = field(default_factory=dict)
    joined_s: float = 0.0
    held_s: dict[EncodingKey, float] = field(default_factory=dict)
    duplicates: int = 0


@dataclass(eq=False)
class End:
    """One end of a link."""

    link: LinkId
    member: Member
    flow: Flow  # towards the other end
    other: End | None = None


class Shells:
    """Nodes with cores, and the links between them.

    Args:
        chunk_sizes: bytes of each chunk, the same in every version.
    """

    def __init__(self, chunk_sizes: Sequence[int], conditions: Conditions, seed: int) -> None:
        self.agenda = Agenda()
        self.random = Random(seed)
        self.members: dict[int, Member] = {}
        self.by_name: dict[PeerId, Member] = {}
        self.liars: set[PeerId] = set()
        self.accused: set[PeerId] = set()
        self.abandoned: dict[int, str] = {}
        self.given: Counter[StripeId] = Counter()
        self.events = 0
        self.into_sites_bytes = 0  # of chunks that came through shared access links
        self.sent_bytes: Counter[tuple[int, int]] = Counter()  # of chunks that arrived, by sender and receiver
        self.conditions = conditions
        self.sizes = chunk_sizes
        self._last_link = 0

    def tell(self, member: Member, event: Event) -> None:
        """Give a core an event and carry out its actions."""
        if member.alive:
            for action in self._handle(member, event):
                self._do(member, action)

    def known(self, member: Member, key: EncodingKey, *, announced: bool) -> events.EncodingKnown:
        """Return the event by which a node's shell makes an announced encoding known."""
        listed = key in member.listed
        return events.EncodingKnown(key, len(self.sizes), self.sizes[0], announced=announced, listed=listed)

    def cut(self, end: End, notice_s: float) -> None:
        """Break a link; each end that is alive is notified."""
        for one in (end, end.other):
            assert one is not None
            one.flow.open = False
            self.agenda.after(notice_s + one.member.port.delay_s, partial(self._lose, one, "the link broke"))

    def _handle(self, member: Member, event: Event) -> list[actions.Action]:
        self.events += 1
        done = member.core.handle(event, self.agenda.now)
        if self.conditions.validate:
            member.core.state.validate()
        return done

    def _lose(self, end: End, reason: str) -> None:
        if end.member.ends.pop(end.link, None) is not None:
            self.tell(end.member, events.LinkDown(end.link, reason, self.random.random()))

    def _do(self, member: Member, action: actions.Action) -> None:
        match action:
            case actions.Dial():
                self._dial(member, action)
            case actions.CloseLink(link=link):
                self._close(member, link)
            case actions.Verify():
                raise AssertionError("only in answer to an arriving chunk")
            case actions.BeginStore(key=key):
                assert key in member.listed, "the store is opened with a list that nobody has sent"
                kept = member.disk.setdefault(key, {})
                found = ChunkSet(len(self.sizes), kept).bitmap
                self._later(member, self.conditions.store_open_s, events.StoreReady(key, found))
            case actions.FinishVersion(key=key):
                assert len(member.disk[key]) == len(self.sizes), f"node {member.number} finishes too early"
                self._later(member, self.conditions.finish_s, events.VersionFinished(key))
            case actions.AnnounceHeld(key=key):
                assert len(member.disk[key]) == len(self.sizes)
                member.held_s.setdefault(key, self.agenda.now)
            case actions.AbandonVersion(reason=reason) | actions.GiveUp(reason=reason):
                self.abandoned[member.number] = reason
            case actions.ListChunks():
                raise AssertionError("no state is made of a delta here")
            case actions.Warn():
                pass  # a line of the log
            case actions.Accuse(peer_id=peer_id):
                assert peer_id in self.liars, f"node {member.number} accuses honest {peer_id}: {action.reason}"
                self.accused.add(peer_id)
                self._close(member, action.link)
            case _:
                self._send(member, action)

    def _later(self, member: Member, seconds: float, event: Event) -> None:
        self.agenda.after(seconds, partial(self.tell, member, event))

    def _dial(self, member: Member, action: actions.Dial) -> None:
        target = self.by_name.get(action.neighbour.peer_id)
        if target is None:
            self._later(member, self.conditions.notice_s, self._failed(action))
            return
        one, other = _ports(member, target)
        round_trip_s = 2.0 * (one.delay_s + other.delay_s)
        seconds = round_trip_s * self.conditions.handshake_round_trips
        self.agenda.after(seconds, partial(self._connect, member, target, action, round_trip_s))

    def _failed(self, action: actions.Dial) -> events.DialFailed:
        return events.DialFailed(action.neighbour.peer_id, "nobody there", self.random.random())

    def _connect(self, member: Member, target: Member, action: actions.Dial, round_trip_s: float) -> None:
        if not target.alive or not member.alive:
            self.tell(member, self._failed(action))
            return
        one, other_port = _ports(member, target)
        mine = End(LinkId(self._last_link + 1), member, Flow(one, other_port))
        theirs = End(LinkId(self._last_link + 2), target, Flow(other_port, one), mine)
        mine.other = theirs
        self._last_link += 2
        for end, other, dialled in ((mine, target, True), (theirs, member, False)):
            end.member.ends[end.link] = end
            role = "peer" if other.number else "origin"
            self.tell(end.member, events.LinkUp(end.link, name_of(other.number), role, dialled, round_trip_s))

    def _close(self, member: Member, link: LinkId) -> None:
        end = member.ends.pop(link, None)
        if end is not None and end.flow.open:
            self.cut(end, 0.0)

    def _send(self, member: Member, action: _Sent) -> None:
        end = member.ends.get(action.link)
        if isinstance(action, actions.SendChunk):
            self._send_chunk(member, end, action)
        elif end is not None and end.flow.open:
            assert end.other is not None
            arrived = partial(self._message_arrived, end.other, action)
            end.flow.sender.send(end.flow, Frame(self._size(action), None, arrived))

    def _send_chunk(self, member: Member, end: End | None, action: actions.SendChunk) -> None:
        assert action.index in member.disk[action.key], f"node {member.number} sends a chunk that it has not"
        sent = partial(self.tell, member, events.ChunkSent(action.link))
        if end is None or not end.flow.open:
            self.agenda.after(0.0, sent)
            return
        if member.number == ORIGIN:
            self.given[action.stripe] += 1
        right = self.random.random() >= member.lies
        assert end.other is not None
        arrived = partial(self._chunk_arrived, end.other, action, right)
        end.flow.sender.send(end.flow, Frame(_MESSAGE_BYTES + self.sizes[action.index], sent, arrived))

    def _size(self, action: actions.Action) -> float:
        match action:
            case actions.SendChunkList():
                return _MESSAGE_BYTES + _HASH_BYTES * len(self.sizes)
            case actions.SendAnnouncement():
                return _ANNOUNCEMENT_BYTES
            case actions.SendHave(bitmap=bitmap):
                return _MESSAGE_BYTES + len(bitmap)
            case (
                actions.SendRequest(indices=indices)
                | actions.SendGot(indices=indices)
                | actions.SendDecline(indices=indices)
            ):
                return _MESSAGE_BYTES + _INDEX_BYTES * len(indices)
            case _:
                return _MESSAGE_BYTES

    def _message_arrived(self, end: End, action: _Sent) -> None:
        member = end.member
        if isinstance(action, actions.SendAnnouncement):
            if action.version not in member.announced:
                member.announced.add(action.version)
                self.tell(member, self.known(member, key_of(action.version), announced=False))
            self.tell(member, events.AnnouncementReceived(key_of(action.version), end.link))
        elif isinstance(action, actions.SendChunkList):
            if action.key.version in member.announced:  # otherwise there is no manifest to check it with
                member.listed.add(action.key)
                self.tell(member, events.ChunkListReceived(end.link, action.key, True))
        else:
            self.tell(member, as_received(action, end.link))

    def _chunk_arrived(self, end: End, action: actions.SendChunk, right: bool) -> None:
        member, key, index = end.member, action.key, action.index
        if not member.alive:
            return
        size = self.sizes[index]
        if member.site is not None and end.flow.sender is member.port:
            self.into_sites_bytes += size
        assert end.other is not None
        self.sent_bytes[end.other.member.number, member.number] += size
        member.duplicates += index in member.disk.get(key, ())
        arrived = events.ChunkArrived(end.link, key, index, action.stripe, size)
        done = member.core.handle(arrived, self.agenda.now)
        self.events += 1
        for one in done:
            if not isinstance(one, actions.Verify):
                self._do(member, one)
            elif right:
                member.disk[key][index] = True
                self.tell(member, events.ChunkVerified(end.link, key, index, action.stripe, size))
            else:
                self.tell(member, events.ChunkCorrupt(end.link, key, index))


def _ports(member: Member, target: Member) -> tuple[Port, Port]:
    """Return the ports of both ends of a link: those of the local network between members of one site."""
    if member.site is not None and member.site == target.site and member.lan and target.lan:
        return member.lan, target.lan
    return member.port, target.port


_Sent = (
    actions.SendWant
    | actions.SendRequest
    | actions.SendHave
    | actions.SendCredit
    | actions.SendGot
    | actions.SendDecline
    | actions.SendCancel
    | actions.SendChunkList
    | actions.SendAnnouncement
    | actions.SendChunk
)
