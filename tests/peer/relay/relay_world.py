"""Run real relays in one process: mutual TLS on loopback, real stores, the coordinator's planner, a learner."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

from coordinator.core.broadcast.planner import PlanShape, RelayNode, RelayPlanner
from coordinator.shell.peer_sender import plan_message
from learner.publishing.origin_link import OriginLink
from learner.publishing.push import Push
from peer.config import LinkConfig, PeerConfig
from peer.links.direct import DirectTransport
from peer.links.transport import Link, LinkReceiver
from peer.relay.core.state.relay_state import RelaySettings
from peer.relay.relay import Relay
from rollcast.wire.identity.identity import Identity
from rollcast.wire.identity.tls import TlsCredentials
from rollcast.wire.ids import EncodingId, PeerId, StripeId, Version
from rollcast.wire.links.frames import NO_STRIPE, ChunkFrame, LinkFrame, LinkMessageFrame
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.versions.chunk_store import ChunkStore
from rollcast.wire.versions.chunks import bitmap_count
from rollcast.wire.versions.records import KEYFRAME_ID, VerifiedVersion
from rollcast.wire.versions.stored_encoding import StoredEncoding, store_error
from tests.peer.links.link_run import LinkRun
from tests.peer.versions import Published

WAIT_S = 40.0
# As in production, with less patience.
HASTY = partial(RelaySettings, late_s_least=0.1, list_patience_s=0.1, redial_first_s=0.05)


async def until(condition: Callable[[], object]) -> None:
    """Poll until a condition holds; the world's deadline ends a wait that is in vain."""
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0.002)


async def push_version(published: Published, origin: PeerId, address: str, credentials: TlsCredentials) -> None:
    """Push a version as the learner does; return once the origin acknowledges that it holds it."""
    link = await OriginLink.connect(address, origin, run_id=published.record.run_id, credentials=credentials)
    offered = [one for one in (published, published.over) if one is not None]
    lists = {(one.version, encoding_id): hashes for one in offered for encoding_id, hashes in one.chunk_lists.items()}
    states = {one.version: one for one in offered}
    async with link:
        push = Push(published.announcement, published.version, lists)
        await link.push(push, lambda version, encoding_id, index: states[version].chunk(index, encoding_id))


def disk_full(*_: object) -> bool:
    """Fail like a write to a full disk; tests put it in the place of a write."""
    raise store_error(Path("versions"), OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))


class Member:
    """One relay with its store.

    Args:
        settings: sections of a PeerConfig.
    """

    def __init__(self, world: World, name: str, settings: dict[str, Any]) -> None:
        self.name = name
        self.role = "origin" if name == "origin" else "peer"
        self.peer_id, self.credentials = world.run.member(self.role)
        self.address = ""
        self._world = world
        # Most tests push a version to the origin before anything else happens.
        link = {"stall_timeout_s": 1.0, "relay_on_arrival": False}
        fields = {"role": self.role, "link": link, "store": {"retry_s": 0.05}}
        self._config = PeerConfig.model_validate({**fields, **settings})
        self._open()

    def _open(self) -> None:
        keep = self._config.store
        self.store = ChunkStore(
            self._world.folder / self.name,
            keep.keep_versions,
            keep_deltas=keep.keep_deltas,
            in_memory=True,
            memory_only=keep.memory_only,
        )
        self.completed: list[Version] = []
        self.accusations: list[pb.Accusation] = []
        self.gave_up: list[Exception] = []
        self.relay = Relay(
            credentials=self.credentials,
            store=self.store,
            config=self._config,
            run_id=self._world.run.run_id,
            learner_public_key=self._world.learner.public_key,
            on_complete=self._on_complete,
            on_accuse=self.accusations.append,
            on_give_up=self.gave_up.append,
            coordinator_host=lambda: "127.0.0.1",
            identity=self._world.run.identities[self.peer_id],
        )

    async def start(self) -> None:
        self.address = await self.relay.start()

    async def stop(self) -> None:
        await self.relay.close()
        self.store.close()

    async def restart(self) -> None:
        """End the process and begin another one with what is on the disk."""
        await self.stop()
        self._open()
        await self.start()

    @property
    def report(self) -> pb.Heartbeat:
        return self.relay.stats().report

    @property
    def links(self) -> set[str]:
        """Return the peers that are linked to it."""
        return {link.peer_id for link in self.report.links}

    def state(self, version: int) -> bytes:
        stored = self.store.get(version)
        assert stored is not None
        return bytes(stored.state_bytes())

    def chunks_of(self, version: int, encoding_id: int = KEYFRAME_ID) -> int:
        stored = self.store.get(version, encoding_id)
        return 0 if stored is None else bitmap_count(stored.have)

    def _on_complete(self, verified: VerifiedVersion, stored: StoredEncoding) -> None:
        assert stored.state_held
        self.completed.append(verified.version)


