"""Real relays in one process: mutual TLS on loopback, real stores, a learner-like client."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from peer.config import LinkConfig
from peer.direct_transport import DirectTransport
from peer.relay import Relay
from peer.transport import Link, LinkHandler
from rollcast.runtime.errors import RollcastError, StoreError, WrongKey
from rollcast.wire.chunk_store import ChunkStore
from rollcast.wire.chunks import BytesLike, bitmap_count, bitmap_has, chunk_list
from rollcast.wire.identity import Identity
from rollcast.wire.ids import Epoch, PeerId, RunId, Version
from rollcast.wire.link import LinkFrame, LinkMessageFrame
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.records import (
    VerifiedVersion,
    VersionRecord,
    keyframe_manifest,
    parse_announcement,
    sign_version,
    state_hash,
    tensor_table,
)
from rollcast.wire.stored_encoding import StoredEncoding, store_error
from rollcast.wire.tls import TlsCredentials
from tests.peer.link_run import LinkRun

CHUNK_BYTES = 4096
CHUNKS = 40
WAIT_S = 20.0


class Published:
    """A signed version of random bytes."""

    def __init__(self, run_id: RunId, learner: Identity, version: int, parent_hash: bytes = b"") -> None:
        self.state = os.urandom(CHUNK_BYTES * (CHUNKS - 1) + 100)
        self.version = version
        record = VersionRecord(
            run_id,
            Epoch(0),
            Version(version),
            parent_hash,
            state_hash(self.state),
            len(self.state),
            tensor_table([("w", "uint8", (len(self.state),))]),
            "{}",
        )
        self.hashes = chunk_list(self.state, CHUNK_BYTES)
        manifest = keyframe_manifest(record, self.hashes, CHUNK_BYTES)
        self.announcement = sign_version(record, [manifest], learner)

    def chunk(self, index: int) -> bytes:
        return self.state[index * CHUNK_BYTES : (index + 1) * CHUNK_BYTES]


class TamperedLink:
    """Passes everything on, after ``tamper`` looked at each chunk that is sent."""

    def __init__(self, link: Link, transport: TamperedTransport) -> None:
        self._link = link
        self._transport = transport
        self.peer_id, self.role, self.dialled = link.peer_id, link.role, link.dialled

    @property
    def bytes_sent(self) -> int:
        return self._link.bytes_sent

    @property
    def bytes_received(self) -> int:
        return self._link.bytes_received

    async def send(self, message: pb.LinkMessage) -> None:
        await self._link.send(message)

    async def send_chunk(self, version: int, encoding_id: int, index: int, payload: BytesLike) -> None:
        await self._transport.gate.acquire()
        await self._link.send_chunk(version, encoding_id, index, self._transport.tamper(index, payload))

    async def receive(self) -> LinkFrame:
        return await self._link.receive()

    async def close(self) -> None:
        await self._link.close()


class TamperedTransport:
    """A direct transport whose chunks may be changed, and which sends only as many as ``allow`` lets it."""

    def __init__(self, direct: DirectTransport) -> None:
        self._direct = direct
        self.gate = asyncio.Semaphore(1 << 30)
        self.tamper: Callable[[int, BytesLike], BytesLike] = lambda _index, payload: payload

    def allow(self, chunks: int) -> None:
        for _ in range(chunks):
            self.gate.release()

    async def start(self, on_link: LinkHandler) -> str:
        async def tampered(link: Link) -> None:
            await on_link(TamperedLink(link, self))

        return await self._direct.start(tampered)

    async def dial(self, peer_id: PeerId, address: str) -> Link:
        return TamperedLink(await self._direct.dial(peer_id, address), self)

    def renew(self, credentials: TlsCredentials) -> None:
        self._direct.renew(credentials)

    async def close(self) -> None:
        await self._direct.close()


class Member:
    """One relay with its store."""

    def __init__(self, fleet: Fleet, name: str, role: str) -> None:
        self.name = name
        self.role = role
        self.folder = fleet.folder / name
        self.store = ChunkStore(self.folder, keep_versions=4)
        self.peer_id, self.credentials = fleet.run.member(role)
        self.completed: list[Version] = []
        self.accusations: list[pb.Accusation] = []
        self.gave_up: list[StoreError] = []
        config = LinkConfig(stall_timeout_s=fleet.stall_timeout_s, credit_chunks=8)
        self.transport = TamperedTransport(
            DirectTransport(config, self.credentials, fleet.run.run_id, lambda caller: self.relay.admit(caller))
        )
        self.relay = Relay(
            credentials=self.credentials,
            store=self.store,
            config=config,
            store_retry_s=0.1,
            run_id=fleet.run.run_id,
            learner_public_key=fleet.learner.public_key,
            role=role,
            on_complete=self._completed,
            on_accuse=self.accusations.append,
            on_give_up=self.gave_up.append,
            transport=self.transport,
        )
        self.address = ""

    def _completed(self, verified: VerifiedVersion, stored: StoredEncoding) -> None:
        assert stored.finished
        self.completed.append(verified.version)

    def held_bytes(self, version: int) -> bytes:
        stored = self.store.get(version)
        assert stored is not None
        return bytes(stored.state_bytes())

    def chunks_of(self, version: int) -> int:
        stored = self.store.get(version)
        return 0 if stored is None else bitmap_count(stored.have)

    def neighbour(self, we_dial: bool) -> pb.PlanNeighbour:
        address = self.address if we_dial else ""
        return pb.PlanNeighbour(peer_id=self.peer_id, role=self.role, address=address, we_dial=we_dial)


class Fleet:
    """A run: an origin, peers, the learner's key."""

    def __init__(self, folder: Path, stall_timeout_s: float = 5.0) -> None:
        self.folder = folder
        self.stall_timeout_s = stall_timeout_s
        self.run = LinkRun(folder)
        self.learner = Identity.generate()
        self.members: dict[str, Member] = {}
        self.plan_id = 0

    async def add(self, name: str) -> Member:
        member = Member(self, name, "origin" if name == "origin" else "peer")
        self.members[name] = member
        member.address = await member.relay.start()
        return member

    def chain(self, *names: str, parent_dials: bool = False) -> None:
        """Each member is the parent of the next; everybody's fallback is the origin."""
        self.plan_id += 1
        members = [self.members[name] for name in names]
        for place, member in enumerate(members):
            parents = members[place - 1 : place] if place else []
            children = members[place + 1 : place + 2]
            fallbacks = [self.members["origin"]] if place > 1 else []
            member.relay.apply_plan(
                pb.RelayPlan(
                    plan_id=self.plan_id,
                    parents=[parent.neighbour(not parent_dials) for parent in parents],
                    children=[child.neighbour(parent_dials) for child in children],
                    fallbacks=[fallback.neighbour(True) for fallback in fallbacks],
                )
            )

    def announce(self, published: Published, *names: str) -> None:
        for name in names:
            self.members[name].relay.announce(published.announcement)

    @asynccontextmanager
    async def link_to(self, name: str, credentials: TlsCredentials | None = None) -> AsyncIterator[Link]:
        """A link of our own, as the learner unless other credentials are given."""
        mine = credentials or self.run.credentials(self.learner.peer_id, "learner")
        client = DirectTransport(LinkConfig(), mine, self.run.run_id, lambda _caller: "")
        member = self.members[name]
        try:
            yield await client.dial(member.peer_id, member.address)
        finally:
            await client.close()

    async def push(self, published: Published) -> None:
        """Publish as the learner does: announce, send the list, spend credit, wait for the acknowledgement."""
        async with self.link_to("origin") as link:
            await push_on(link, published)


