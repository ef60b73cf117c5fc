"""Connect the two ends of a link over a socket pair, with a core that records what it is asked."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

from coordinator.core.events.actions import AnswerUpload
from coordinator.core.events.events import Event, PeerJoined
from coordinator.link import frames
from coordinator.link.connection import LinkConnection
from coordinator.link.core_end import CoreEnd, CoreEndSettings
from coordinator.link.gateway_end import RemoteCore
from coordinator.rpc.core_link import LocalCore, Opening
from coordinator.shell.pending_calls import Answered
from coordinator.shell.sessions import Channel, PeerChannel
from rollcast.runtime.errors import RollcastError
from rollcast.wire.ids import LeaseId, PeerId, RunId, UploadId
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.rollouts import Rollout
from rollcast.wire.routes import RouteShape

WAIT_S = 20.0
ALICE, BOB = PeerId("alice"), PeerId("bob")
SHAPE = RouteShape(2, 8, 2)
WELCOME = pb.CoordinatorMessage(welcome=pb.Welcome(run_id="run"))


class RecordingCore:
    """Stands for LocalCore: admits whom ``refusals`` does not name, and keeps what it hears."""

    def __init__(self) -> None:
        self.welcome_digest = b"welcome"
        self.is_interrupted = False
        self.refusals: dict[PeerId, Exception] = {}
        self.channels: dict[PeerId, Channel] = {}
        self.openings: list[Opening] = []
        self.events: list[Event] = []
        self.closed: list[tuple[PeerId, str, bool]] = []
        self.uploads: list[Rollout] = []
        self.problems: list[str] = []
        self.answers: list[Answered] = []
        self.renewals: list[bytes] = []
        self.accusations: list[pb.Accusation] = []
        self.failures: list[Exception] = []
        self.may_open = asyncio.Event()
        self.may_open.set()

    async def open(self, opening: Opening, channel: Channel) -> str:
        self.openings.append(opening)
        await self.may_open.wait()
        if (refusal := self.refusals.get(channel.peer_id)) is not None:
            raise refusal
        self.channels[channel.peer_id] = channel
        if not opening.resumed:
            channel.send(WELCOME)
        return f"invite of {channel.peer_id}"

    def close(self, channel: Channel) -> None:
        self.closed.append((channel.peer_id, channel.ended_because, channel.said_goodbye))

    def apply(self, peer_id: PeerId, event: Event) -> None:
        self.events.append(event)

    async def accused(self, accuser: PeerId, message: pb.Accusation) -> None:
        self.accusations.append(message)
        if not message.culprit_peer_id:
            raise RollcastError("an accusation names no peer")

    async def renew(self, channel: Channel, csr_pem: bytes) -> None:
        self.renewals.append(csr_pem)
        channel.send(pb.CoordinatorMessage(certificate=pb.Certificate(certificate_pem=b"new")))

    async def route_shape(self) -> RouteShape | None:
        return SHAPE

    def upload(self, peer_id: PeerId, rollout: Rollout, answered: Answered) -> None:
        self.uploads.append(rollout)
        self.answers.append(answered)

    def upload_malformed(self, peer_id: PeerId, message: pb.Rollout, problem: str, answered: Answered) -> None:
        self.problems.append(problem)
        self.answers.append(answered)

    def accept(self, number: int = -1) -> None:
        self.answers[number](AnswerUpload(UploadId(0), LeaseId(1), 0, True, ""))

    def fail(self, error: Exception) -> None:
        self.failures.append(error)


async def tokenizer() -> tuple[str, bytes] | None:
    return "hash", b"frame"


SETTINGS = CoreEndSettings(
    RunId("run"), b"ca", lambda csr, peer_id, hosts: b"certificate of " + csr, tokenizer, router_replay=True
)


def hello(**changes: Any) -> frames.Hello:
    values = {"format": frames.FORMAT, "software": "rollcast", "name": "west", "peer_id": "", "csr_pem": b"csr"}
    return frames.Hello(**{**values, "hosts": ("h",), **changes})


class Ends:
    """A gateway that may be linked to one core after another."""

    def __init__(self) -> None:
        self.readied: list[frames.Ready] = []
        self.gateway = RemoteCore(hello, self.readied.append)
        self.core = RecordingCore()
        self.end: CoreEnd | None = None
        self.ends: set[CoreEnd] = set()
        self.link: LinkConnection | None = None
        self.ended: asyncio.Future[str] | None = None

    async def connect(self) -> None:
        """Link the gateway to ``core``, and wait until both know."""
        linked = len(self.readied)
        self.end = CoreEnd(cast(LocalCore, self.core), SETTINGS, self.ends)
        self.link, self.ended = self.gateway.new_link()
        await connect(self.end.link, self.link)
        self.gateway.greet(self.link)
        await until(lambda: len(self.readied) > linked)

    async def cut(self) -> None:
        """Cut the link, and wait until both ends know."""
        assert self.link is not None
        assert self.ended is not None
        self.link.abort("cut")
        await self.ended
        await until(lambda: not self.ends)

    async def session(self, peer_id: PeerId = ALICE) -> PeerChannel:
        """Open a session through the gateway, and take its Welcome."""
        channel = PeerChannel(peer_id, "peer")
        await self.gateway.open(Opening(joined(peer_id), "", "ipv4:192.0.2.7:4000"), channel)
        assert await channel.next() == WELCOME
        return channel


def joined(peer_id: PeerId) -> PeerJoined:
    return PeerJoined(peer_id, "peer", "attic", "", 8, "CPU")


async def connect(one: asyncio.Protocol, other: asyncio.Protocol) -> None:
    loop, (left, right) = asyncio.get_running_loop(), socket.socketpair()
    await loop.create_connection(lambda: one, sock=left)
    await loop.create_connection(lambda: other, sock=right)


async def until(done: Callable[[], bool]) -> None:
    """Wait until something is so that the other end of a socket brings about."""
    async with asyncio.timeout(WAIT_S):
        while not done():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


@asynccontextmanager
async def linked() -> AsyncIterator[Ends]:
    """Yield a gateway that is linked to a recording core."""
    ends = Ends()
    await ends.connect()
    try:
        yield ends
    finally:
        if ends.ends:
            await ends.cut()