class Puppet:
    """A process that the test controls. It dials the peers of its plan, and answers nothing by itself.

    Args:
        on_chunk, on_message: called with what comes.
    """

    def __init__(self, world: World, role: str, run: LinkRun | None = None) -> None:
        run = run or world.run
        self.role = role
        self.peer_id, self.credentials = run.member(role)
        self.identity = run.identities[self.peer_id]
        self.address = ""
        self.links: dict[PeerId, Link] = {}
        self.closed: list[tuple[str, str]] = []
        self.chunks: list[ChunkFrame] = []
        self.messages: list[pb.LinkMessage] = []
        self.on_chunk: Callable[[Link, ChunkFrame], None] = lambda _link, _frame: None
        self.on_message: Callable[[Link, pb.LinkMessage], None] = lambda _link, _message: None
        self._transport = DirectTransport(LinkConfig(), self.credentials, run.run_id, lambda _caller: "")

    async def start(self) -> None:
        self.address = await self._transport.start(self.accept)

    async def stop(self) -> None:
        await self._transport.close()

    def accept(self, link: Link) -> LinkReceiver:
        self.links[link.peer_id] = link
        return _PuppetEnd(self, link)

    async def dial(self, peer_id: PeerId, address: str) -> Link:
        link = await self._transport.dial(peer_id, address)
        link.start(self.accept(link))
        return link

    async def follow(self, plan: pb.RelayPlan) -> None:
        """Dial as a relay with this plan would."""
        for neighbour in plan.neighbours:
            if neighbour.we_dial and neighbour.peer_id not in self.links:
                await self.dial(PeerId(neighbour.peer_id), neighbour.address)

    def announce(self, link: Link, published: Published, encoding_id: EncodingId = KEYFRAME_ID) -> None:
        """Send announcement and chunk list, which go ahead of the chunks."""
        link.send(pb.LinkMessage(announcement=published.announcement))
        hashes = published.chunk_lists[encoding_id]
        body = pb.ChunkList(version=published.version, encoding_id=encoding_id, hashes=hashes)
        link.send(pb.LinkMessage(chunk_list=body))

    def send_chunks(
        self,
        link: Link,
        published: Published,
        indices: Sequence[int],
        stripe: StripeId = NO_STRIPE,
        change: Callable[[bytes], bytes] = bytes,
    ) -> None:
        for index in indices:
            link.send_chunk(published.version, KEYFRAME_ID, index, change(published.chunk(index)), stripe)

    def of_kind(self, kind: str) -> list[Any]:
        """Return the messages of one kind that came, in order."""
        return [getattr(message, kind) for message in self.messages if message.WhichOneof("body") == kind]


class _PuppetEnd:
    def __init__(self, puppet: Puppet, link: Link) -> None:
        self._puppet = puppet
        self._link = link

    def frames(self, frames: Sequence[LinkFrame]) -> None:
        for frame in frames:
            match frame:
                case ChunkFrame():
                    self._puppet.chunks.append(frame)
                    self._puppet.on_chunk(self._link, frame)
                case LinkMessageFrame(message=message):
                    self._puppet.messages.append(message)
                    self._puppet.on_message(self._link, message)

    def drained(self) -> None:
        pass

    def closed(self, reason: str, code: str) -> None:
        self._puppet.links.pop(self._link.peer_id, None)
        self._puppet.closed.append((reason, code))