async def push_on(link: Link, published: Published) -> None:
    await link.send(pb.LinkMessage(announcement=published.announcement))
    missing = list(range(CHUNKS))
    credit = 0
    while True:
        frame = await link.receive()
        assert isinstance(frame, LinkMessageFrame)
        match frame.message.WhichOneof("body"):
            case "want":
                hashes = pb.ChunkList(version=published.version, hashes=published.hashes)
                await link.send(pb.LinkMessage(chunk_list=hashes))
            case "have":
                missing = [index for index in missing if not bitmap_has(frame.message.have.bitmap, index)]
            case "credit":
                credit += frame.message.credit.chunks
            case "held":
                assert frame.message.held.version == published.version
                return
        while credit and missing:
            credit -= 1
            index = missing.pop(0)
            await link.send_chunk(published.version, 0, index, published.chunk(index))


async def until(condition: Callable[[], bool]) -> None:
    """Poll; the fleet's deadline ends a wait that is in vain."""
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0.005)


@asynccontextmanager
async def fleet_of(folder: Path, *names: str, stall_timeout_s: float = 5.0) -> AsyncIterator[Fleet]:
    fleet = Fleet(folder, stall_timeout_s)
    try:
        for name in names:
            await fleet.add(name)
        async with asyncio.timeout(WAIT_S):
            yield fleet
    finally:
        for member in fleet.members.values():
            await member.relay.close()
            member.store.close()


