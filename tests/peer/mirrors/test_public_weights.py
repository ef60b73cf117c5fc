from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from peer.config import LinkConfig, MirrorConfig
from peer.links.traffic import LinkTraffic
from peer.mirrors.public_weights import is_public_weights
from peer.mirrors.transport import MirrorTransport
from peer.mirrors.virtual_link import VersionOf, VirtualLink
from rollcast.policy.config import ModelConfig
from rollcast.policy.hub.save import save_model
from rollcast.policy.params import initial_params
from rollcast.policy.snapshot import freeze
from rollcast.wire.ids import Epoch, PeerId, Version
from rollcast.wire.versions.chunks import chunk_list
from rollcast.wire.versions.records import (
    VerifiedVersion,
    VersionRecord,
    keyframe_manifest,
    parse_announcement,
    sign_version,
)
from rollcast.wire.versions.state_hash import state_hash
from rollcast.wire.versions.tensors import TensorSpec, tensor_table
from tests.peer.mirrors.mirror_server import HTTP_LIMITS, LINK_LIMITS, WAIT_S, Collector, mirror_server, request, want
from tests.peer.versions import LEARNER, RUN_ID

CHUNK_SIZE_BYTES = 1024
TENSORS = [
    ("embed/table", "bfloat16", (40, 32)),  # 2560 bytes
    ("layer.0/w", "float32", (3, 100)),  # 1200
    ("layer.0/b", "float32", (5,)),  # 20
    ("head", "uint8", (1220,)),
]
SPECS = tensor_table(TENSORS)
STATE = bytes(index * 7 % 251 for index in range(5000))
ST_DTYPES = {"bfloat16": "BF16", "float32": "F32", "uint8": "U8"}
VERSION_0 = Version(0)


def verified(version: Version = VERSION_0) -> VerifiedVersion:
    return signed_state(STATE, SPECS, version)


def signed_state(state: bytes, tensors: tuple[TensorSpec, ...], version: Version = VERSION_0) -> VerifiedVersion:
    record = VersionRecord(
        run_id=RUN_ID,
        epoch=Epoch(0),
        version=version,
        parent_hash=b"",
        state_hash=state_hash(state),
        state_size_bytes=len(state),
        tensors=tensors,
        model_json="{}",
    )
    manifest = keyframe_manifest(record, chunk_list(state, CHUNK_SIZE_BYTES), CHUNK_SIZE_BYTES)
    return parse_announcement(sign_version(record, [manifest], LEARNER))


