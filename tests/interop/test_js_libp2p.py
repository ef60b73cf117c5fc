"""Test chunk links with another libp2p implementation, which `make interop` installs before it runs this."""

from __future__ import annotations

import asyncio
import hashlib
import json
import shutil
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from peer.links.transport import Link
from peer.p2p.circuits.book import CircuitCaps
from peer.p2p.transport import P2pTransport
from rollcast.wire.identity.tls import TlsCredentials
from rollcast.wire.ids import PeerId
from rollcast.wire.links.frames import NO_STRIPE, LinkFrame, LinkMessageFrame
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.protocol import PROTOCOL_RANGE
from rollcast.wire.versions.records import KEYFRAME_ID
from tests.peer.links.link_ends import End
from tests.peer.links.link_run import LinkRun
from tests.peer.relay.relay_world import Member, World, relay_world
from tests.peer.versions import Published

pytest.importorskip("libp2p")
pytestmark = pytest.mark.interop

FOLDER = Path(__file__).parent
PROTO = FOLDER.parents[1] / "rollcast" / "wire" / "proto" / "rollcast.proto"
INDEX = 3
WAIT_S = 30.0
CHUNK_PROTOCOL = "/rollcast/chunk/1.0.0"


def _prepare(folder: Path, run: LinkRun, shown: tuple[PeerId, TlsCredentials], **settings: object) -> None:
    peer_id, credentials = shown
    always = {
        "run_id": run.run_id,
        "protocol_min": PROTOCOL_RANGE[0],
        "protocol_max": PROTOCOL_RANGE[1],
        "proto": str(PROTO),
    }
    (folder / "settings.json").write_text(json.dumps({**always, **settings}))
    (folder / "certificate.der").write_bytes(credentials.certificate_der)
    (folder / "seed").write_bytes(run.identities[peer_id].seed())


def _to_fetch(origin: Member, published: Published) -> dict[str, object]:
    address = origin.address.split(" ")[1]
    return {
        "address": address,
        "peer_id": origin.peer_id,
        "version": published.version,
        "encoding_id": KEYFRAME_ID,
        "index": INDEX,
    }


async def _started(program: str, folder: Path) -> asyncio.subprocess.Process:
    node = shutil.which("node")
    if node is None or not (FOLDER / "node_modules" / "libp2p").is_dir():
        pytest.skip("needs node and its packages: make interop")
    pipe = asyncio.subprocess.PIPE
    return await asyncio.create_subprocess_exec(
        node, str(FOLDER / program), str(folder), stdin=pipe, stdout=pipe, stderr=pipe
    )


async def _fetched(folder: Path) -> tuple[dict[str, Any], str]:
    """Return the result of fetch_chunk.mjs, and what it wrote to stderr."""
    process = await _started("fetch_chunk.mjs", folder)
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
        _prepare(tmp_path, world.run, world.run.member("peer"), **_to_fetch(origin, published))
        found, problems = await _fetched(tmp_path)
        assert not problems
        assert "py-libp2p" in found["agent"]
        assert found["identified"], f"{CHUNK_PROTOCOL} is among the protocols"
        assert 0 <= found["ping_ms"] < 1000
        assert found["software"].startswith("rollcast ")
        chunk = published.chunk(INDEX)
        assert (found["index"], found["bytes"]) == (INDEX, len(chunk))
        assert found["sha256"] == hashlib.sha256(chunk).hexdigest()
        assert found["chunks"] == len(published.chunk_lists[KEYFRAME_ID]) // 32


async def test_js_libp2p_without_a_certificate_of_the_run_gets_nothing(tmp_path: Path) -> None:
    async with relay_world(tmp_path) as world:
        origin, published = await _published(world)
        stranger = world.run.member("peer")
        (tmp_path / "elsewhere").mkdir()
        _, other = type(world.run)(tmp_path / "elsewhere", "run-2").member("peer")
        _prepare(tmp_path, world.run, (stranger[0], other), **_to_fetch(origin, published))
        found, problems = await _fetched(tmp_path)
        assert not found
        assert "RC" in problems