@pytest.mark.parametrize("parent_dials", [False, True])
async def test_a_published_version_reaches_all_through_a_chain(tmp_path: Path, parent_dials: bool) -> None:
    async with fleet_of(tmp_path, "origin", "a", "b", "c") as fleet:
        fleet.chain("origin", "a", "b", "c", parent_dials=parent_dials)
        for version in (0, 1):
            published = Published(fleet.run.run_id, fleet.learner, version)
            await fleet.push(published)
            assert fleet.members["origin"].held_bytes(version) == published.state, "acknowledged, so it is durable"
            fleet.announce(published, "a", "b", "c")
            await until(lambda version=version: all(version in fleet.members[name].completed for name in "abc"))  # type: ignore[misc]
            assert all(fleet.members[name].held_bytes(version) == published.state for name in "abc")
        stats = [fleet.members[name].relay.stats() for name in "abc"]
        from_origin = sum(one.chunk_bytes_from_origin for one in stats)
        from_peers = sum(one.chunk_bytes_from_peers for one in stats)
        assert from_origin == 2 * len(published.state)
        assert from_peers == 4 * len(published.state)
        assert fleet.members["origin"].relay.stats().chunk_bytes_sent == from_origin


async def test_chunks_are_passed_on_while_the_rest_is_still_coming(tmp_path: Path) -> None:
    async with fleet_of(tmp_path, "origin", "a", "b") as fleet:
        origin, a, b = fleet.members.values()
        origin.transport.gate = asyncio.Semaphore(10)
        fleet.chain("origin", "a", "b")
        published = Published(fleet.run.run_id, fleet.learner, 0)
        await fleet.push(published)
        fleet.announce(published, "a", "b")
        await until(lambda: b.chunks_of(0) == 10)
        assert a.chunks_of(0) == 10, "the source has sent no more"
        assert not a.completed
        origin.transport.allow(CHUNKS)
        await until(lambda: bool(a.completed and b.completed))


async def test_a_corrupting_relay_is_detected_accused_and_bypassed(tmp_path: Path) -> None:
    async with fleet_of(tmp_path, "origin", "a", "b", "c") as fleet:
        fleet.chain("origin", "a", "b", "c")
        a, b, c = (fleet.members[name] for name in "abc")
        a.transport.tamper = lambda index, payload: bytes(payload)[:-1] + b"\x00" if index == 7 else payload
        published = Published(fleet.run.run_id, fleet.learner, 0)
        await fleet.push(published)
        fleet.announce(published, "a", "b", "c")
        await until(lambda: all(member.completed for member in (a, b, c)))
        assert [accusation.culprit_peer_id for accusation in b.accusations] == [a.peer_id]
        assert b.accusations[0].chunk_index == 7
        assert (a.accusations, c.accusations) == ([], []), "nobody honest is accused"
        assert b.relay.stats().chunks_rejected == 1
        assert b.held_bytes(0) == c.held_bytes(0) == published.state