def write_safetensors(path: Path, names: list[str], change: Callable[[dict[str, Any]], None] = lambda _: None) -> None:
    """Write some tensors of STATE to a safetensors file, in the given order."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data = b""
    for name in names:
        spec = next(spec for spec in SPECS if spec.name == name)
        data_offsets = [len(data), len(data) + spec.size_bytes]
        header[name] = {"dtype": ST_DTYPES[spec.dtype], "shape": list(spec.shape), "data_offsets": data_offsets}
        data += STATE[spec.offset_bytes : spec.offset_bytes + spec.size_bytes]
    change(header)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


@asynccontextmanager
async def link_to(
    address: str, own: str = "", versions: VersionOf = verified
) -> AsyncIterator[tuple[VirtualLink, Collector]]:
    config = MirrorConfig(addresses=(own,) if own else ())
    transport = MirrorTransport(
        config, versions, LinkTraffic(LinkConfig()), http_limits=HTTP_LIMITS, link_limits=LINK_LIMITS
    )
    try:
        async with asyncio.timeout(WAIT_S):
            link = await transport.dial(PeerId("weights"), address)
            link.start(got := Collector())
            yield link, got
    finally:
        await transport.close()


async def fetch_all(link: VirtualLink, got: Collector) -> bytes:
    link.send(want(0))
    await got.until(lambda: got.messages)
    have = got.messages[0].have
    assert (have.chunk_count, have.complete) == (5, True), got.messages
    link.send(request(0, range(5)))
    await got.until(lambda: len(got.chunks) == 5)
    return b"".join(got.chunks[0, index] for index in range(5))


NAMES = [name for name, _, _ in TENSORS]


@pytest.mark.parametrize("order", [NAMES, NAMES[::-1]])
async def test_version_0_comes_from_one_file_on_a_server(tmp_path: Path, order: list[str]) -> None:
    write_safetensors(tmp_path / "model.safetensors", order)
    async with mirror_server(tmp_path) as server, link_to(f"{server.address}/model.safetensors") as (link, got):
        assert await fetch_all(link, got) == STATE
        assert not any(message.HasField("chunk_list") for message in got.messages), "the signed list is not there"


async def test_version_0_comes_from_shards(tmp_path: Path) -> None:
    shards = {"model-1.safetensors": NAMES[::2], "model-2.safetensors": NAMES[1::2]}
    for file, names in shards.items():
        write_safetensors(tmp_path / file, names)
    weight_map = {name: file for file, names in shards.items() for name in names}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    async with mirror_server(tmp_path) as server:
        async with link_to(f"{server.address}/model.safetensors.index.json?download=true") as (link, got):
            assert await fetch_all(link, got) == STATE
        assert len(server.gets(".json")) == 1
    path = str(tmp_path / "model.safetensors.index.json")
    async with link_to(path, own=path) as (link, got):
        assert await fetch_all(link, got) == STATE


async def test_only_unchanged_tensors_are_claimed(tmp_path: Path) -> None:
    def transpose(header: dict[str, Any]) -> None:
        header["layer.0/w"]["shape"].reverse()

    path = tmp_path / "model.safetensors"
    write_safetensors(path, NAMES, transpose)
    async with link_to(str(path), own=str(path)) as (link, got):
        link.send(want(0))
        await got.until(lambda: got.messages)
        have = got.messages[0].have
        assert have.bitmap == b"\xc8", "layer.0/w lies in chunks 2 and 3"
        link.send(request(0, range(5)))
        await got.until(lambda: len(got.chunks) == 3)


def garbage(path: Path) -> None:
    path.write_bytes(b"\xff" * 100)


def truncated(path: Path) -> None:
    write_safetensors(path, NAMES)
    path.write_bytes(path.read_bytes()[:50])


def foreign(path: Path) -> None:
    write_safetensors(path, NAMES, lambda header: [header.pop(name) for name in NAMES] and None)


def missing(_path: Path) -> None:
    pass


@pytest.mark.parametrize("make", [garbage, truncated, foreign, missing])
@pytest.mark.parametrize("place", ["disk", "server"])
async def test_files_that_do_not_help_are_cancelled(tmp_path: Path, make: Callable[[Path], None], place: str) -> None:
    path = tmp_path / "model.safetensors"
    make(path)
    async with mirror_server(tmp_path) as server:
        address = str(path) if place == "disk" else f"{server.address}/model.safetensors"
        async with link_to(address, own=address) as (link, got):
            link.send(want(0))
            assert await got.cancelled()
            got.messages.clear()
            link.send(request(0, [0]))
            assert await got.cancelled()


async def test_a_file_whose_end_is_missing_is_cancelled(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    write_safetensors(path, NAMES)
    path.write_bytes(path.read_bytes()[:-1])
    async with link_to(str(path), own=str(path)) as (link, got):
        link.send(request(0, [4]))
        assert "shorter" in await got.cancelled()


async def test_other_versions_are_cancelled(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    write_safetensors(path, NAMES)
    async with link_to(str(path), own=str(path)) as (link, got):
        link.send(want(1))
        assert "version 0" in await got.cancelled()


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("https://h/m/model.safetensors", True),
        ("https://h/m/model.safetensors?download=true", True),
        ("https://h/m/model.safetensors.index.json", True),
        ("https://h/m/", False),
        ("https://h/m?file=model.safetensors", False),
    ],
)
def test_addresses_of_public_weights(address: str, expected: bool) -> None:
    assert is_public_weights(address) is expected


@pytest.mark.parametrize("place", ["disk", "server"])
async def test_version_0_of_a_published_model_comes_from_its_files_on_the_hub(tmp_path: Path, place: str) -> None:
    model = ModelConfig(
        vocabulary_size=40, layers=1, width=16, query_heads=2, key_value_heads=1, head_size=8, feed_forward_width=24
    )
    params = initial_params(model, seed=0)
    snapshot = freeze(model, params)
    state = bytes(snapshot.state_bytes)
    save_model(model, params, tmp_path, "float32", file_bytes_max=4000)
    signed = signed_state(state, snapshot.tensors)
    path = tmp_path / "model.safetensors.index.json"
    async with mirror_server(tmp_path) as server:
        address = str(path) if place == "disk" else f"{server.address}/{path.name}"
        async with link_to(address, own=address, versions=lambda _: signed) as (link, got):
            link.send(want(0))
            await got.until(lambda: got.messages)
            assert got.messages[0].have.complete, got.messages
            count = signed.keyframe.chunk_count
            link.send(request(0, range(count)))
            await got.until(lambda: len(got.chunks) == count)
            assert b"".join(got.chunks[0, index] for index in range(count)) == state
