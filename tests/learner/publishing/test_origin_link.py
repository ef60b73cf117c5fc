from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from learner.publishing import origin_link
from learner.publishing.growth import Growth, Unsigned
from learner.publishing.origin_link import LinkBroken, OriginLink, OriginRefused
from learner.publishing.push import Push
from rollcast.runtime.errors import WrongKey
from rollcast.wire.ids import EncodingId, PeerId, Version
from rollcast.wire.links.frames import encode_chunk
from rollcast.wire.links.stream import LinkStream
from rollcast.wire.proto import rollcast_pb2 as pb
from tests.learner.scripted_run import RUN_ID, Authority, ScriptedOrigin

KEYFRAME, DELTA = EncodingId(0), EncodingId(1)
VERSION = Version(3)
CHUNKS = {KEYFRAME: [bytes([index]) * 40_000 for index in range(12)], DELTA: [b"d" * 500]}


class PuppetOrigin(ScriptedOrigin):
    """An origin that answers an announcement as the test scripts it, and records what it receives."""

    def __init__(self, authority: Authority) -> None:
        super().__init__(authority)
        self.answers: list[pb.LinkMessage] = []
        self.got: list[object] = []
        self.needed = 0  # chunks received before it reports that it holds the version

    def message(self, message: pb.LinkMessage) -> list[pb.LinkMessage]:
        self.got.append(message.WhichOneof("body"))
        return self.answers if message.HasField("announcement") else []

    def chunk(self, frame: object) -> list[pb.LinkMessage]:
        self.got.append((frame.encoding_id, frame.index, len(frame.payload)))  # type: ignore[attr-defined]
        self.needed -= 1
        return [] if self.needed else [pb.LinkMessage(held=pb.VersionHeld(version=3))]

    @property
    def stream(self) -> LinkStream:
        return self._streams[-1]


@pytest.fixture
async def origin(authority: Authority) -> AsyncIterator[PuppetOrigin]:
    puppet = PuppetOrigin(authority)
    async with asyncio.timeout(10.0):
        yield puppet
        await puppet.stop()


async def connect(origin: PuppetOrigin, peer_id: PeerId | None = None) -> OriginLink:
    address = await origin.start()
    credentials = origin.authority.credentials(origin.authority.learner, "learner")
    return await OriginLink.connect(
        address, peer_id or origin.authority.origin.peer_id, run_id=RUN_ID, credentials=credentials
    )


def push() -> Push:
    return Push(
        pb.VersionAnnouncement(), VERSION, {(VERSION, key): bytes(32 * len(value)) for key, value in CHUNKS.items()}
    )


def chunk(version: Version, encoding_id: EncodingId, index: int) -> bytes:
    assert version == VERSION
    return CHUNKS[encoding_id][index]


def request(encoding_id: int, *indices: int) -> pb.LinkMessage:
    return pb.LinkMessage(request=pb.Request(version=3, encoding_id=encoding_id, indices=indices))


async def test_chunks_of_all_encodings_go_once_in_the_order_they_were_asked_for(origin: PuppetOrigin) -> None:
    want = pb.LinkMessage(want=pb.Want(version=3, chunk_list=True))
    origin.answers = [want, request(0, *range(12)), request(0, 11, 3), request(1, 0)]
    async with await connect(origin) as link:
        for _ in range(2):
            origin.needed = 13
            await link.push(push(), chunk)
    expected = ["announcement", "chunk_list", "have", *((0, index, 40_000) for index in range(12)), (1, 0, 500)]
    assert origin.got == expected * 2


async def until(condition: Callable[[], object]) -> None:
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0.002)


def unsigned(growth: Growth) -> Unsigned:
    return Unsigned(VERSION, bytes(100_000), 40_000, growth)


async def test_an_unsigned_keyframe_goes_ahead_as_it_is_written(origin: PuppetOrigin) -> None:
    growth = Growth()
    async with await connect(origin) as link:
        sending = asyncio.create_task(link.send_ahead(unsigned(growth)))
        growth.reached(80_000)
        await until(lambda: len(origin.got) == 2)
        assert origin.got == [(0, 0, 40_000), (0, 1, 40_000)]
        growth.reached(100_000)
        await sending
        origin.answers, origin.needed = [request(1, 0)], 0
        await until(lambda: len(origin.got) == 3)
        origin.needed = 1
        await link.push(push(), chunk)
    assert origin.got[2:] == [(0, 2, 20_000), "announcement", (1, 0, 500)]


async def test_sending_ahead_can_be_cancelled_at_any_time(origin: PuppetOrigin) -> None:
    growth = Growth()
    async with await connect(origin) as link:
        sending = asyncio.create_task(link.send_ahead(unsigned(growth)))
        growth.reached(50_000)
        await until(lambda: origin.got)
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
        origin.answers, origin.needed = [request(1, 0)], 1
        await link.push(push(), chunk)
        growth.reached(100_000)  # a thread waits for it
    assert origin.got == [(0, 0, 40_000), "announcement", (1, 0, 500)]


async def test_sending_ahead_ends_with_the_link_and_with_the_writer(origin: PuppetOrigin) -> None:
    async with await connect(origin) as link:
        origin.stream.close("no room", "RC401")
        with pytest.raises(LinkBroken, match="no room"):
            await link.send_ahead(Unsigned(VERSION, bytes(10_000_000), 40_000, written(10_000_000)))
    await origin.stop()
    async with await connect(origin) as link:
        failed = Growth()
        failed.failed(OSError("disk full"))
        with pytest.raises(OSError, match="disk full"):
            await link.send_ahead(unsigned(failed))


def written(size_bytes: int) -> Growth:
    growth = Growth()
    growth.reached(size_bytes)
    return growth


async def test_a_link_to_a_silent_origin_is_closed(origin: PuppetOrigin, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(origin_link, "STALL_TIMEOUT_S", 0.05)
    async with await connect(origin) as link:
        with pytest.raises(LinkBroken, match="sends nothing"):
            await link.push(push(), chunk)


async def test_an_origin_that_gives_up_ends_the_push(origin: PuppetOrigin) -> None:
    origin.answers = [pb.LinkMessage(cancel=pb.Cancel(version=3, reason="disk full"))]
    async with await connect(origin) as link:
        with pytest.raises(OriginRefused, match="disk full"):
            await link.push(push(), chunk)


async def test_a_link_that_ended_stays_broken(origin: PuppetOrigin) -> None:
    async with await connect(origin) as link:
        origin.stream.close("no room", "RC401")
        for _ in range(2):
            with pytest.raises(LinkBroken, match="RC401 no room"):
                await link.push(push(), chunk)


async def test_chunks_from_the_origin_close_the_link(origin: PuppetOrigin) -> None:
    async with await connect(origin) as link:
        origin.stream.send_chunk(encode_chunk(3, 0, 0, b"x"))
        with pytest.raises(LinkBroken, match="requested no chunks"):
            await link.push(push(), chunk)


async def test_another_peer_at_the_address_is_not_the_origin(origin: PuppetOrigin) -> None:
    with pytest.raises(WrongKey):
        await connect(origin, origin.authority.learner.peer_id)


async def test_an_unused_address_is_a_broken_link(origin: PuppetOrigin) -> None:
    await (await connect(origin)).close()
    await origin.stop()
    credentials = origin.authority.credentials(origin.authority.learner, "learner")
    with pytest.raises(LinkBroken):
        await OriginLink.connect("127.0.0.1:9", origin.authority.origin.peer_id, run_id=RUN_ID, credentials=credentials)