async def test_a_killed_parent_is_bypassed(tmp_path: Path) -> None:
    async with fleet_of(tmp_path, "origin", "a", "b") as fleet:
        fleet.chain("origin", "a", "b")
        a, b = fleet.members["a"], fleet.members["b"]
        a.transport.gate = asyncio.Semaphore(5)
        published = Published(fleet.run.run_id, fleet.learner, 0)
        await fleet.push(published)
        fleet.announce(published, "a", "b")
        await until(lambda: b.chunks_of(0) >= 5)
        await a.relay.close()
        await until(lambda: bool(b.completed))
        stats = b.relay.stats()
        assert stats.chunk_bytes_from_peers >= 5 * CHUNK_BYTES
        assert stats.chunk_bytes_from_origin <= len(published.state) - 5 * CHUNK_BYTES, "nothing is fetched twice"


async def test_a_parent_that_withholds_is_hedged(tmp_path: Path) -> None:
    async with fleet_of(tmp_path, "origin", "a", "b", stall_timeout_s=0.3) as fleet:
        fleet.chain("origin", "a", "b")
        a, b = fleet.members["a"], fleet.members["b"]
        a.transport.gate = asyncio.Semaphore(3)
        published = Published(fleet.run.run_id, fleet.learner, 0)
        await fleet.push(published)
        fleet.announce(published, "a", "b")
        await until(lambda: bool(b.completed))
        assert b.relay.stats().chunk_bytes_from_origin > 0
        assert b.accusations == []


async def test_a_restarted_origin_and_peer_go_on_from_their_stores(tmp_path: Path) -> None:
    async with fleet_of(tmp_path, "origin", "a", "b") as fleet:
        fleet.chain("origin", "a", "b")
        published = Published(fleet.run.run_id, fleet.learner, 0)
        fleet.members["origin"].transport.gate = asyncio.Semaphore(25)
        await fleet.push(published)
        fleet.announce(published, "a")
        await until(lambda: fleet.members["a"].chunks_of(0) == 25)
        for name in ("origin", "a"):
            await fleet.members[name].relay.close()
            fleet.members[name].store.close()
            await fleet.add(name)
        a = fleet.members["a"]
        fleet.chain("origin", "a", "b")
        fleet.announce(published, "a", "b")
        await until(lambda: bool(a.completed and fleet.members["b"].completed))
        assert a.relay.stats().chunk_bytes_from_origin == len(published.state) - 25 * CHUNK_BYTES
        assert a.held_bytes(0) == published.state


async def test_a_version_that_is_held_already_is_reported_and_acknowledged_again(tmp_path: Path) -> None:
    async with fleet_of(tmp_path, "origin", "a") as fleet:
        fleet.chain("origin", "a")
        published = Published(fleet.run.run_id, fleet.learner, 0)
        await fleet.push(published)
        await fleet.push(published)
        assert fleet.members["origin"].completed == [0]
        fleet.announce(published, "a")
        await until(lambda: bool(fleet.members["a"].completed))
        await fleet.members["a"].relay.close()
        again = await fleet.add("a")
        assert again.completed == []
        fleet.announce(published, "a")
        assert again.completed == [0]


@pytest.mark.parametrize("what", ["run", "learner"])
async def test_stored_versions_of_another_run_or_learner_are_removed(tmp_path: Path, what: str) -> None:
    async with fleet_of(tmp_path, "origin", "a") as fleet:
        earlier, run_id = fleet.learner, fleet.run.run_id
        other_learner = Identity.generate() if what == "learner" else earlier
        other = Published(RunId("run-0") if what == "run" else run_id, other_learner, 50)
        for member in list(fleet.members.values()):
            await member.relay.close()
            put(member.store, other)
            assert member.store.versions() == [50]
            member.store.close()
            member = await fleet.add(member.name)
            assert member.store.versions() == []
        fleet.chain("origin", "a")
        published = Published(run_id, earlier, 0)
        await fleet.push(published)
        fleet.announce(published, "a")
        await until(lambda: bool(fleet.members["a"].completed))
        again = Published(run_id, earlier, 50)
        await fleet.push(again)
        fleet.announce(again, "a")
        await until(lambda: fleet.members["a"].completed == [0, 50])


