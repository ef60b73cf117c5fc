"""A link to a mirror, through a real web server on loopback."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from peer.config import LinkConfig, MirrorConfig
from peer.links.traffic import LinkTraffic
from peer.mirrors.transport import MirrorTransport
from peer.mirrors.virtual_link import VirtualLink
from rollcast.wire.ids import PeerId
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.versions.chunk_store import ChunkStore
from tests.peer.mirrors.mirror_server import (
    HTTP_LIMITS,
    LINK_LIMITS,
    Collector,
    MirrorServer,
    known,
    mirror_server,
    request,
    want,
)
from tests.peer.versions import CHUNK_SIZE_BYTES, stored_version, version_record

MIRROR = PeerId("mirror-1")
CHUNKS = 11


class World:
    def __init__(self, server: MirrorServer, transport: MirrorTransport) -> None:
        self.server = server
        self.transport = transport

    async def link(self) -> tuple[VirtualLink, Collector]:
        link = await self.transport.dial(MIRROR, self.server.address)
        collector = Collector()
        link.start(collector)
        return link, collector


@asynccontextmanager
async def mirror(tmp_path: Path, versions: tuple[int, ...] = (7,)) -> AsyncIterator[World]:
    store = ChunkStore(tmp_path / "store", 8)
    for version in versions:
        stored_version(store, version)
    store.close()
    config = MirrorConfig(request_bytes=1 << 16)
    transport = MirrorTransport(
        config, known, LinkTraffic(LinkConfig()), http_limits=HTTP_LIMITS, link_limits=LINK_LIMITS
    )
    try:
        async with mirror_server(tmp_path / "store") as server:
            yield World(server, transport)
    finally:
        await transport.close()


def state_of(collector: Collector, version: int) -> bytes:
    return b"".join(collector.chunks[version, index] for index in range(CHUNKS))


async def test_want_is_answered_by_the_list_and_have_and_request_by_the_chunks(tmp_path: Path) -> None:
    async with mirror(tmp_path) as world:
        link, got = await world.link()
        assert (link.peer_id, link.role, link.dialled, link.transport) == (MIRROR, "mirror", True, "mirror")
        link.send(want(7))
        await got.until(lambda: len(got.messages) == 2)
        assert [message.WhichOneof("body") for message in got.messages] == ["chunk_list", "have"]
        assert got.messages[0].chunk_list.hashes == (tmp_path / "store" / "7" / "0.list").read_bytes()
        have = got.messages[1].have
        assert (have.version, have.chunk_count, have.complete) == (7, CHUNKS, True)
        link.send(request(7, range(CHUNKS)))
        await got.until(lambda: len(got.chunks) == CHUNKS)
        assert state_of(got, 7) == version_record(7)[1]
        assert world.server.gets("7/0.data") == [f"bytes=0-{10 * CHUNK_SIZE_BYTES + 16}"], (
            "adjacent chunks, one request"
        )
        assert link.bytes_received == len(version_record(7)[1]) + CHUNKS * 32


async def test_a_want_without_the_list_still_asks_the_mirror_and_gets_only_have(tmp_path: Path) -> None:
    async with mirror(tmp_path) as world:
        link, got = await world.link()
        link.send(want(7, chunk_list=False))
        await got.until(lambda: got.messages)
        assert got.messages[0].have.complete


@pytest.mark.parametrize("version", [8, 100])
async def test_what_is_not_there_or_not_known_is_cancelled(tmp_path: Path, version: int) -> None:
    async with mirror(tmp_path) as world:
        link, got = await world.link()
        link.send(want(version))
        assert await got.cancelled()
        got.messages.clear()
        link.send(request(version, [0]))
        assert await got.cancelled()
        assert not got.ended


async def test_a_mirror_of_another_run_is_cancelled(tmp_path: Path) -> None:
    async with mirror(tmp_path) as world:
        (tmp_path / "store" / "7" / "0.list").write_bytes(b"x" * 32 * CHUNKS)
        link, got = await world.link()
        link.send(want(7))
        assert "not the signed one" in await got.cancelled()
        (tmp_path / "store" / "7" / "0.list").write_bytes(b"x" * 33 * CHUNKS)
        got.messages.clear()
        link.send(want(7))
        assert "more than" in await got.cancelled()


async def test_a_mirror_that_breaks_off_is_asked_for_the_rest_only(tmp_path: Path) -> None:
    async with mirror(tmp_path) as world:
        whole = version_record(7)[1]

        async def breaks(request: web.Request) -> web.StreamResponse | None:
            if len(world.server.gets(".data")) > 1 or not request.path.endswith(".data"):
                return None
            response = web.StreamResponse(
                status=206, headers={"Content-Range": f"bytes 0-{len(whole) - 1}/{len(whole)}"}
            )
            response.content_length = len(whole)
            await response.prepare(request)
            await response.write(whole[: 5 * CHUNK_SIZE_BYTES + 1])
            assert request.transport is not None
            request.transport.close()
            return response

        world.server.fault = breaks
        link, got = await world.link()
        link.send(request(7, range(CHUNKS)))
        await got.until(lambda: len(got.chunks) == CHUNKS)
        assert state_of(got, 7) == whole
        assert world.server.gets(".data")[1] == f"bytes={5 * CHUNK_SIZE_BYTES}-{len(whole) - 1}"


@pytest.mark.parametrize("headers", [{}, {"Retry-After": "0"}])
async def test_a_busy_mirror_is_asked_again_later(tmp_path: Path, headers: dict[str, str]) -> None:
    async with mirror(tmp_path) as world:
        refused = 0

        async def busy(_request: web.Request) -> web.Response | None:
            nonlocal refused
            refused += 1
            return web.Response(status=503, headers=headers) if refused % 3 else None

        world.server.fault = busy
        link, got = await world.link()
        link.send(want(7))
        link.send(request(7, [0, 5]))
        await got.until(lambda: len(got.chunks) == 2 and len(got.messages) == 2)


@pytest.mark.parametrize(("headers", "requests"), [({}, 5), ({"Retry-After": "3600"}, 1)])
async def test_a_mirror_that_stays_busy_is_given_up(tmp_path: Path, headers: dict[str, str], requests: int) -> None:
    async with mirror(tmp_path) as world:

        async def busy(_request: web.Request) -> web.Response:
            return web.Response(status=429, headers=headers)

        world.server.fault = busy
        link, got = await world.link()
        link.send(request(7, [0]))
        await got.until(lambda: got.ended)
        assert got.ended == [("the mirror cannot answer now: HTTP status 429", "")]
        assert len(world.server.requests) == requests


async def test_a_mirror_that_sends_nonsense_ends_the_link_with_a_code(tmp_path: Path) -> None:
    async with mirror(tmp_path) as world:

        async def other(_request: web.Request) -> web.Response:
            return web.Response(status=206, body=b"x", headers={"Content-Range": "bytes 5-5/9"})

        world.server.fault = other
        link, got = await world.link()
        link.send(request(7, [0]))
        await got.until(lambda: got.ended)
        assert [code for _, code in got.ended] == ["RC305"]


async def test_wrong_bytes_are_delivered_for_the_relay_to_refuse(tmp_path: Path) -> None:
    async with mirror(tmp_path) as world:
        (tmp_path / "store" / "7" / "0.data").write_bytes(b"x" * len(version_record(7)[1]))
        link, got = await world.link()
        link.send(request(7, [3]))
        await got.until(lambda: got.chunks)
        assert got.chunks == {(7, 3): b"x" * CHUNK_SIZE_BYTES}


async def test_a_shorter_file_is_cancelled_not_padded(tmp_path: Path) -> None:
    async with mirror(tmp_path) as world:
        (tmp_path / "store" / "7" / "0.data").write_bytes(b"x" * 5000)
        link, got = await world.link()
        link.send(request(7, [0, 1, 2]))
        assert "shorter" in await got.cancelled()


async def test_what_only_concerns_a_process_is_ignored(tmp_path: Path) -> None:
    async with mirror(tmp_path) as world:
        link, got = await world.link()
        link.send(pb.LinkMessage(held=pb.VersionHeld(version=7)))
        link.send(pb.LinkMessage(have=pb.Have(version=7)))
        link.send(request(7, [0]))
        await got.until(lambda: got.chunks)
        assert got.messages == []
