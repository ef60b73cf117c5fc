"""Test links to a real web server on loopback, and the transport that opens them."""

from __future__ import annotations

import asyncio
import re
import textwrap
import tomllib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from peer.config import LinkConfig, MirrorConfig
from peer.links.neighbours import Neighbour
from peer.links.traffic import LinkTraffic
from peer.mirrors.headers import MirrorHeaders
from peer.mirrors.transport import MirrorTransport, mirror_peer_id, own_mirrors
from peer.mirrors.virtual_link import VirtualLink
from rollcast.runtime.config import parse_config
from rollcast.runtime.errors import ConfigError, Unreachable
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
async def test_missing_and_unknown_encodings_are_cancelled(tmp_path: Path, version: int) -> None:
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


async def test_after_a_broken_answer_only_the_rest_is_requested(tmp_path: Path) -> None:
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
async def test_a_busy_mirror_is_retried_later(tmp_path: Path, headers: dict[str, str]) -> None:
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


async def test_messages_for_receiving_processes_are_ignored(tmp_path: Path) -> None:
    async with mirror(tmp_path) as world:
        link, got = await world.link()
        link.send(pb.LinkMessage(held=pb.VersionHeld(version=7)))
        link.send(pb.LinkMessage(have=pb.Have(version=7)))
        link.send(request(7, [0]))
        await got.until(lambda: got.chunks)
        assert got.messages == []


def transport_of(config: MirrorConfig) -> MirrorTransport:
    return MirrorTransport(config, known, LinkTraffic(LinkConfig()), http_limits=HTTP_LIMITS, link_limits=LINK_LIMITS)


@pytest.mark.parametrize(
    "address",
    ["http://example.com/x", "file:///etc/passwd", "/etc/passwd", "/models/model.safetensors", "https://u:p@a/"],
)
async def test_a_plan_cannot_make_a_peer_read_its_disk_or_plain_http(address: str) -> None:
    transport = transport_of(MirrorConfig(addresses=("/models/other.safetensors",)))
    with pytest.raises(Unreachable):
        await transport.dial(MIRROR, address)
    await transport.close()


async def test_credentials_come_from_the_headers_file(tmp_path: Path) -> None:
    store = ChunkStore(tmp_path / "store", 8)
    stored_version(store, 1)
    store.close()
    async with mirror_server(tmp_path / "store") as server:

        async def private(request: web.Request) -> web.Response | None:
            return None if request.headers.get("Authorization") == "Bearer s3cret" else web.Response(status=401)

        server.fault = private
        headers = tmp_path / "headers.toml"
        headers.write_text(f'["{server.address}/"]\nAuthorization = "Bearer s3cret"\n')
        for file, chunks in ((headers, 1), (None, 0)):
            transport = transport_of(MirrorConfig(headers_file=file))
            link = await transport.dial(MIRROR, server.address)
            link.start(got := Collector())
            link.send(request(1, [0]))
            await got.until(lambda got=got: got.chunks or got.messages)
            assert len(got.chunks) == chunks
            await transport.close()


async def test_closing_ends_every_link(tmp_path: Path) -> None:
    async with mirror_server(tmp_path) as server:
        transport = transport_of(MirrorConfig())
        link = await transport.dial(MIRROR, server.address)
        link.start(got := Collector())
        await transport.close()
        await got.until(lambda: got.ended)
        assert got.ended == [("the process that closed it shuts down", "")]
        await asyncio.sleep(0)
        assert not transport._links


async def test_a_wrong_headers_file_stops_the_peer_at_its_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        transport_of(MirrorConfig(headers_file=tmp_path / "no.toml"))


def test_the_documentation_names_every_setting() -> None:
    text = (Path(__file__).parents[3] / "docs" / "mirrors.md").read_text()
    assert re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE) == list(MirrorConfig.model_fields)
    examples = re.findall(r"^    \[mirror\]\n(?:    .+\n)+", text, re.MULTILINE)
    assert len(examples) == 2
    for example in examples:
        parse_config(tomllib.loads(textwrap.dedent(example))["mirror"], MirrorConfig, source="docs/mirrors.md")


def test_the_documented_headers_file_is_one(tmp_path: Path) -> None:
    text = (Path(__file__).parents[3] / "docs" / "mirrors.md").read_text()
    example = re.search(r"^    \[\"https://.+\n    .+\n", text, re.MULTILINE)
    assert example is not None
    (tmp_path / "headers.toml").write_text(textwrap.dedent(example[0]))
    headers = MirrorHeaders.read(tmp_path / "headers.toml")
    assert headers.of("https://mirror.example/run-1/7/0.data") == {"Authorization": "Bearer ..."}


def test_own_mirrors_are_neighbours_to_dial() -> None:
    addresses = ("https://a/b", "/models/model.safetensors", "x.safetensors")
    mine = own_mirrors(MirrorConfig(addresses=addresses))
    assert mine[0] == Neighbour(mirror_peer_id("https://a/b"), "mirror", "https://a/b", we_dial=True)
    assert mine[1].address == "/models/model.safetensors"
    assert mine[2].address == str(Path("x.safetensors").absolute())
    assert len({neighbour.peer_id for neighbour in mine}) == 3
