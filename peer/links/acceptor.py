"""Serve chunk links on accepted connections: HTTPS requests (mutual TLS 1.3) that are upgraded to streams of frames."""

from __future__ import annotations

import asyncio
import socket
from typing import Protocol

import structlog
from aiohttp import web

from rollcast.runtime.errors import RollcastError, WrongKey
from rollcast.wire.identity.tls import Caller, TlsCredentials
from rollcast.wire.ids import RunId
from rollcast.wire.links.handshake import PATH, UPGRADE_HEADERS, LinkLimits, caller_of, greet
from rollcast.wire.links.receiver import LinkClosed
from rollcast.wire.links.stream import LinkStream
from rollcast.wire.links.tcp import SocketOptions

log = structlog.get_logger()

_CLOSE_S = 2.0


class LinkTaker(Protocol):
    """Decides whether a connection's caller may have a link, and takes the link."""

    def admit(self, caller: Caller) -> str:
        """Return why the caller is refused; empty if it is not."""

    def greeted(self, stream: LinkStream, caller: Caller) -> None:
        """Take a link that is greeted and not started."""

    def refused(self, caller: Caller, error: RollcastError) -> None:
        """Note that the greeting failed, so that there is no link."""


class LinkAcceptor:
    """The server's side of every link. Make it inside a running event loop."""

    def __init__(
        self, credentials: TlsCredentials, run_id: RunId, *, limits: LinkLimits, options: SocketOptions
    ) -> None:
        self.tls = credentials.ssl_server_context()
        """The TLS context with the newest certificate."""
        self._run_id = run_id
        self._limits = limits
        self._options = options
        # aiohttp has no deadline for a request that arrives byte by byte: see protocol().
        self._web = web.Server(self._answer, access_log=None, lingering_time=0.0, auto_decompress=False)
        self._before_request: dict[asyncio.BaseProtocol, tuple[asyncio.TimerHandle, LinkTaker]] = {}
        self._streams: set[LinkStream] = set()

    def protocol(self, taker: LinkTaker) -> asyncio.BaseProtocol:
        """Return the protocol of a connection whose TLS handshake begins.

        The handshake has a deadline of its own; then the request has as long again.
        """
        protocol = self._web()
        timer = asyncio.get_running_loop().call_later(2 * self._limits.handshake_timeout_s, self._give_up, protocol)
        self._before_request[protocol] = timer, taker
        return protocol

    async def adopt(self, sock: socket.socket, taker: LinkTaker) -> None:
        """Serve one connected socket and own it from now on; return once the TLS handshake has identified the caller.

        Raises:
            OSError: the handshake failed; ``sock`` is closed.
        """
        await asyncio.get_running_loop().connect_accepted_socket(
            lambda: self.protocol(taker),
            sock,
            ssl=self.tls,
            ssl_handshake_timeout=self._limits.handshake_timeout_s,
            ssl_shutdown_timeout=1.0,
        )

    def renew(self, credentials: TlsCredentials) -> None:
        """Use this certificate from the next handshake on."""
        self.tls = credentials.ssl_server_context()

    async def close(self) -> None:
        """Close all links."""
        for timer, _ in self._before_request.values():
            timer.cancel()
        self._before_request.clear()
        for stream in self._streams:
            stream.end("the link was closed here")
        await self._web.shutdown(timeout=_CLOSE_S)

    def _give_up(self, protocol: web.RequestHandler) -> None:
        self._before_request.pop(protocol, None)
        if protocol.transport is not None:
            protocol.transport.abort()

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        timer, taker = self._before_request.pop(request.protocol, (None, None))
        transport = request.transport
        if timer is None or taker is None or transport is None:
            return web.Response(status=400)
        timer.cancel()
        problem, caller = self._judge(request, transport, taker)
        if caller is None:
            log.warning("chunk link refused", reason=problem)
            refusal = web.Response(status=403, text=problem)
            refusal.force_close()
            return refusal
        response = web.StreamResponse(status=101, headers=UPGRADE_HEADERS)
        await response.prepare(request)
        await self._serve(transport, caller, taker)
        return response

    def _judge(
        self, request: web.BaseRequest, transport: asyncio.Transport, taker: LinkTaker
    ) -> tuple[str, Caller | None]:
        wanted = UPGRADE_HEADERS["Upgrade"]
        if request.method != "GET" or request.path != PATH or request.headers.get("Upgrade") != wanted:
            return "this port serves chunk links only", None
        if len(self._streams) >= self._limits.links_most:
            return "too many links are open", None
        try:
            caller = caller_of(transport)
        except WrongKey as error:
            return error.what, None
        if caller.run_id != self._run_id:
            return "the certificate is of another run", None
        problem = taker.admit(caller)
        return problem, None if problem else caller

    async def _serve(self, transport: asyncio.Transport, caller: Caller, taker: LinkTaker) -> None:
        """Open the link; return only once its connection is lost, because aiohttp closes the connection on return."""
        lost = asyncio.Event()
        try:
            stream = LinkStream.take_over(
                transport, self._options, write_timeout_s=self._limits.write_timeout_s, on_lost=lost.set
            )
        except LinkClosed as error:
            log.debug("chunk link ended", peer=caller.peer_id, reason=error.reason)
            transport.abort()
            return
        self._streams.add(stream)
        try:
            await greet(stream, caller.peer_id, self._run_id, self._limits.hello_timeout_s, dialled=False)
            taker.greeted(stream, caller)
        except RollcastError as error:
            log.warning("chunk link refused", peer=caller.peer_id, code=error.code, reason=error.what)
            taker.refused(caller, error)
        except BaseException:
            stream.end("the link was given up")
            raise
        finally:
            await lost.wait()
            self._streams.discard(stream)
