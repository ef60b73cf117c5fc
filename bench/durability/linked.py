"""Speak for thousands of peers over one link to a coordinator, as a gateway does, without TLS and gRPC.

On a machine with few cores a gateway and the TLS of its peers take the time that the coordinator needs. Over a link it
is given the same work, and the rest costs next to nothing.
"""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from bench.fleet.fleet import Fleet, FleetPeer
from coordinator.core.events.actions import AnswerUpload
from coordinator.link import frames
from coordinator.link.dialler import LinkDialler
from coordinator.link.gateway_end import RemoteCore
from coordinator.rpc.core_link import NotNow, Opening
from coordinator.rpc.peers import event_of, joined_of
from coordinator.shell.sessions import PeerChannel
from rollcast.runtime.errors import RollcastError
from rollcast.runtime.version import software_version
from rollcast.wire.identity.certificates import Caller
from rollcast.wire.identity.identity import Identity
from rollcast.wire.identity.tls import new_tls_key
from rollcast.wire.ids import Role, RunId
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.rollout_messages import received_rollout

LINK_TIMEOUT_S = 60.0
_ADDRESS = "ipv4:127.0.0.1:1"  # from which each peer seems to come
_INVITE = "bench"  # with which each seems to have joined, so that nobody looks it up


class _Channel(PeerChannel):
    """The session of a peer, whose messages reach it at once."""

    def __init__(self, fleet: LinkedFleet, peer: FleetPeer) -> None:
        super().__init__(peer.enrolment.peer_id, "peer")
        self._fleet = fleet
        self._peer = peer
        self.over = asyncio.Event()

    def send(self, message: pb.CoordinatorMessage) -> None:
        self._fleet.deliver(self._peer, message)

    def end(self, reason: str) -> None:
        super().end(reason)
        self.over.set()


class LinkedFleet(Fleet):
    """A fleet whose peers have their sessions, and upload, over one link; the origin dials the coordinator."""

    core: RemoteCore  # once it is linked

    async def link(self, socket: Path) -> None:
        """Link to the coordinator that listens for gateways at this path."""
        identity = Identity.generate()

        def hello() -> frames.Hello:
            csr_pem = new_tls_key().csr_pem()
            software = f"rollcast {software_version()}"
            return frames.Hello(frames.FORMAT, software, "bench", identity.peer_id, csr_pem, ("localhost",))

        ready = asyncio.Event()
        self.core = RemoteCore(hello, lambda _: ready.set())
        dialler = LinkDialler(self.core, [str(socket)], _no_tls, LINK_TIMEOUT_S, self._rng)
        self._start(dialler.run())
        async with asyncio.timeout(LINK_TIMEOUT_S):
            await ready.wait()

    def deliver(self, peer: FleetPeer, message: pb.CoordinatorMessage) -> None:
        """Take a message to a peer; what it answers is sent in the next turn of the loop."""
        self._loop.call_soon(self._receive, peer, message)

    async def _one_session(self, peer: FleetPeer) -> bool:
        if peer.role != "peer":
            return await super()._one_session(peer)
        hello = pb.PeerMessage.FromString(peer.hello_now())
        role: Role = "peer"
        caller = Caller(RunId(peer.enrolment.run_id), role, peer.enrolment.peer_id)
        channel = _Channel(self, peer)
        joined = replace(joined_of(caller, hello, ""), invite=_INVITE)
        try:
            await self.core.open(Opening(joined, "", _ADDRESS), channel)
        except (NotNow, RollcastError):
            return False
        self._opened(peer, self.core, self.core)
        try:
            await channel.over.wait()
        finally:
            self._closed(peer)
            self.core.close(channel)
        return True

    def _send(self, peer: FleetPeer, message: pb.PeerMessage) -> None:
        if peer.role != "peer":
            super()._send(peer, message)
        elif peer.writes is not None:
            self.core.apply(peer.enrolment.peer_id, event_of(peer.enrolment.peer_id, message))

    async def _verdict(self, peer: FleetPeer, upload: bytes) -> pb.RolloutVerdict | None:
        if peer.writes is None:
            return None
        answered: asyncio.Future[AnswerUpload] = self._loop.create_future()
        rollout = received_rollout(pb.RolloutUpload.FromString(upload).rollouts[0])
        self.core.upload(peer.enrolment.peer_id, rollout, partial(settle, answered))
        return self._counted(_verdict_of(await answered))


def settle(answered: asyncio.Future[AnswerUpload], answer: AnswerUpload) -> None:
    """Take an upload's answer, unless the peer that waited for it has been stopped meanwhile."""
    if not answered.done():
        answered.set_result(answer)


async def _no_tls() -> tuple[ssl.SSLContext, RunId]:
    raise AssertionError("a Unix socket has no TLS")


def _verdict_of(answer: AnswerUpload) -> pb.RolloutVerdict:
    values: dict[str, Any] = {"lease_id": answer.lease_id, "sample_index": answer.sample_index}
    return pb.RolloutVerdict(**values, accepted=answer.accepted, reason=answer.reason)
