from __future__ import annotations

import asyncio
import re
import textwrap
import tomllib
from pathlib import Path

import pytest
from aiohttp import web

from peer.config import LinkConfig, MirrorConfig
from peer.links.neighbours import Neighbour
from peer.links.traffic import LinkTraffic
from peer.mirrors.headers import MirrorHeaders
from peer.mirrors.transport import MirrorTransport, mirror_peer_id, own_mirrors
from rollcast.runtime.config import parse_config
from rollcast.runtime.errors import ConfigError, Unreachable
from rollcast.wire.ids import PeerId
from rollcast.wire.versions.chunk_store import ChunkStore
from tests.peer.mirrors.mirror_server import HTTP_LIMITS, LINK_LIMITS, Collector, known, mirror_server, request
from tests.peer.versions import stored_version

MIRROR = PeerId("mirror-1")


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
        assert got.ended == [("this process stops", "")]
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
