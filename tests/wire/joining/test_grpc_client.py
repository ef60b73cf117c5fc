"""Test the control channel against a real grpc.aio server on loopback."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any

import grpc
import grpc.aio
import pytest

from rollcast.runtime.errors import (
    JoinRefused,
    MalformedMessage,
    ProtocolMismatch,
    RollcastError,
    Unreachable,
    WaitTimedOut,
    WrongKey,
)
from rollcast.wire.identity.identity import Identity
from rollcast.wire.identity.tls import SERVER_OPTIONS, Caller, RunCA, TlsCredentials, caller_from_san_uris, new_tls_key
from rollcast.wire.ids import RunId
from rollcast.wire.joining.error_json import error_to_json
from rollcast.wire.joining.grpc_client import connection_lost, end_call, open_channel, status_of, translate
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.proto import rollcast_pb2_grpc
from tests.open_sockets import connections_to, until_none

RUN_ID = RunId("test-run")
PEER_ID = Identity.generate().peer_id


class Coordinator(rollcast_pb2_grpc.CoordinatorServicer):
    """A coordinator that records its callers, and fails if the test sets an error."""

    def __init__(self) -> None:
        self.callers: list[Caller] = []
        self.error: RollcastError | None = None

    async def ReportStep(self, request: pb.StepReport, context: Any) -> pb.Empty:
        names = [name.decode() for name in context.auth_context()["x509_subject_alternative_name"]]
        self.callers.append(caller_from_san_uris(names))
        if self.error is not None:
            await context.abort(status_of(self.error), error_to_json(self.error))
        return pb.Empty()

    async def Session(
        self, request_iterator: AsyncIterator[pb.PeerMessage], context: Any
    ) -> AsyncIterator[pb.CoordinatorMessage]:
        await anext(request_iterator)
        for _ in range(20):
            yield pb.CoordinatorMessage()


@asynccontextmanager
async def serving(
    ca: RunCA, options: Mapping[str, int] = MappingProxyType(dict(SERVER_OPTIONS))
) -> AsyncIterator[tuple[str, Coordinator]]:
    key = new_tls_key()
    credentials = TlsCredentials(ca.certificate_pem, ca.issue_coordinator(key.csr_pem(), []), key.private_pem)
    server = grpc.aio.server(options=list(options.items()))
    coordinator = Coordinator()
    rollcast_pb2_grpc.add_CoordinatorServicer_to_server(coordinator, server)
    port = server.add_secure_port("127.0.0.1:0", credentials.grpc_server_credentials())
    await server.start()
    try:
        yield f"127.0.0.1:{port}", coordinator
    finally:
        await server.stop(None)


def member(ca: RunCA) -> TlsCredentials:
    key = new_tls_key()
    certificate = ca.issue(key.csr_pem(), peer_id=PEER_ID, role="learner", lifetime_s=600.0)
    return TlsCredentials(ca.certificate_pem, certificate, key.private_pem)


async def report(address: str, credentials: TlsCredentials, timeout_s: float = 10.0) -> None:
    async with open_channel(address, credentials) as channel:
        await rollcast_pb2_grpc.CoordinatorStub(channel).ReportStep(pb.StepReport(step=1), timeout=timeout_s)


async def test_the_server_sees_the_caller(tmp_path: Path) -> None:
    ca = RunCA.create(tmp_path, RUN_ID)
    async with serving(ca) as (address, coordinator):
        await report(address, member(ca))
    assert coordinator.callers == [Caller(RUN_ID, "learner", PEER_ID)]


async def test_processes_without_a_certificate_of_the_run_are_refused(tmp_path: Path) -> None:
    ca, other = RunCA.create(tmp_path / "a", RUN_ID), RunCA.create(tmp_path / "b", RUN_ID)
    stranger = member(other)
    trusting = TlsCredentials(ca.certificate_pem, stranger.certificate_pem, stranger.private_key_pem)
    async with serving(ca) as (address, coordinator):
        for credentials in (stranger, trusting):
            with pytest.raises(grpc.aio.AioRpcError) as problem:
                await report(address, credentials)
            assert isinstance(translate(problem.value, "reporting"), WrongKey | Unreachable)
        bare = grpc.ssl_channel_credentials(ca.certificate_pem)
        options = [("grpc.ssl_target_name_override", "coordinator.rollcast")]
        async with grpc.aio.secure_channel(address, bare, options=options) as channel:
            with pytest.raises(grpc.aio.AioRpcError):
                await rollcast_pb2_grpc.CoordinatorStub(channel).ReportStep(pb.StepReport(), timeout=10.0)
        async with grpc.aio.insecure_channel(address) as channel:
            with pytest.raises(grpc.aio.AioRpcError):
                await rollcast_pb2_grpc.CoordinatorStub(channel).ReportStep(pb.StepReport(), timeout=10.0)
    assert coordinator.callers == []


async def test_a_peer_cannot_play_the_coordinator(tmp_path: Path) -> None:
    ca = RunCA.create(tmp_path, RUN_ID)
    server = grpc.aio.server()
    port = server.add_secure_port("127.0.0.1:0", member(ca).grpc_server_credentials())
    await server.start()
    try:
        with pytest.raises(grpc.aio.AioRpcError) as problem:
            await report(f"127.0.0.1:{port}", member(ca))
        assert isinstance(translate(problem.value, "reporting"), WrongKey)
    finally:
        await server.stop(None)


@pytest.mark.parametrize("kind", [JoinRefused, WrongKey, MalformedMessage, ProtocolMismatch, RollcastError])
async def test_errors_keep_class_and_words_across_grpc(tmp_path: Path, kind: type[RollcastError]) -> None:
    ca = RunCA.create(tmp_path, RUN_ID)
    async with serving(ca) as (address, coordinator):
        coordinator.error = kind("what", cause="why", fix="do this")
        with pytest.raises(grpc.aio.AioRpcError) as problem:
            await report(address, member(ca))
    error = translate(problem.value, "reporting")
    assert type(error) is kind
    assert (error.what, error.cause, error.fix) == ("what", "why", "do this")


async def test_a_missing_server_is_unreachable(tmp_path: Path) -> None:
    ca = RunCA.create(tmp_path, RUN_ID)
    async with serving(ca) as (address, _):
        pass
    with pytest.raises(grpc.aio.AioRpcError) as problem:
        await report(address, member(ca))
    error = translate(problem.value, "reporting a step")
    assert isinstance(error, Unreachable)
    assert "reporting a step" in error.what


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (grpc.StatusCode.DEADLINE_EXCEEDED, WaitTimedOut),
        (grpc.StatusCode.PERMISSION_DENIED, WrongKey),
        (grpc.StatusCode.UNIMPLEMENTED, ProtocolMismatch),
        (grpc.StatusCode.INTERNAL, RollcastError),
        (grpc.StatusCode.CANCELLED, Unreachable),
    ],
)
def test_statuses_without_our_details_are_translated(code: grpc.StatusCode, kind: type[RollcastError]) -> None:
    error = grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), details="x" * 1000)
    translated = translate(error, "asking")
    assert type(translated) is kind
    assert len(str(translated)) < 800


def test_an_error_without_a_status_is_translated() -> None:
    assert type(translate(grpc.RpcError(), "asking")) is RollcastError


async def report_slowly(stub: Any) -> None:
    with connection_lost("reporting a step"):
        await stub.ReportStep(pb.StepReport(), timeout=10.0)


async def test_only_a_call_that_another_task_cancelled_is_a_lost_connection(tmp_path: Path) -> None:
    credentials = member(RunCA.create(tmp_path, RUN_ID))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        channel = open_channel(f"127.0.0.1:{silent.getsockname()[1]}", credentials)
        stub = rollcast_pb2_grpc.CoordinatorStub(channel)
        calls = [asyncio.create_task(report_slowly(stub)) for _ in range(2)]
        await asyncio.wait(calls, timeout=0.1)
        calls[0].cancel()
        with pytest.raises(asyncio.CancelledError):
            await calls[0]
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await report_slowly(stub)
        await channel.close(None)
        with pytest.raises(Unreachable, match="lost while reporting a step"):
            await calls[1]


async def write_until_it_fails(call: Any) -> None:
    with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
        async with asyncio.timeout(10.0):
            while True:
                await call.write(pb.PeerMessage())
                await asyncio.sleep(0.01)


async def test_a_call_that_ends_while_messages_wait_to_be_read_keeps_no_connection(tmp_path: Path) -> None:
    ca = RunCA.create(tmp_path, RUN_ID)
    async with serving(ca) as (address, _):
        async with open_channel(address, member(ca)) as channel:
            call: Any = rollcast_pb2_grpc.CoordinatorStub(channel).Session()
            await call.write(pb.PeerMessage())
            assert await call.read() == pb.CoordinatorMessage()
            await write_until_it_fails(call)
            end_call(call)
            del call
        await until_none(address)


async def test_an_unused_connection_is_closed(tmp_path: Path) -> None:
    ca, options = RunCA.create(tmp_path, RUN_ID), dict(SERVER_OPTIONS)
    options["grpc.max_connection_idle_ms"] //= 1000
    async with serving(ca, options) as (address, _), open_channel(address, member(ca)) as channel:
        stub = rollcast_pb2_grpc.CoordinatorStub(channel)
        await stub.ReportStep(pb.StepReport(), timeout=10.0)
        assert connections_to(address)
        await until_none(address)
        await stub.ReportStep(pb.StepReport(), timeout=10.0)
