"""Another libp2p implementation as the other end of a chunk link: `make interop` installs it and runs this."""

from __future__ import annotations

import asyncio
import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from rollcast.wire.ids import PeerId
from rollcast.wire.protocol import PROTOCOL_RANGE
from rollcast.wire.tls import TlsCredentials
from tests.peer.relay_world import Member, World, relay_world
from tests.peer.versions import Published

pytestmark = pytest.mark.interop

FOLDER = Path(__file__).parent
PROTO = FOLDER.parents[1] / "rollcast" / "wire" / "proto" / "rollcast.proto"
INDEX = 3
WAIT_S = 30.0
CHUNK_PROTOCOL = "/rollcast/chunk/1.0.0"


def _prepare(
    folder: Path, world: World, shown: tuple[PeerId, TlsCredentials], origin: Member, published: Published
) -> None:
    peer_id, credentials = shown
    settings = {
        "address": origin.address.split(" ")[1],
        "peer_id": origin.peer_id,
        "run_id": world.run.run_id,
        "protocol_min": PROTOCOL_RANGE[0],
        "protocol_max": PROTOCOL_RANGE[1],
        "version": published.version,
        "encoding_id": 0,
        "index": INDEX,
        "proto": str(PROTO),
    }
    (folder / "settings.json").write_text(json.dumps(settings))
    (folder / "certificate.der").write_bytes(credentials.certificate_der)
    (folder / "seed").write_bytes(world.run.identities[peer_id].seed())


async def _node(folder: Path) -> tuple[dict[str, Any], str]:
    """What fetch_chunk.mjs found, and what it complained of."""
    node = shutil.which("node")
    if node is None or not (FOLDER / "node_modules" / "libp2p").is_dir():
        pytest.skip("needs node and its packages: make interop")
    process = await asyncio.create_subprocess_exec(
        node,
        str(FOLDER / "fetch_chunk.mjs"),
        str(folder),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(WAIT_S):
        out, problems = await process.communicate()
    return json.loads(out) if process.returncode == 0 else {}, problems.decode()


async def _published(world: World) -> tuple[Member, Published]:
    (origin,) = await world.add("origin", link={"p2p": True})
    listening, origin.address = origin.address, origin.address.split(" ")[0]  # the learner dials it directly
    published = world.published(1)
    await world.publish(published)
    origin.address = listening
    return origin, published


async def test_js_libp2p_identifies_pings_and_fetches_a_chunk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.peer.versions.CHUNK_BYTES", 1 << 20)  # more than libp2p's first window
    monkeypatch.setattr("tests.peer.versions._STATE_BYTES", 5 << 20)
    async with relay_world(tmp_path) as world:
        origin, published = await _published(world)
        _prepare(tmp_path, world, world.run.member("peer"), origin, published)
        found, problems = await _node(tmp_path)
        assert not problems
        assert "py-libp2p" in found["agent"]
        assert found["identified"], f"{CHUNK_PROTOCOL} is among the protocols"
        assert 0 <= found["ping_ms"] < 1000
        assert found["software"].startswith("rollcast ")
        chunk = published.chunk(INDEX)
        assert (found["index"], found["bytes"]) == (INDEX, len(chunk))
        assert found["sha256"] == hashlib.sha256(chunk).hexdigest()
        assert found["chunks"] == len(published.chunk_lists[0]) // 32


async def test_js_libp2p_without_a_certificate_of_the_run_gets_nothing(tmp_path: Path) -> None:
    async with relay_world(tmp_path) as world:
        origin, published = await _published(world)
        stranger = world.run.member("peer")
        (tmp_path / "elsewhere").mkdir()
        _, other = type(world.run)(tmp_path / "elsewhere", "run-2").member("peer")
        _prepare(tmp_path, world, (stranger[0], other), origin, published)
        found, problems = await _node(tmp_path)
        assert not found
        assert "RC" in problems
