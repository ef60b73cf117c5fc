"""Script a coordinator with real gRPC over mutual TLS on loopback."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc

from rollcast.runtime.waits import deadline
from rollcast.wire.identity.identity import Identity
from rollcast.wire.identity.tls import SERVER_OPTIONS, RunCA, TlsCredentials, new_tls_key
from rollcast.wire.ids import RunId
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.proto import rollcast_pb2_grpc
from rollcast.wire.protocol import range_to_pb
from rollcast.wire.rollout_messages import lease_to_pb, rollout_from_pb
from rollcast.wire.rollouts import Rollout

RUN_ID = RunId("run-1")
LEARNER_KEY = bytes(range(32))
WAIT_S = 10.0


def welcome(**changes: Any) -> pb.CoordinatorMessage:
    fields: dict[str, Any] = {
        "protocol": range_to_pb(),
        "run_id": RUN_ID,
        "learner_public_key": LEARNER_KEY,
        "heartbeat_interval_s": 0.05,
        "heartbeat_timeout_s": 5.0,
        "software": "scripted",
    }
    return pb.CoordinatorMessage(welcome=pb.Welcome(**{**fields, **changes}))


def leases(*grants: Any) -> pb.CoordinatorMessage:
    return pb.CoordinatorMessage(leases=pb.Leases(leases=[lease_to_pb(grant) for grant in grants]))


class ScriptedSession:
    """The coordinator's end of one session."""

    def __init__(self) -> None:
        self.received: list[pb.PeerMessage] = []
        self._changed = asyncio.Event()
        self._outgoing: asyncio.Queue[pb.CoordinatorMessage | None] = asyncio.Queue()
        self.ended = asyncio.Event()
        self.status = grpc.StatusCode.OK
        self.reads = asyncio.Event()  # while it is clear, the peer's messages stay in the connection
        self.reads.set()

    def send(self, message: pb.CoordinatorMessage) -> None:
        self._outgoing.put_nowait(message)

    def end(self, code: grpc.StatusCode = grpc.StatusCode.OK) -> None:
        """Close the stream with this status."""
        self.status = code
        self._outgoing.put_nowait(None)

    async def expect(self, body: str, where: Callable[[Any], bool] = lambda _: True) -> Any:
        """Return the first message of this kind, received so far or from now on, for which ``where`` holds."""
        async with deadline(WAIT_S, f"a message {body}"):
            while True:
                self._changed.clear()
                for message in self.received:
                    if message.WhichOneof("body") == body and where(getattr(message, body)):
                        return getattr(message, body)
                await self._changed.wait()

    def kinds(self) -> list[str | None]:
        return [message.WhichOneof("body") for message in self.received]

    async def serve(self, requests: AsyncIterator[pb.PeerMessage]) -> AsyncIterator[pb.CoordinatorMessage]:
        reader = asyncio.create_task(self._read(requests))
        try:
            while (message := await self._outgoing.get()) is not None:
                yield message
        finally:
            reader.cancel()
            self.ended.set()

    async def _read(self, requests: AsyncIterator[pb.PeerMessage]) -> None:
        async for message in requests:
            self.received.append(message)
            self._changed.set()
            await self.reads.wait()
        self.end()


class ScriptedCoordinator(rollcast_pb2_grpc.CoordinatorServicer):
    """A coordinator whose sessions and uploads the test answers."""

    def __init__(self, ca: RunCA) -> None:
        self.ca = ca
        self.address = ""
        self.sessions: asyncio.Queue[ScriptedSession] = asyncio.Queue()
        self.hang_ups = 0  # sessions to end before any message
        self.uploaded: list[Rollout] = []
        self.judge: Callable[[Rollout], str] = lambda _: ""
        self.streams = 0  # of uploads, so far
        self.answers = asyncio.Event()  # while it is clear, uploads wait for their verdicts
        self.answers.set()
        self._server: grpc.aio.Server | None = None

    async def start(self, port: int = 0) -> None:
        key = new_tls_key()
        certificate = self.ca.issue_coordinator(key.csr_pem(), ["127.0.0.1"])
        credentials = TlsCredentials(self.ca.certificate_pem, certificate, key.private_pem)
        self._server = grpc.aio.server(options=SERVER_OPTIONS)
        rollcast_pb2_grpc.add_CoordinatorServicer_to_server(self, self._server)
        bound = self._server.add_secure_port(f"127.0.0.1:{port}", credentials.grpc_server_credentials())
        self.address = f"127.0.0.1:{bound}"
        await self._server.start()

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop(0)

    async def next_session(self, first: pb.CoordinatorMessage | None = None) -> ScriptedSession:
        """Return the next session that opens; ``first`` (a welcome unless given) is sent to it."""
        async with deadline(WAIT_S, "a session"):
            session = await self.sessions.get()
        session.send(welcome() if first is None else first)
        return session

    async def Session(
        self, request_iterator: AsyncIterator[pb.PeerMessage], context: Any
    ) -> AsyncIterator[pb.CoordinatorMessage]:
        if self.hang_ups:
            self.hang_ups -= 1
            return
        session = ScriptedSession()
        self.sessions.put_nowait(session)
        async for message in session.serve(request_iterator):
            yield message
        if session.status is not grpc.StatusCode.OK:
            await context.abort(session.status, "as the test says")

    async def UploadRollouts(
        self, request_iterator: AsyncIterator[pb.RolloutUpload], context: Any
    ) -> AsyncIterator[pb.UploadReply]:
        self.streams += 1
        async for message in request_iterator:
            await self.answers.wait()
            yield pb.UploadReply(verdicts=self._verdicts(message))

    def _verdicts(self, message: pb.RolloutUpload) -> list[pb.RolloutVerdict]:
        verdicts = []
        for item in message.rollouts:
            rollout = rollout_from_pb(item)
            reason = self.judge(rollout)
            if not reason:
                self.uploaded.append(rollout)
            key = {"lease_id": item.lease_id, "sample_index": item.sample_index}
            verdicts.append(pb.RolloutVerdict(**key, accepted=not reason, reason=reason))
        return verdicts


@asynccontextmanager
async def scripted_coordinator(folder: Path, run_id: RunId = RUN_ID) -> AsyncIterator[ScriptedCoordinator]:
    coordinator = ScriptedCoordinator(RunCA.create(folder / f"ca-{run_id}", run_id))
    await coordinator.start()
    try:
        yield coordinator
    finally:
        await coordinator.stop()


def peer_credentials(ca: RunCA, identity: Identity, role: Any = "peer", lifetime_s: float = 3600.0) -> TlsCredentials:
    key = new_tls_key()
    certificate = ca.issue(key.csr_pem(), peer_id=identity.peer_id, role=role, lifetime_s=lifetime_s)
    return TlsCredentials(ca.certificate_pem, certificate, key.private_pem)
