"""Run a web server over a folder, on loopback, that can misbehave, and collect what a link from it delivers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from aiohttp import web

from peer.mirrors.http_ranges import HttpLimits
from peer.mirrors.virtual_link import VirtualLinkLimits
from rollcast.wire.ids import Version
from rollcast.wire.links.frames import ChunkFrame, LinkFrame, LinkMessageFrame
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.versions.records import VerifiedVersion, parse_announcement
from tests.peer.versions import announcement_of

WAIT_S = 40.0  # a test of a second takes ten on a busy machine
HTTP_LIMITS = HttpLimits(connect_timeout_s=1.0, silence_timeout_s=0.1, slowest_bytes_per_second=1e6)
LINK_LIMITS = VirtualLinkLimits(backoff_first_s=0.001, backoff_most_s=0.002, wait_s_most=1.0)

Fault = Callable[[web.Request], Awaitable[web.StreamResponse | None]]


class MirrorServer:
    """Serves ``folder`` with byte ranges, unless ``fault`` answers first."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.address = ""
        self.fault: Fault | None = None
        self.requests: list[tuple[str, str]] = []  # path, range
        self.headers: list[dict[str, str]] = []

    def gets(self, suffix: str) -> list[str]:
        """Return the ranges requested of files with this ending, in order."""
        return [requested for path, requested in self.requests if path.endswith(suffix)]

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if request.method == "GET":
            self.requests.append((request.path, request.headers.get("Range", "")))
            self.headers.append(dict(request.headers))
        if self.fault is not None and request.method == "GET":
            response = await self.fault(request)
            if response is not None:
                return response
        path = self.folder / request.path.removeprefix("/www/")
        if not path.is_file():
            return web.Response(status=404)
        return web.FileResponse(path)


@asynccontextmanager
async def mirror_server(folder: Path) -> AsyncIterator[MirrorServer]:
    server = MirrorServer(folder)
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", server.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.0)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    server.address = f"http://127.0.0.1:{runner.addresses[0][1]}/www"
    try:
        async with asyncio.timeout(WAIT_S):
            yield server
    finally:
        await runner.cleanup()


@asynccontextmanager
async def raw_server(answer: Callable[[bytes, asyncio.StreamWriter], Awaitable[None]]) -> AsyncIterator[str]:
    """Run a server that answers each request with the bytes that ``answer`` writes; yield its address."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await answer(await reader.readuntil(b"\r\n\r\n"), writer)
            await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        async with asyncio.timeout(WAIT_S):
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/www"
    finally:
        server.close()


class Collector:
    """A LinkReceiver that records what it receives."""

    def __init__(self) -> None:
        self.messages: list[pb.LinkMessage] = []
        self.chunks: dict[tuple[int, int], bytes] = {}  # by version and index
        self.ended: list[tuple[str, str]] = []
        self.drains = 0
        self._changed = asyncio.Event()

    def frames(self, frames: Sequence[LinkFrame]) -> None:
        assert not self.ended, "nothing comes after the end"
        for frame in frames:
            match frame:
                case ChunkFrame():
                    assert (frame.version, frame.index) not in self.chunks, "no chunk comes twice"
                    self.chunks[frame.version, frame.index] = bytes(frame.payload)
                case LinkMessageFrame(message=message):
                    self.messages.append(message)
        self._changed.set()

    def drained(self) -> None:
        self.drains += 1
        self._changed.set()

    def closed(self, reason: str, code: str) -> None:
        self.ended.append((reason, code))
        self._changed.set()

    async def until(self, condition: Callable[[], object]) -> None:
        while not condition():
            self._changed.clear()
            await self._changed.wait()

    async def cancelled(self) -> str:
        """Return the reason of the first Cancel."""
        await self.until(lambda: any(message.HasField("cancel") for message in self.messages))
        return next(message.cancel.reason for message in self.messages if message.HasField("cancel"))


def known(version: Version) -> VerifiedVersion | None:
    return parse_announcement(announcement_of(version)) if version < 100 else None


def want(version: int, chunk_list: bool = True) -> pb.LinkMessage:
    return pb.LinkMessage(want=pb.Want(version=version, chunk_list=chunk_list))


def request(version: int, indices: Sequence[int]) -> pb.LinkMessage:
    return pb.LinkMessage(request=pb.Request(version=version, indices=indices))
