"""Serve the control port: gRPC over mutual TLS, with certificates of the run CA only."""

from __future__ import annotations

import asyncio
import resource
import socket
from typing import TYPE_CHECKING, Any

import grpc
import structlog

from coordinator.rpc.access import Messages, RoleGate
from coordinator.rpc.connection_guard import ConnectionGuard
from coordinator.rpc.peers import PeerCalls
from coordinator.rpc.tokenizer import TokenizerCalls
from rollcast.runtime.errors import PortInUse
from rollcast.runtime.process import bind_error
from rollcast.wire.address_scope import with_port
from rollcast.wire.identity.tls import SERVER_OPTIONS, TlsCredentials
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.proto import rollcast_pb2_grpc as pb_grpc

if TYPE_CHECKING:  # a gateway has none of these
    from coordinator.rpc.cell import CellCalls
    from coordinator.rpc.learner import LearnerCalls

log = structlog.get_logger()

FILES_SPARED = 256  # open files that connections to the control port leave to the store, the HTTP port and workers
FILES_SPARED_SHARE = 0.25  # of those that the process may have; the larger of both
CONCURRENT_CALLS_MAX = 32_768  # of all callers together; a peer has a session and one upload open, for 10,000 peers


class PeerServicer(pb_grpc.CoordinatorServicer):
    """Passes the methods for peers to their handlers; the others are not served."""

    def __init__(self, peers: PeerCalls, tokenizer: TokenizerCalls) -> None:
        self._peers = peers
        self._tokenizer = tokenizer

    async def Session(self, messages: Messages, context: Any) -> None:
        await self._peers.Session(messages, context)

    async def UploadRollouts(self, uploads: Messages, context: Any) -> None:
        await self._peers.uploads.UploadRollouts(uploads, context)

    async def TokenizerFile(self, request: pb.TokenizerRequest, context: Any) -> None:
        await self._tokenizer.TokenizerFile(request, context)


class Servicer:
    """Binds every method of the control port to its handler, as the generated stubs expect."""

    def __init__(self, peers: PeerCalls, tokenizer: TokenizerCalls, learner: LearnerCalls, cell: CellCalls) -> None:
        self.Session = peers.Session
        self.UploadRollouts = peers.uploads.UploadRollouts
        self.TokenizerFile = tokenizer.TokenizerFile
        self.OpenLearner = learner.OpenLearner
        self.Examples = learner.Examples
        self.HeldOut = learner.HeldOut
        self.ScoreCompletions = learner.ScoreCompletions
        self.Evaluate = learner.Evaluate
        self.NextBatch = learner.NextBatch
        self.Announce = learner.Announce
        self.OpenEpoch = learner.OpenEpoch
        self.ReportStep = learner.ReportStep
        self.ReportStatus = learner.ReportStatus
        self.Cell = cell.Cell


class ControlServer:
    """A listening control port."""

    def __init__(self, server: grpc.aio.Server, port: int, guard: ConnectionGuard) -> None:
        self._server = server
        self.port = port
        self._watching = asyncio.create_task(guard.run())

    @classmethod
    async def start(
        cls,
        servicer: Servicer | PeerServicer,
        gate: RoleGate,
        credentials: TlsCredentials,
        *,
        host: str,
        port: int,
        per_address: int = 1024,
        connections_max: int = 4096,
    ) -> ControlServer:
        """Bind the port and serve.

        per_address, connections_max: see ConnectionGuard.

        Raises:
            PortInUse: the address cannot be bound.
        """
        allowed = connections_allowed(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
        options = [*SERVER_OPTIONS, ("grpc.max_allowed_incoming_connections", allowed)]
        server = grpc.aio.server(interceptors=[gate], options=options, maximum_concurrent_rpcs=CONCURRENT_CALLS_MAX)
        pb_grpc.add_CoordinatorServicer_to_server(servicer, server)  # type: ignore[no-untyped-call]
        try:
            bound = server.add_secure_port(with_port(host, port), credentials.grpc_server_credentials())
        except RuntimeError:
            raise _bind_failure(host, port) from None
        await server.start()
        guard = ConnectionGuard(
            bound, gate.busy, gate.refused, per_address=per_address, most=connections_max, allowed=allowed
        )
        return cls(server, bound, guard)

    async def stop(self, grace_s: float) -> None:
        """Refuse new calls and give running ones ``grace_s`` seconds."""
        self._watching.cancel()
        await self._server.stop(grace_s)


def connections_allowed(open_files_max: int) -> int:
    """Return how many connections the control port takes, where the process may have so many files open.

    Further ones are closed at once, and their peers dial again. Without this bound, members that return to a restarted
    coordinator take every descriptor before it has opened its HTTP port.
    """
    if open_files_max == resource.RLIM_INFINITY:
        return CONCURRENT_CALLS_MAX
    spared = max(FILES_SPARED, int(open_files_max * FILES_SPARED_SHARE))
    return min(CONCURRENT_CALLS_MAX, max(1, open_files_max - spared))


def _bind_failure(host: str, port: int) -> PortInUse:
    """Find out why the port cannot be bound: grpc does not report the reason, the operating system does."""
    try:
        with socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET):
            error = OSError("grpc cannot bind it")
    except OSError as reason:
        error = reason
    return bind_error(f"{host}:{port}", error, setting="serve.grpc_port")
