"""Accepts chunk links: HTTPS requests under mutual TLS 1.3, upgraded to streams of frames."""

from __future__ import annotations

import asyncio
import errno
import ssl

import structlog
from aiohttp import web

from peer.link_traffic import LinkTraffic
from peer.stream_link import StreamLink
from peer.transport import Admission, LinkHandler
from rollcast.runtime.errors import PortInUse, RollcastError, WrongKey
from rollcast.wire.ids import RunId
from rollcast.wire.link_opening import PATH, UPGRADE_HEADERS, LinkLimits, caller_of, greet
from rollcast.wire.link_receiver import LinkClosed
from rollcast.wire.link_socket import SocketOptions
from rollcast.wire.link_stream import LinkStream
from rollcast.wire.tls import Caller, TlsCredentials

log = structlog.get_logger()

_CLOSE_S = 2.0
_BACKLOG = 128


class LinkServer:
    """Listens on one address.

    Args:
        admit: says why a caller is refused (empty: it is not).
        traffic: counts and caps what passes.
    """

    def __init__(
        self,
        credentials: TlsCredentials,
        run_id: RunId,
        admit: Admission,
        *,
        limits: LinkLimits,
        options: SocketOptions,
        traffic: LinkTraffic,
    ) -> None:
        self._tls = credentials.ssl_server_context()
        self._run_id = run_id
        self._limits = limits
        self._admit = admit
        self._options = options
        self._traffic = traffic
        self._on_link: LinkHandler | None = None
        self._web: web.Server | None = None
        self._listener: asyncio.Server | None = None
        self._before_request: dict[asyncio.BaseProtocol, asyncio.TimerHandle] = {}
        self._streams: set[LinkStream] = set()

    async def start(self, host: str, port: int, on_link: LinkHandler) -> int:
        """Listen, and hand every authenticated and greeted link to ``on_link``.

        Returns:
            The port.

        Raises:
            PortInUse: the address cannot be bound.
        """
        self._on_link = on_link
        # aiohttp has no deadline of its own for a request that drips in: see _accept.
        self._web = web.Server(self._answer, access_log=None, lingering_time=0.0, auto_decompress=False)
        try:
            self._listener = await asyncio.get_running_loop().create_server(
                self._accept,
                host,
                port,
                ssl=self._listening_context(),
                ssl_handshake_timeout=self._limits.handshake_timeout_s,
                ssl_shutdown_timeout=1.0,
                backlog=_BACKLOG,
            )
        except OSError as error:
            if error.errno not in (errno.EADDRINUSE, errno.EADDRNOTAVAIL, errno.EACCES):
                raise
            raise PortInUse(
                f"cannot listen for chunk links on {host}:{port}",
                cause=str(error),
                fix="stop the other process, or set another link.host or link.port (0 lets the system choose)",
            ) from None
        bound: int = self._listener.sockets[0].getsockname()[1]
        return bound

    def renew(self, credentials: TlsCredentials) -> None:
        """Show this certificate from the next handshake on."""
        self._tls = credentials.ssl_server_context()

    async def close(self) -> None:
        """Stop listening and end all links."""
        if self._listener is not None:
            self._listener.close()
        for timer in self._before_request.values():
            timer.cancel()
        self._before_request.clear()
        for stream in self._streams:
            stream.end("the link was closed here")
        if self._web is not None:
            await self._web.shutdown(timeout=_CLOSE_S)

    def _listening_context(self) -> ssl.SSLContext:
        """A listener keeps the context that it was opened with: this one looks up the newest in each handshake."""
        context = self._tls

        def use_newest(tls: ssl.SSLObject | ssl.SSLSocket, _name: str | None, _context: ssl.SSLContext) -> None:
            tls.context = self._tls

        context.sni_callback = use_newest  # called for hellos without a server name as well
        return context

    def _accept(self) -> asyncio.BaseProtocol:
        assert self._web is not None
        protocol = self._web()
        # The TLS handshake has a deadline of its own; then the request has as long again.
        delay_s = 2 * self._limits.handshake_timeout_s
        timer = asyncio.get_running_loop().call_later(delay_s, self._give_up, protocol)
        self._before_request[protocol] = timer
        return protocol

    def _give_up(self, protocol: web.RequestHandler) -> None:
        self._before_request.pop(protocol, None)
        if protocol.transport is not None:
            protocol.transport.abort()

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        timer = self._before_request.pop(request.protocol, None)
        if timer is not None:
            timer.cancel()
        transport = request.transport
        if transport is None:
            return web.Response(status=400)
        problem, caller = self._judge(request, transport)
        if caller is None:
            log.warning("chunk link refused", reason=problem)
            refusal = web.Response(status=403, text=problem)
            refusal.force_close()
            return refusal
        response = web.StreamResponse(status=101, headers=UPGRADE_HEADERS)
        await response.prepare(request)
        await self._serve(transport, caller)
        return response

    def _judge(self, request: web.BaseRequest, transport: asyncio.Transport) -> tuple[str, Caller | None]:
        wanted = UPGRADE_HEADERS["Upgrade"]
        if request.method != "GET" or request.path != PATH or request.headers.get("Upgrade") != wanted:
            return "only chunk links here", None
        if len(self._streams) >= self._limits.links_most:
            return "too many links are open", None
        try:
            caller = caller_of(transport)
        except WrongKey as error:
            return error.what, None
        if caller.run_id != self._run_id:
            return "the certificate is of another run", None
        problem = self._admit(caller)
        return problem, None if problem else caller

    async def _serve(self, transport: asyncio.Transport, caller: Caller) -> None:
        """Open the link; returns once its connection is gone, because aiohttp closes it then."""
        assert self._on_link is not None
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
            link = StreamLink(stream, caller, self._traffic.of(stream.remote_address), dialled=False)
            link.start(self._on_link(link))
        except RollcastError as error:
            log.warning("chunk link refused", peer=caller.peer_id, code=error.code, reason=error.what)
        except BaseException:
            stream.end("the link was given up")
            raise
        finally:
            await lost.wait()
            self._streams.discard(stream)
