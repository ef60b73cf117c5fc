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
from rollcast.runtime.process import bind_error, is_loopback

HEADER_DEADLINE_S = 10.0  # from accept, and between two requests of one connection
TLS_HANDSHAKE_DEADLINE_S = 5.0
CONNECTIONS_MAX = 512
SHUTDOWN_S = 2.0


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
    ) -> HttpServer:
        """Bind the port and serve.

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

        def connection() -> asyncio.Protocol:
            free = CONNECTIONS_MAX + app.kept_connections - len(accept.connections)
            return accept() if free > 0 else _Full()

        loop, handshake_s = asyncio.get_running_loop(), TLS_HANDSHAKE_DEADLINE_S if tls else None
        try:
            server = await loop.create_server(connection, host, port, ssl=tls, ssl_handshake_timeout=handshake_s)
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


class _Full(asyncio.Protocol):
    """Closes a connection above the limit at once."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.abort()
