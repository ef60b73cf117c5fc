"""Test a link's sender and its messages."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any, cast

from peer.links.gate import NetworkGate
from peer.links.neighbours import EncodingKey
from peer.links.transport import LinkMeasurement, LinkReceiver
from peer.relay.core.state.actions import SendAnnouncement, SendChunk, SendChunkList, SendCredit, SendWant
from peer.relay.core.state.events import ChunkSent, LinkId
from peer.relay.link import RelayLink
from peer.relay.sender import RelaySending
from rollcast.wire.ids import ChunkIndex, EncodingId, PeerId, StripeId, Version
from rollcast.wire.limits import CREDIT_CHUNKS_MAX
from rollcast.wire.links.frames import LinkFrame, LinkMessageFrame
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.versions.chunks import BytesLike

WANT = LinkMessageFrame(pb.LinkMessage(want=pb.Want(version=1)))

CANCEL = LinkMessageFrame(pb.LinkMessage(cancel=pb.Cancel(version=1)))


class Ends:
    """A link that only records the calls to it, and an owner that records the link's events."""

    peer_id, role, dialled, transport = PeerId("a"), "peer", True, "direct"
    bytes_sent = bytes_received = 0

    def __init__(self) -> None:
        self.noted: list[object] = []
        self.answer_with_a_chunk = False
        self.close_at: LinkFrame | None = None

    def start(self, receiver: LinkReceiver) -> None: ...

    def send(self, message: pb.LinkMessage) -> None: ...

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def measure(self) -> LinkMeasurement:
        return LinkMeasurement(0.0, 0, "")

    def send_chunk(self, version: int, encoding_id: int, index: int, payload: BytesLike, stripe: StripeId) -> None:
        self.noted.append(("chunk", version, encoding_id, index, bytes(payload), stripe))

    def close(self, reason: str, code: str = "") -> None:
        self.noted.append(("close", reason, code))

    def received(self, link: RelayLink, frame: LinkFrame) -> None:
        self.noted.append(frame)
        if frame is self.close_at:
            link.close("enough", "E1")

    def sent(self, link: RelayLink, size_bytes: int) -> None:
        self.noted.append(("sent", size_bytes))
        if self.answer_with_a_chunk:
            self.answer_with_a_chunk = False
            link.send_chunk((1, 0), 6, b"cd", StripeId(2))

    def ended(self, link: RelayLink, reason: str) -> None:
        self.noted.append(("ended", link.link_id, reason))


def test_announcements_of_a_link_are_limited() -> None:
    link = opened()[1]
    allowed = [link.may_announce(100.0) for _ in range(200)]
    assert 60 < sum(allowed) < 80
    assert not link.may_announce(101.0)
    assert link.may_announce(200.0)


def opened() -> tuple[Ends, RelayLink]:
    ends = Ends()
    return ends, RelayLink(LinkId(3), ends, ends)


def test_a_chunk_has_left_when_the_link_is_drained() -> None:
    ends, link = opened()
    link.drained()
    assert ends.noted == [], "nothing was sent"
    link.send_chunk((1, 0), 5, b"abc", StripeId(2))
    link.drained()
    link.drained()
    assert ends.noted == [("chunk", 1, 0, 5, b"abc", 2), ("sent", 3)]


def test_the_next_chunk_may_be_sent_at_once() -> None:
    ends, link = opened()
    ends.answer_with_a_chunk = True
    link.send_chunk((1, 0), 5, b"abc", StripeId(2))
    link.drained()
    link.drained()
    assert ends.noted[1:] == [("sent", 3), ("chunk", 1, 0, 6, b"cd", 2), ("sent", 2)]


def test_no_event_follows_a_close() -> None:
    ends, link = opened()
    ends.close_at = WANT
    link.frames([CANCEL, WANT, CANCEL])
    link.frames([CANCEL])
    assert ends.noted == [CANCEL, WANT, ("close", "enough", "E1")]
    link.closed("the link was closed", "")
    link.closed("nonsense", "E2")
    assert ends.noted[3:] == [("ended", 3, "the link was closed"), ("ended", 3, "E2 nonsense")]


KEY = EncodingKey(Version(1), EncodingId(0))

LINK, GONE = LinkId(1), LinkId(2)


class World:
    def __init__(self, in_memory: bytes | None, on_disk: bytes | None = None) -> None:
        self.posted: list[str | None] = []
        self.credited: list[tuple[int, ...]] = []
        self.chunks: list[bytes] = []
        self.events: list[ChunkSent] = []
        self.waiting: list[Coroutine[None, None, None]] = []
        self.soon: list[Callable[[], None]] = []

        async def read(*_: object) -> bytes | None:
            return on_disk

        def post(message: pb.LinkMessage) -> None:
            self.posted.append(message.WhichOneof("body"))
            self.credited += [tuple(message.credit.indices)] if message.HasField("credit") else []

        link = SimpleNamespace(
            link=SimpleNamespace(send=post),
            send_chunk=lambda _key, _index, payload, _stripe: self.chunks.append(payload),
        )
        versions = SimpleNamespace(
            chunk=lambda _key, _index: in_memory,
            announcement=lambda version: pb.VersionAnnouncement() if version == 1 else None,
            chunk_list=lambda _key: b"h" * 32,
            worker=SimpleNamespace(ahead=SimpleNamespace(read=read)),
        )
        self.sending = RelaySending(
            cast(Any, {LINK: link}),
            cast(Any, versions),
            sent=self.events.append,
            spawn=self.waiting.append,
            soon=self.soon.append,
        )

    async def chunk(self, link: LinkId = LINK) -> None:
        self.sending.send(SendChunk(link, KEY, ChunkIndex(0), StripeId(1)))
        for work in self.waiting:
            await work


async def test_chunks_come_from_memory_or_from_the_disk() -> None:
    for world in (World(b"x"), World(None, b"x")):
        await world.chunk()
        assert (world.chunks, world.events) == ([b"x"], [])


async def test_a_chunk_that_cannot_be_sent_counts_as_sent() -> None:
    lost, stopped = World(None, None), World(b"x")
    stopped.sending.gate = NetworkGate(send=False)
    for world in (lost, stopped):
        await world.chunk()
        assert (world.chunks, world.events) == ([], [ChunkSent(LINK)])


async def test_messages_go_to_open_links_only() -> None:
    world = World(b"x")
    for link in (LINK, GONE):
        world.sending.send(SendWant(link, KEY, chunk_list=True))
        world.sending.send(SendAnnouncement(link, Version(1)))
        world.sending.send(SendAnnouncement(link, Version(2)))
        world.sending.send(SendChunkList(link, KEY))
    await world.chunk(GONE)
    assert world.posted == ["want", "announcement", "chunk_list"]
    assert not world.chunks


def test_credits_of_one_moment_are_one_message_for_each_encoding() -> None:
    world, other = World(b"x"), EncodingKey(Version(2), EncodingId(0))
    for key, indices in ((KEY, (3,)), (other, (0,)), (KEY, (1, 4))):
        world.sending.send(SendCredit(LINK, key, indices))
    world.sending.send(SendCredit(GONE, KEY, (7,)))
    assert (world.posted, len(world.soon)) == ([], 1)
    world.soon.pop()()
    assert world.credited == [(3, 1, 4), (0,)]
    world.sending.send(SendCredit(LINK, KEY, tuple(range(CREDIT_CHUNKS_MAX + 1))))
    world.soon.pop()()
    assert world.credited[2:] == [tuple(range(CREDIT_CHUNKS_MAX)), (CREDIT_CHUNKS_MAX,)]