async def test_a_peer_dials_js_libp2p_and_fetches_a_chunk(tmp_path: Path) -> None:
    async with relay_world(tmp_path) as world:
        theirs, ours = world.run.member("peer"), world.run.member("peer")
        _prepare(tmp_path, world.run, theirs)
        chunk = bytes(range(256)) * 4096
        (tmp_path / "chunk").write_bytes(chunk)
        process = await _started("serve_chunk.mjs", tmp_path)
        assert process.stdout is not None
        transport = P2pTransport(world.run.identities[ours[0]], ours[1], world.run.run_id, lambda _caller: "")
        try:
            async with asyncio.timeout(WAIT_S):
                address = json.loads(await process.stdout.readline())["address"]
                link = await transport.dial(theirs[0], address)
                end = End(link)
                link.start(end)
                link.send(pb.LinkMessage(request=pb.Request(version=7, encoding_id=KEYFRAME_ID, indices=[INDEX])))
                frame = await end.chunk()
        finally:
            await transport.close()
            _, problems = await process.communicate(b"")  # communicate closes its stdin
        assert (frame.version, frame.index, bytes(frame.payload)) == (7, INDEX, chunk)
        assert not problems.decode()


# ------------------------------------------------------------- through one of our relays


class Serving(End):
    """A link end that answers like a peer that holds one version of a few chunks."""

    def frames(self, frames: Sequence[LinkFrame]) -> None:
        for frame in frames:
            if isinstance(frame, LinkMessageFrame) and frame.message.HasField("want"):
                self.link.send(pb.LinkMessage(chunk_list=pb.ChunkList(version=7, hashes=bytes(32 * (INDEX + 1)))))
            if isinstance(frame, LinkMessageFrame) and frame.message.HasField("request"):
                self.link.send_chunk(7, KEYFRAME_ID, INDEX, CHUNK, NO_STRIPE)


CHUNK = bytes(range(256)) * 4096


@asynccontextmanager
async def _relay(run: LinkRun, *others: P2pTransport) -> AsyncIterator[str]:
    """Run a peer that relays; yields its libp2p address, and closes all of these transports at the end."""
    peer_id, credentials = run.member("peer")
    relay = P2pTransport(run.identities[peer_id], credentials, run.run_id, lambda _caller: "", caps=CircuitCaps())
    try:
        async with asyncio.timeout(WAIT_S):
            yield f"{await relay.start(End)}/p2p/{peer_id}"
    finally:
        await asyncio.gather(relay.close(), *(other.close() for other in others))


def _transport(run: LinkRun) -> tuple[PeerId, P2pTransport]:
    peer_id, credentials = run.member("peer")
    return peer_id, P2pTransport(run.identities[peer_id], credentials, run.run_id, lambda _caller: "")


async def test_js_libp2p_reaches_a_hidden_peer_through_a_relay(tmp_path: Path) -> None:
    run = LinkRun(tmp_path)
    peer_id, hidden = _transport(run)
    links: list[Link] = []

    def accept(link: Link) -> End:
        links.append(link)
        return Serving(link)

    async with _relay(run, hidden) as relay:
        reachable = asyncio.Event()
        hidden.on_circuits = lambda _circuits: reachable.set()
        await hidden.start(accept)
        hidden.want_relays([relay])
        await reachable.wait()
        chunk = {"version": 7, "encoding_id": KEYFRAME_ID, "index": INDEX}
        through = {"relay": relay, "address": f"{relay}/p2p-circuit", "peer_id": peer_id}
        _prepare(tmp_path, run, run.member("peer"), **chunk, **through)
        found, problems = await _fetched(tmp_path)
        assert not problems
        assert found["limited"], "js-libp2p knows that it is relayed, and within limits"
        assert found["sha256"] == hashlib.sha256(CHUNK).hexdigest()
        assert [link.transport for link in links] == ["relayed"]


async def test_js_libp2p_is_reached_through_a_relay_where_it_has_a_reservation(tmp_path: Path) -> None:
    run = LinkRun(tmp_path)
    _, dialler = _transport(run)
    theirs = run.member("peer")
    (tmp_path / "chunk").write_bytes(CHUNK)
    async with _relay(run, dialler) as relay:
        _prepare(tmp_path, run, theirs, relay=relay)
        process = await _started("serve_chunk.mjs", tmp_path)
        assert process.stdout is not None
        try:
            address = json.loads(await process.stdout.readline())["address"]
            assert address == f"{relay}/p2p-circuit/p2p/{theirs[0]}"
            link = await dialler.dial(theirs[0], address)
            end = End(link)
            link.start(end)
            assert link.transport == "relayed"
            link.send(pb.LinkMessage(request=pb.Request(version=7, encoding_id=KEYFRAME_ID, indices=[INDEX])))
            frame = await end.chunk()
        finally:
            await dialler.close()
            _, problems = await process.communicate(b"")
        assert (frame.version, frame.index, bytes(frame.payload)) == (7, INDEX, CHUNK)
        assert not problems.decode()
