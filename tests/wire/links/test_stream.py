"""Test a stream of frames by itself; the conformance suite of transports tests both ends of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import pytest

from rollcast.wire import limits
from rollcast.wire.links.frames import ChunkFrame, LinkFrame, encode_chunk, encode_message
from rollcast.wire.links.receiver import LinkClosed
from rollcast.wire.links.stream import LinkStream
from rollcast.wire.links.tcp import SocketOptions
from rollcast.wire.proto import rollcast_pb2 as pb
from tests.peer.links.link_run import LinkRun
from tests.wire.links.raw_tls import RawTls

PACKET = 1448
WANT = pb.LinkMessage(want=pb.Want(version=1))


class CountingStream(LinkStream):
    wakeups = 0

    def buffer_updated(self, nbytes: int) -> None:
        self.wakeups += 1
        super().buffer_updated(nbytes)


class Receiver:
    """A receiver that records its frames."""

    def __init__(self) -> None:
        self.messages = 0
        self.chunks: list[ChunkFrame] = []
        self.over: tuple[str, str] | None = None
        self._changed = asyncio.Event()

    def frames(self, frames: Sequence[LinkFrame]) -> None:
        self.chunks += [frame for frame in frames if isinstance(frame, ChunkFrame)]
        self.messages += sum(not isinstance(frame, ChunkFrame) for frame in frames)
        self._changed.set()

    def drained(self) -> None:
        raise AssertionError("no chunk was sent")

    def closed(self, reason: str, code: str) -> None:
        assert self.over is None
        self.over = (reason, code)
        self._changed.set()

    async def until(self, condition: Callable[[], object]) -> None:
        while not condition():
            self._changed.clear()
            await self._changed.wait()

    async def ended(self) -> tuple[str, str]:
        await self.until(lambda: self.over)
        assert self.over is not None
        return self.over


class Server:
    """A stream and its receiver at one end, a raw TLS client at the other."""

    def __init__(self, stream: CountingStream, client: RawTls) -> None:
        self.stream = stream
        self.client = client
        self.receiver = Receiver()

    async def until(self, count: int) -> None:
        await self.receiver.until(lambda: len(self.receiver.chunks) >= count)


@asynccontextmanager
async def serving(folder: Path) -> AsyncIterator[Server]:
    run = LinkRun(folder)
    accepted: asyncio.Future[asyncio.BaseTransport] = asyncio.get_running_loop().create_future()

    class Accept(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            accepted.set_result(transport)

    context = run.member("peer")[1].ssl_server_context()
    listener = await asyncio.get_running_loop().create_server(Accept, "127.0.0.1", 0, ssl=context)
    async with asyncio.timeout(10.0), listener:
        port = listener.sockets[0].getsockname()[1]
        client = await RawTls.connect(f"127.0.0.1:{port}", run.member("peer")[1].ssl_client_context())
        lost = asyncio.Event()
        stream = CountingStream.take_over(await accepted, SocketOptions(), write_timeout_s=5.0, on_lost=lost.set)
        assert isinstance(stream, CountingStream)
        server = Server(stream, client)
        stream.start(server.receiver)
        try:
            yield server
        finally:
            stream.end("")
            client.close()
            await lost.wait()


def chunk(index: int, size_bytes: int) -> bytes:
    return b"".join(encode_chunk(1, 0, index, Random(index).randbytes(size_bytes)))


@pytest.mark.parametrize("size_bytes", [32 << 10, 64 << 10])
async def test_a_chunk_in_many_packets_wakes_the_process_twice(tmp_path: Path, size_bytes: int) -> None:
    async with serving(tmp_path) as server:
        for index in range(10):
            frame = chunk(index, size_bytes)
            header, payload = frame[:-size_bytes], frame[-size_bytes:]
            await server.client.drip(server.client.encrypted(header) + server.client.encrypted(payload), PACKET)
            await server.until(index + 1)
        assert server.stream.wakeups <= 2 * 10


async def test_a_chunk_that_others_follow_wakes_the_process_once(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        stream = b""
        for index in range(20):
            frame = chunk(index, 32 << 10)
            stream += server.client.encrypted(frame[:23]) + server.client.encrypted(frame[23:])
        await server.client.drip(stream, PACKET)
        await server.until(20)
        assert server.stream.wakeups <= 20 * 1.25 + 1


@pytest.mark.parametrize("seed", range(6))
async def test_every_frame_arrives_whatever_the_records_and_packets(tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    async with serving(tmp_path) as server:
        frames = [chunk(index, random.choice([1, 100, 20_000, 70_000, 300_000])) for index in range(8)]
        plain = b"".join(random.choice([b"", encode_message(WANT)]) + frame for frame in frames)
        cipher = b""
        while plain:
            size_bytes = random.choice([1, 5, 1000, 16384, 40_000])
            cipher += server.client.encrypted(plain[:size_bytes])
            plain = plain[size_bytes:]
        while cipher:
            size_bytes = random.choice([3, PACKET, 20_000, 100_000])
            await server.client.put(cipher[:size_bytes])
            cipher = cipher[size_bytes:]
            await asyncio.sleep(0)
        await server.until(8)
        assert [frame.payload for frame in server.receiver.chunks] == [frame[23:] for frame in frames]


async def test_the_end_of_the_connection_shows_in_the_middle_of_a_chunk(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        await server.client.drip(server.client.encrypted(chunk(0, 1 << 16))[:40_000], 20_000)
        server.client.close()
        assert (await server.receiver.ended())[1] == ""


@pytest.mark.parametrize(
    "garbage",
    [
        b"\xff" * 8,
        b"\1" + (limits.LINK_CONTROL_BYTES_MAX + 1).to_bytes(4, "big"),
        b"\2" + (18 + limits.CHUNK_SIZE_BYTES_MAX + 1).to_bytes(4, "big"),
        encode_message(pb.LinkMessage(have=pb.Have(chunk_count=1, bitmap=b"\0")))[:-1] + b"\xff",
    ],
)
async def test_garbage_ends_the_link_and_is_named(tmp_path: Path, garbage: bytes) -> None:
    async with serving(tmp_path) as server:
        await server.client.write(encode_message(WANT) + garbage)
        (answer,) = await server.client.frames()
        assert not isinstance(answer, ChunkFrame)
        assert answer.message.error.code == "RC305"
        assert server.receiver.messages == 1, "earlier frames are delivered"
        assert (await server.receiver.ended())[1] == "RC305"


async def test_broken_encryption_ends_the_link(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        await server.client.put(b"\x17\x03\x03\x00\x20" + bytes(32))
        assert "broke" in (await server.receiver.ended())[0]


async def test_bytes_before_the_takeover_are_refused(tmp_path: Path) -> None:
    run = LinkRun(tmp_path)
    accepted: asyncio.Future[asyncio.Transport] = asyncio.get_running_loop().create_future()

    class Accept(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            assert isinstance(transport, asyncio.Transport)
            transport.pause_reading()
            accepted.set_result(transport)

    context = run.member("peer")[1].ssl_server_context()
    listener = await asyncio.get_running_loop().create_server(Accept, "127.0.0.1", 0, ssl=context)
    async with asyncio.timeout(10.0), listener:
        port = listener.sockets[0].getsockname()[1]
        client = await RawTls.connect(f"127.0.0.1:{port}", run.member("peer")[1].ssl_client_context())
        transport = await accepted
        await client.write(b"hello")
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        with pytest.raises(LinkClosed) as caught:
            LinkStream.take_over(transport, SocketOptions(), write_timeout_s=1.0)
        assert caught.value.code == "RC305"
        transport.abort()
        client.close()
        with pytest.raises(LinkClosed):
            LinkStream.take_over(transport, SocketOptions(), write_timeout_s=1.0)
        await asyncio.sleep(0)