def put(store: ChunkStore, published: Published) -> None:
    """A version as an earlier life of the process left it."""
    verified = parse_announcement(published.announcement)
    encoding = store.begin(verified, verified.keyframe, published.hashes)
    for index in range(CHUNKS):
        encoding.write(index, published.chunk(index))
    encoding.finish()


async def test_a_disk_that_is_full_for_a_while_is_survived(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with fleet_of(tmp_path, "origin", "a") as fleet:
        fleet.chain("origin", "a")
        a = fleet.members["a"]
        published = Published(fleet.run.run_id, fleet.learner, 0)
        await fleet.push(published)
        with monkeypatch.context() as patch:
            patch.setattr(StoredEncoding, "write", disk_full)
            fleet.announce(published, "a")
            await until(lambda: bool(a.relay.stats().store_failure))
        await until(lambda: bool(a.completed))
        assert a.relay.stats().store_failure == ""
        assert a.gave_up == []


async def test_a_disk_that_stays_full_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with fleet_of(tmp_path, "origin", "a") as fleet:
        fleet.chain("origin", "a")
        published = Published(fleet.run.run_id, fleet.learner, 0)
        await fleet.push(published)
        monkeypatch.setattr(StoredEncoding, "write", disk_full)
        fleet.announce(published, "a")
        a = fleet.members["a"]
        await until(lambda: bool(a.gave_up))
        assert a.relay.stats().store_failure.startswith("cannot store version 0: disk full: ")
        assert "cannot store version 0" in a.gave_up[0].what


def disk_full(*_: object) -> bool:
    raise store_error(Path("versions"), OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))


async def test_only_the_learners_signature_counts(tmp_path: Path) -> None:
    async with fleet_of(tmp_path, "origin", "a") as fleet:
        forged = Published(fleet.run.run_id, Identity.generate(), 0)
        with pytest.raises(WrongKey):
            fleet.announce(forged, "a")
        async with fleet.link_to("origin") as link:
            await link.send(pb.LinkMessage(announcement=forged.announcement))
            assert (await message_on(link)).error.code == WrongKey.code
        assert fleet.members["origin"].relay.stats().receiving_version is None


async def test_the_origin_takes_versions_from_the_learner_only(tmp_path: Path) -> None:
    async with fleet_of(tmp_path, "origin", "a") as fleet:
        published = Published(fleet.run.run_id, fleet.learner, 0)
        async with fleet.link_to("origin", fleet.members["a"].credentials) as link:
            await link.send(pb.LinkMessage(announcement=published.announcement))
            await link.send(pb.LinkMessage(want=pb.Want(version=0)))
            assert (await message_on(link)).have.chunk_count == 0, "the announcement of a peer was passed over"


async def test_a_peer_accepts_no_link_from_the_learner(tmp_path: Path) -> None:
    async with fleet_of(tmp_path, "origin", "a") as fleet:
        with pytest.raises(RollcastError, match="refused"):
            async with fleet.link_to("a"):
                pass


async def test_another_runs_certificate_is_refused(tmp_path: Path) -> None:
    async with fleet_of(tmp_path, "origin") as fleet:
        other = LinkRun(tmp_path, "run-2").credentials(fleet.learner.peer_id, "learner")
        with pytest.raises(RollcastError):
            async with fleet.link_to("origin", other):
                pass
        assert fleet.members["origin"].relay.stats().links == ()


async def test_a_chunk_nobody_paid_for_ends_the_link(tmp_path: Path) -> None:
    async with fleet_of(tmp_path, "origin") as fleet, fleet.link_to("origin") as link:
        await link.send_chunk(3, 0, 0, b"x")
        assert "without credit" in (await message_on(link)).error.what


async def message_on(link: Link) -> pb.LinkMessage:
    frame = await link.receive()
    assert isinstance(frame, LinkMessageFrame)
    return frame.message
