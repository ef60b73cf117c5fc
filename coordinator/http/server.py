"""Listen on the HTTP port.

aiohttp has no timeout of its own for a request's headers or body, none for a TLS handshake, and no limit on
connections; all are set here or in requests.py. Beyond loopback nothing is served without TLS and tokens.
"""

from __future__ import annotations

import asyncio
import logging
import ssl

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from coordinator.http.app import HttpApp
from rollcast.runtime.errors import UnsafeBind
from rollcast.runtime.process import bind_error, is_loopback, listening
from rollcast.wire.connection_caps import TOO_MANY_CONNECTIONS, excess

HEADER_DEADLINE_S = 10.0  # from accept, and between two requests of one connection
TLS_HANDSHAKE_DEADLINE_S = 5.0
CONNECTIONS_MAX = 512
IDLE_PER_ADDRESS_MAX = 128
SHUTDOWN_S = 2.0
HANDSHAKE_FAILED = "handshake_failed"


class HttpServer:
    """A listening HTTP port."""

    def __init__(self, app: HttpApp, runner: web.AppRunner, server: asyncio.Server) -> None:
        self._app = app
        self._runner = runner
        self._server = server
        self.port: int = server.sockets[0].getsockname()[1]

    @classmethod
    async def start(
        cls,
        app: HttpApp,
        *,
        host: str,
        port: int,
        tls: ssl.SSLContext | None,
        header_deadline_s: float = HEADER_DEADLINE_S,
        idle_per_address: int = IDLE_PER_ADDRESS_MAX,
        connections_max: int = CONNECTIONS_MAX,
    ) -> HttpServer:
        """Bind the port and serve.

        idle_per_address: connections without a request in progress that one address may keep; the oldest is closed.
        connections_max: connections in all; an idle one of the address with the most makes room for a newcomer.

        Raises:
            UnsafeBind: the host is beyond loopback, and there is no TLS or reading would need no token.
            PortInUse: the address cannot be bound.
        """
        _check_bind(app, host, tls)
        runner = web.AppRunner(
            app.application(),
            access_log=None,
            logger=_logger(),
            keepalive_timeout=header_deadline_s,
            lingering_time=1.0,
            shutdown_timeout=SHUTDOWN_S,
        )
        await runner.setup()
        accept = runner.server
        assert accept is not None

        room = _Room(app, accept, idle_per_address, connections_max)
        loop = asyncio.get_running_loop()
        try:
            server = await loop.create_server(lambda: _Door(room, tls), **listening(host, port))
        except OSError as error:
            await runner.cleanup()
            raise bind_error(f"{host}:{port}", error, setting="serve.http_port") from None
        return cls(app, runner, server)

    async def stop(self) -> None:
        """Close the port, end streams, and give running requests SHUTDOWN_S seconds."""
        await self._app.end_streams()
        self._server.close()
        await self._runner.cleanup()


def _check_bind(app: HttpApp, host: str, tls: ssl.SSLContext | None) -> None:
    if is_loopback(host):
        return
    if tls is None:
        raise UnsafeBind(f"refusing to serve HTTP on {host} without TLS", fix="bind 127.0.0.1 or give a certificate")
    if app.gate.open_reading:
        raise UnsafeBind(
            f"refusing to serve HTTP on {host} to readers without a token", fix="set serve.open_reading = false"
        )


def _logger() -> logging.Logger:
    """Return aiohttp's logger for errors of the coordinator; strangers must not fill the log with malformed HTTP."""
    logger = logging.getLogger("coordinator.http")
    if not logger.filters:
        logger.addFilter(lambda record: not _is_theirs(record))
    return logger


def _is_theirs(record: logging.LogRecord) -> bool:
    return record.exc_info is not None and isinstance(record.exc_info[1], HttpProcessingError)


class _Room:
    """The connections that are open, and the room that is left for newcomers."""

    def __init__(self, app: HttpApp, accept: web.Server, per_address: int, most: int) -> None:
        self.accept = accept
        self._app = app
        self._per_address, self._most = per_address, most
        self.shaking: dict[asyncio.Transport, None] = {}
        """Connections whose TLS handshake is in progress, oldest first."""

    def make(self) -> bool:
        """Close idle connections in excess. Returns whether there is room for one more."""
        handlers = [one.transport for one in self.accept.connections if one.transport is not None]
        idle = [*self.shaking, *(one for one in handlers if one not in self._app.active)]
        most = self._most + self._app.kept_connections - 1
        taken = len(self.shaking) + len(handlers)
        idle_most = max(0, most - (taken - len(idle)))
        hosts = ((_host_of(one), one) for one in idle)
        for transport in excess(hosts, per_address=self._per_address, most=idle_most):
            transport.abort()
            self._app.refused[TOO_MANY_CONNECTIONS] += 1
            taken -= 1
        return taken <= most

    def refuse(self, reason: str) -> None:
        """Count a connection that is closed before its first request."""
        self._app.refused[reason] += 1


class _Door(asyncio.Protocol):
    """Looks at where a connection comes from before anything is read from it, then hands it to aiohttp."""

    def __init__(self, room: _Room, tls: ssl.SSLContext | None) -> None:
        self._room = room
        self._tls = tls
        self._handshake: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        if not self._room.make():
            self._room.refuse(TOO_MANY_CONNECTIONS)
            transport.abort()
        elif self._tls is None:
            self._enter(transport)
        else:
            transport.pause_reading()
            self._room.shaking[transport] = None
            self._handshake = asyncio.create_task(self._shake(transport, self._tls))

    async def _shake(self, transport: asyncio.Transport, tls: ssl.SSLContext) -> None:
        loop, handler = asyncio.get_running_loop(), self._room.accept()
        try:
            secured = await loop.start_tls(
                transport, handler, tls, server_side=True, ssl_handshake_timeout=TLS_HANDSHAKE_DEADLINE_S
            )
        except (TimeoutError, OSError):
            self._room.refuse(HANDSHAKE_FAILED)
            transport.abort()
            return
        finally:
            self._room.shaking.pop(transport, None)
        if secured is not None:
            handler.connection_made(secured)

    def _enter(self, transport: asyncio.Transport) -> None:
        handler = self._room.accept()
        transport.set_protocol(handler)
        handler.connection_made(transport)


def _host_of(transport: asyncio.BaseTransport) -> str:
    peer = transport.get_extra_info("peername")
    return str(peer[0]) if peer else "0.0.0.0"
