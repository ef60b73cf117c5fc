"""Test every virtual link's behaviour with a scripted source."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from peer.links.traffic import TrafficClass
from peer.mirrors.http_ranges import NotThere
from peer.mirrors.virtual_link import Holding, VirtualLink, VirtualLinkLimits
from rollcast.runtime.errors import MalformedMessage
from rollcast.wire.ids import PeerId
from rollcast.wire.links.frames import DIRECT_STRIPE
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.token_bucket import TokenBucket
from rollcast.wire.versions.records import Manifest, VerifiedVersion
from tests.peer.mirrors.mirror_server import LINK_LIMITS, WAIT_S, Collector, known, request, want
from tests.peer.versions import CHUNK_SIZE_BYTES, version_record


class ScriptedSource:
    """A source that holds the given chunks; each read waits until the test releases it."""

    def __init__(self) -> None:
        self.held = Holding(b"", True)
        self.looks = 0
        self.reads: list[tuple[int, int, int]] = []  # version, start, stop
        self.ended = 0
        self.go = asyncio.Event()
        self.go.set()

    async def find(self, verified: VerifiedVersion, manifest: Manifest) -> Holding:
        self.looks += 1
        await self.go.wait()
        return self.held

    async def read(
        self, verified: VerifiedVersion, manifest: Manifest, start: int, stop: int
    ) -> AsyncGenerator[bytes, None]:
        self.reads.append((manifest.version, start, stop))
        try:
            state = version_record(manifest.version)[1]
            for at in range(start, stop, CHUNK_SIZE_BYTES):
                await self.go.wait()
                yield state[at : min(at + CHUNK_SIZE_BYTES, stop)]
        finally:
            self.ended += 1


class World:
    def __init__(self, **limits: Any) -> None:
        self.source = ScriptedSource()
        self.got = Collector()
        self.closed: list[VirtualLink] = []
        chosen = VirtualLinkLimits(
            reads_most=limits.get("reads_most", 2),
            range_bytes_most=limits.get("range_bytes_most", 4 * CHUNK_SIZE_BYTES),
            backoff_first_s=LINK_LIMITS.backoff_first_s,
            backoff_most_s=LINK_LIMITS.backoff_most_s,
        )
        self.traffic = TrafficClass(None, limits.get("download"))
        self.link = VirtualLink(
            PeerId("mirror-1"), "mirror", self.source, self.traffic, known, chosen, self.closed.append
        )


@pytest.fixture
async def world() -> AsyncGenerator[World, None]:
    world = World()
    async with asyncio.timeout(WAIT_S):
        yield world
        world.link.close("the test is over")
        await asyncio.sleep(0)


async def turns(count: int = 20) -> None:
    """Yield to the event loop until no task can run."""
    for _ in range(count):
        await asyncio.sleep(0)


async def test_nothing_is_delivered_before_the_start(world: World) -> None:
    world.link.send(request(1, [0]))
    await turns()
    assert not world.got.chunks
    world.link.start(world.got)
    await world.got.until(lambda: world.got.chunks)


async def test_reads_at_a_time_are_bounded(world: World) -> None:
    world.link.start(world.got)
    world.source.go.clear()
    world.link.send(request(1, range(11)))
    await turns()
    assert len(world.source.reads) == 2
    world.source.go.set()
    await world.got.until(lambda: len(world.got.chunks) == 11)
    size = CHUNK_SIZE_BYTES
    assert world.source.reads == [(1, 0, 4 * size), (1, 4 * size, 8 * size), (1, 8 * size, 10 * size + 17)]


async def test_the_newest_version_is_read_first(world: World) -> None:
    world.link.start(world.got)
    world.source.go.clear()
    world.link.send(request(1, range(11)))
    await turns()
    world.link.send(request(2, [0]))
    world.source.go.set()
    await world.got.until(lambda: len(world.got.chunks) == 12)
    assert [version for version, _, _ in world.source.reads] == [1, 1, 2, 1]


async def test_a_cancelled_encoding_is_not_read_further(world: World) -> None:
    world.link.start(world.got)
    world.source.go.clear()
    world.link.send(request(1, range(11)))
    await turns()
    world.link.send(pb.LinkMessage(cancel=pb.Cancel(version=1)))
    world.source.go.set()
    await turns()
    assert len(world.source.reads) == 2
    assert world.source.ended == 2
    assert not world.got.chunks
    world.link.send(request(1, [9]))
    await world.got.until(lambda: world.got.chunks)


async def test_a_receiver_that_pauses_holds_the_reads(world: World) -> None:
    world.link.start(world.got)
    world.link.pause_reading()
    world.link.send(request(1, range(11)))
    world.link.send(want(1))
    await turns()
    assert not world.got.chunks
    assert not world.got.messages
    assert world.source.ended == 0, "no read goes on"
    world.link.resume_reading()
    await world.got.until(lambda: len(world.got.chunks) == 11 and world.got.messages)


async def test_a_partly_held_encoding_is_answered_by_its_bitmap(world: World) -> None:
    world.source.held = Holding(b"\xc0\x00", False)
    world.link.start(world.got)
    world.link.send(want(1))
    await world.got.until(lambda: world.got.messages)
    have = world.got.messages[0].have
    assert (have.chunk_count, have.bitmap, have.complete) == (11, b"\xc0\x00", False)
    world.link.send(request(1, [0, 1, 2, 4000]))
    await world.got.until(lambda: len(world.got.chunks) == 2 and len(world.got.messages) == 2)
    assert world.got.messages[1].have == have
    assert world.source.reads == [(1, 0, 2 * CHUNK_SIZE_BYTES)]


async def test_received_bytes_count_against_the_download_cap() -> None:
    bucket = TokenBucket(1e6, 1)
    world = World(download=bucket)
    world.link.start(world.got)
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    world.link.send(request(1, range(11)))
    async with asyncio.timeout(WAIT_S):
        await world.got.until(lambda: len(world.got.chunks) == 11)
    assert loop.time() - began_s > 0.03, "41 kB at 1 MB/s, the last one paid later"
    assert world.link.bytes_received == len(version_record(1)[1])
    world.link.close("")


async def test_a_want_is_looked_up_once_at_a_time(world: World) -> None:
    world.source.held = Holding(b"", True, b"list")
    world.source.go.clear()
    world.link.start(world.got)
    world.link.send(want(1, chunk_list=False))
    world.link.send(want(1, chunk_list=True))
    await turns()
    world.source.go.set()
    await world.got.until(lambda: len(world.got.messages) == 2)
    assert world.source.looks == 1
    world.link.send(want(1, chunk_list=False))
    await world.got.until(lambda: len(world.got.messages) == 3)
    assert [message.WhichOneof("body") for message in world.got.messages] == ["chunk_list", "have", "have"]


async def test_closing_ends_the_reads_and_is_reported_once(world: World) -> None:
    world.link.start(world.got)
    world.source.go.clear()
    world.link.send(request(1, range(11)))
    await turns()
    world.link.close("enough", "RC305")
    world.link.close("again")
    assert not world.got.ended, "never from within a call"
    world.source.go.set()
    await turns()
    assert world.got.ended == [("enough", "")]
    assert world.closed == [world.link]
    assert world.source.ended == 2
    world.link.send(request(1, [0]))
    await turns()
    assert not world.got.chunks


async def test_a_link_closed_before_its_start_reports_it(world: World) -> None:
    world.link.close("too late")
    world.link.start(world.got)
    await world.got.until(lambda: world.got.ended)
    assert world.got.ended == [("too late", "")]


async def test_chunks_sent_to_a_mirror_are_dropped(world: World) -> None:
    world.link.start(world.got)
    world.link.send_chunk(1, 0, 0, b"x", DIRECT_STRIPE)
    assert world.got.drains == 0
    await world.got.until(lambda: world.got.drains)
    assert world.link.bytes_sent == 0


async def test_too_many_requested_chunks_end_the_link(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("peer.mirrors.virtual_link._CHUNKS_ASKED_MOST", 5)
    world.link.start(world.got)
    world.link.send(request(1, range(11)))
    await world.got.until(lambda: world.got.ended)


async def test_too_many_wants_end_the_link(world: World) -> None:
    world.source.go.clear()
    world.link.start(world.got)
    for version in range(80):
        world.link.send(want(version))
    await world.got.until(lambda: world.got.ended)
    assert world.source.looks <= 64


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (MalformedMessage("nonsense"), want(1)),
        (MalformedMessage("nonsense"), request(1, [0])),
        (ZeroDivisionError(), request(1, [0])),
    ],
)
async def test_an_error_ends_the_link(world: World, error: Exception, message: pb.LinkMessage) -> None:
    def fails(*_: object) -> Any:
        raise error

    world.source.find = world.source.read = fails  # type: ignore[method-assign]
    world.link.start(world.got)
    world.link.send(message)
    await world.got.until(lambda: world.got.ended)
    assert world.got.ended[0][1] == ("RC305" if isinstance(error, MalformedMessage) else "")


async def test_a_version_that_is_discarded_meanwhile_is_cancelled(world: World) -> None:
    world.link.start(world.got)
    world.link.send(request(1, [0]))
    world.link._versions = lambda _: None
    assert await world.got.cancelled()


async def test_a_source_with_less_than_it_claimed_is_cancelled(world: World) -> None:
    def gone(*_: object) -> Any:
        raise NotThere("gone")

    world.source.read = gone  # type: ignore[method-assign]
    world.link.start(world.got)
    world.link.send(request(1, [0]))
    assert await world.got.cancelled() == "gone"
