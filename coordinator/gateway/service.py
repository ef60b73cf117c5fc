"""Run a gateway process: link it to the core, then serve peers until it is stopped or the run has ended."""

from __future__ import annotations

import asyncio
import ssl
from contextlib import AsyncExitStack
from random import Random
from typing import Any

import structlog

from coordinator.gateway.config import GatewayConfig
from coordinator.link import frames
from coordinator.link.dialler import LinkDialler
from coordinator.link.gateway_end import RemoteCore
from coordinator.rpc.access import PEER_METHODS, RoleGate
from coordinator.rpc.peers import PeerCalls
from coordinator.rpc.server import ControlServer, PeerServicer
from coordinator.rpc.tokenizer import TokenizerCalls
from coordinator.rpc.upload_limits import UploadRates
from rollcast.runtime.errors import Unreachable
from rollcast.runtime.process import (
    EXIT_INTERRUPTED,
    collect_garbage_in_small_steps,
    collect_young_garbage,
    raise_open_files_limit,
    return_large_blocks,
)
from rollcast.runtime.version import software_version
from rollcast.runtime.waits import cancel_and_wait
from rollcast.wire.identity.identity import Identity
from rollcast.wire.identity.tls import TlsCredentials, new_tls_key
from rollcast.wire.ids import RunId
from rollcast.wire.joining.invite import read_invite

log = structlog.get_logger()

CALLS_GRACE_S = 1.0  # for calls still running when the control port closes
JOIN_TIMEOUT_S = 10.0  # for one attempt to get a certificate for the link


async def run(config: GatewayConfig, stop: asyncio.Event) -> int:
    """Serve peers until the run has ended or ``stop`` is set; return the exit status.

    Raises:
        RollcastError: the gateway cannot serve, the core refuses it, or there is none for too long.
    """
    collect_garbage_in_small_steps()
    return_large_blocks()
    raise_open_files_limit()
    gateway = Gateway(config, await asyncio.to_thread(_identity, config))
    async with AsyncExitStack() as stack:
        stack.push_async_callback(cancel_and_wait, asyncio.create_task(collect_young_garbage()))
        dialling = asyncio.create_task(gateway.dialler.run())
        stack.push_async_callback(cancel_and_wait, dialling)
        stopped = asyncio.create_task(stop.wait())
        stack.push_async_callback(cancel_and_wait, stopped)
        ends: list[asyncio.Future[Any]] = [dialling, stopped, gateway.core.failure, gateway.core.over]
        await asyncio.wait([gateway.ready, *ends], return_when=asyncio.FIRST_COMPLETED)
        if gateway.ready.done():
            control = await gateway.serve(gateway.ready.result())
            stack.push_async_callback(control.stop, CALLS_GRACE_S)
            log.info("listening", address=f"{config.serve.host}:{control.port}", run_id=gateway.ready.result().run_id)
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        if gateway.core.failure.done():
            raise gateway.core.failure.result()
        if dialling.done():
            dialling.result()
        if gateway.core.over.done():
            log.info("run ends", reason=gateway.core.over.result())
            return 0
        return EXIT_INTERRUPTED


class Gateway:
    """The parts of a gateway.

    Args:
        identity: the gateway's, by which a core over TLS knows it.
    """

    def __init__(self, config: GatewayConfig, identity: Identity) -> None:
        self._config = config
        self._identity = identity
        self._key = new_tls_key()
        self.ready: asyncio.Future[frames.Ready] = asyncio.get_running_loop().create_future()
        """What the core answered first."""
        self._held: TlsCredentials | None = None  # that the core issued last
        self.core = RemoteCore(self._hello, self._linked)
        self.dialler = LinkDialler(self.core, config.core, self._tls, config.core_timeout_s, Random())

    async def serve(self, ready: frames.Ready) -> ControlServer:
        """Bind the control port and serve peers.

        Raises:
            PortInUse: the port cannot be bound.
        """
        config, limits = self._config, self._config.limits
        peers = PeerCalls(
            self.core,
            UploadRates(
                limits.uploads_per_second, limits.upload_bytes_per_second, limits.uploads_at_once, limits.together
            ),
        )
        return await ControlServer.start(
            PeerServicer(peers, TokenizerCalls(self.core.tokenizer)),
            RoleGate(ready.run_id, methods=PEER_METHODS),
            TlsCredentials(ready.ca_pem, ready.certificate_pem, self._key.private_pem),
            host=config.serve.host,
            port=config.serve.grpc_port,
            per_address=limits.control_connections_per_address,
            connections_max=limits.control_connections_max,
        )

    def _hello(self) -> frames.Hello:
        config = self._config
        hosts = tuple(dict.fromkeys([config.serve.host, *config.serve.hosts]))
        return frames.Hello(
            format=frames.FORMAT,
            software=f"rollcast {software_version()}",
            name=config.name,
            peer_id=self._identity.peer_id,
            csr_pem=self._key.csr_pem(),
            hosts=hosts,
        )

    def _linked(self, ready: frames.Ready) -> None:
        if not self.ready.done():
            self.ready.set_result(ready)
        served = self.ready.result().run_id
        if ready.run_id == served:
            self._held = TlsCredentials(ready.ca_pem, ready.certificate_pem, self._key.private_pem)
        else:  # whose certificates are of another authority
            self.core.fail(
                Unreachable(
                    f"the coordinator of the run {served} is gone",
                    cause=f"one of the run {ready.run_id} listens in its place",
                    fix="start the gateway again: it then serves that run",
                )
            )

    async def _tls(self) -> tuple[ssl.SSLContext, RunId]:
        """Return the context for dialling the core, with a certificate that is valid for now, and the run.

        A gateway that was linked has the certificate that the core issued on the link: the one with which it joined,
        and its invite, may have expired long before a core comes back.
        """
        held = self._held
        if held is not None and held.valid_for_s > 0.0:
            return await asyncio.to_thread(held.ssl_client_context), RunId(self.ready.result().run_id)
        from rollcast.wire.joining.enrol import enrol  # with aiohttp; a gateway on a Unix socket starts without it

        config = self._config
        invite = await read_invite("", config.invite, JOIN_TIMEOUT_S)
        enrolment = await enrol(invite, self._identity, config.state_folder, JOIN_TIMEOUT_S)
        return await asyncio.to_thread(enrolment.credentials.ssl_client_context), enrolment.run_id


def _identity(config: GatewayConfig) -> Identity:
    """Return the identity with which the gateway joins; without an invite it has none, and a Unix socket needs none."""
    if config.invite is None:
        return Identity.generate()
    return Identity.load_or_create(config.state_folder / "identity.key")