class World:
    """A run: its certificates, the learner's key, members and puppets."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.run = LinkRun(folder)
        self.learner = Identity.generate()
        self.members: dict[str, Member] = {}
        self.puppets: list[Puppet] = []
        self._planner = RelayPlanner(PlanShape())

    async def add(self, *names: str, **settings: Any) -> list[Member]:
        """Add relays; the one called origin has that role."""
        added = [Member(self, name, settings) for name in names]
        for member in added:
            self.members[member.name] = member
            await member.start()
        return added

    async def origin_and_holder(self) -> tuple[Member, Member, Published]:
        """Add an origin, and a peer "a" that has version 0 from it; return both and the version."""
        origin, a = await self.add("origin", "a")
        await self.plan(origin, a)
        published = self.published(0)
        await self.publish(published)
        await until(lambda: a.completed)
        return origin, a, published

    async def puppet(self, role: str = "peer") -> Puppet:
        puppet = Puppet(self, role)
        self.puppets.append(puppet)
        await puppet.start()
        return puppet

    async def plan(self, *nodes: Member | Puppet) -> None:
        """Plan for these nodes, send each of them its plan, and wait until all are linked."""
        relay_nodes = [RelayNode(node.peer_id, node.role, node.address, may_relay=True) for node in nodes]
        by_id = {node.peer_id: node for node in nodes}
        for node in nodes:
            self._planner.discard(node.peer_id)
        for action in self._planner.replan(relay_nodes):
            node, plan = by_id[action.peer_id], plan_message(action).relay_plan
            if isinstance(node, Member):
                node.relay.apply_plan(plan)
            else:
                await node.follow(plan)
        await until(lambda: all(self._linked(node, nodes) for node in nodes))

    def _linked(self, node: Member | Puppet, nodes: Sequence[Member | Puppet]) -> bool:
        """Return whether a node of a mesh is linked to all others."""
        others = {other.peer_id for other in nodes} - {node.peer_id}
        return others <= set(node.links)

    def published(
        self, version: int, base: Published | None = None, *, broken: bool = False, over: Published | None = None
    ) -> Published:
        return Published(self.run.run_id, self.learner, version, base, broken=broken, over=over)

    async def push(self, published: Published) -> None:
        """Push a version as the learner does; return once the origin acknowledges that it holds it."""
        credentials = self.run.credentials(self.learner.peer_id, "learner")
        origin = self.members["origin"]
        await push_version(published, origin.peer_id, origin.address, credentials)

    def announce(self, published: Published, *members: Member) -> None:
        """Announce the version as the coordinator does, to these members or to all."""
        for member in members or self.members.values():
            member.relay.announce(published.announcement)

    async def publish(self, published: Published) -> None:
        """Push the version, then announce it to all."""
        await self.push(published)
        self.announce(published)

    @asynccontextmanager
    async def link_to(self, member: Member, credentials: TlsCredentials) -> AsyncIterator[None]:
        """Open a link with these credentials."""
        transport = DirectTransport(LinkConfig(), credentials, self.run.run_id, lambda _caller: "")
        try:
            await transport.dial(member.peer_id, member.address)
            yield
        finally:
            await transport.close()


@asynccontextmanager
async def relay_world(folder: Path) -> AsyncIterator[World]:
    world = World(folder)
    hasty = mock.patch.multiple("peer.relay.relay", RelaySettings=HASTY, _TICK_S=0.01)
    try:
        async with asyncio.timeout(WAIT_S):
            with hasty:
                yield world
    finally:
        for puppet in world.puppets:
            await puppet.stop()
        for member in world.members.values():
            await member.stop()
