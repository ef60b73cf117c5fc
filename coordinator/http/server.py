"""The HTTP side: health, metrics, status, joins, the page. All but joins and the operator's orders only reads.

aiohttp has no deadline of its own for a request's body, none for a whole response, and no cap on connections; all
three are here. Without TLS it binds loopback only.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import structlog
from aiohttp import web

from coordinator import plain_json
from coordinator.http.operator import OperatorApi
from coordinator.join import JoinDesk
from rollcast.runtime import metrics
from rollcast.runtime.errors import MalformedMessage, RollcastError, StoreError, UnsafeBind, WaitTimedOut
from rollcast.runtime.process import bind_error, is_loopback
from rollcast.wire.error_json import error_to_json
from rollcast.wire.limits import HTTP_JOIN_BYTES_MAX

log = structlog.get_logger()

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

BODY_DEADLINE_S = 5.0
HEADER_DEADLINE_S = 10.0  # from accept, and between two requests of one connection
JOIN_DEADLINE_S = 20.0
JOINS_AT_ONCE = 8
WRITE_DEADLINE_S = 5.0  # a reader of the stream that takes longer than this is gone
TLS_HANDSHAKE_DEADLINE_S = 5.0
CONNECTIONS_MAX = 512
STREAMS_MAX = 64  # pages open at once
STREAM_INTERVAL_S = 1.0
SHUTDOWN_S = 2.0

SECURITY_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
PAGES = {
    "/": ("index.html", "text/html"),
    "/app.css": ("app.css", "text/css"),
    "/app.js": ("app.js", "text/javascript"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}


@dataclass(frozen=True, slots=True)
class HttpViews:
    """What the HTTP side may ask of the coordinator."""

    status: Callable[[], Mapping[str, Any]]
    broadcast: Callable[[], Mapping[str, Any]]
    not_ready_because: Callable[[], str]  # empty when ready
    metrics: Callable[[], bytes]


class _CachedJson:
    """One JSON text for all who ask within a while."""

    def __init__(self, make: Callable[[], Mapping[str, Any]]) -> None:
        self._make = make
        self._made_at = float("-inf")
        self._text = ""

    def text(self) -> str:
        now = asyncio.get_running_loop().time()
        if now - self._made_at >= STREAM_INTERVAL_S / 2:
            self._made_at, self._text = now, plain_json.dumps(self._make())
        return self._text


class HttpApi:
    """Handlers; all who read a status share its text."""

    def __init__(
        self, views: HttpViews, desk: JoinDesk, *, hosts: frozenset[str] | None, operator: OperatorApi | None = None
    ) -> None:
        """``hosts``: names allowed in the Host header (against DNS rebinding); None allows any."""
        self._operator = operator
        self._views = views
        self._desk = desk
        self._hosts = hosts
        self._joining = asyncio.Semaphore(JOINS_AT_ONCE)
        self._closing = asyncio.Event()
        self._streams = 0
        self._status_json, self._broadcast_json = _CachedJson(views.status), _CachedJson(views.broadcast)
        folder = Path(__file__).parents[1] / "pages"
        self._pages = {url: ((folder / name).read_bytes(), kind) for url, (name, kind) in PAGES.items()}

    def app(self) -> web.Application:
        app = web.Application(client_max_size=HTTP_JOIN_BYTES_MAX, middlewares=[self._guard])
        app.router.add_get("/health", self._health)
        app.router.add_get("/ready", self._ready)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/api/v1/status", self._status)
        app.router.add_get("/api/v1/status/stream", self._status_stream)
        app.router.add_get("/api/v1/broadcast", self._broadcast)
        app.router.add_get("/api/v1/ca", self._ca)
        app.router.add_post("/api/v1/join", self._join)
        if self._operator is not None:
            self._operator.add_routes(app)
        for url in self._pages:
            app.router.add_get(url, self._page)
        app.on_response_prepare.append(_add_security_headers)
        return app

    def close(self) -> None:
        """End the streams, so that shutting down need not wait for them."""
        self._closing.set()

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if self._hosts is not None and _host_name(request.host) not in self._hosts:
            return _error_response(421, MalformedMessage("this server does not answer under that name"))
        try:
            return await handler(request)
        except web.HTTPRequestEntityTooLarge:
            return _error_response(413, MalformedMessage(f"a body here has at most {HTTP_JOIN_BYTES_MAX} bytes"))
        except TimeoutError:
            return _error_response(408, MalformedMessage("the request took too long to arrive"))
        except (StoreError, WaitTimedOut) as error:
            return _error_response(503, error)
        except RollcastError as error:
            status = 400 if isinstance(error, MalformedMessage) else 403
            log.info("request refused", path=request.path, code=error.code, what=error.what)
            return _error_response(status, error)

    async def _health(self, _request: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def _ready(self, _request: web.Request) -> web.Response:
        reason = self._views.not_ready_because()
        return web.json_response({"ready": not reason, "reason": reason}, status=503 if reason else 200)

    async def _metrics(self, _request: web.Request) -> web.Response:
        return web.Response(body=self._views.metrics(), headers={"Content-Type": metrics.CONTENT_TYPE})

    async def _status(self, _request: web.Request) -> web.Response:
        return web.Response(text=self._status_json.text(), content_type="application/json")

    async def _broadcast(self, _request: web.Request) -> web.Response:
        return web.Response(text=self._broadcast_json.text(), content_type="application/json")

    async def _status_stream(self, request: web.Request) -> web.StreamResponse:
        if self._streams >= STREAMS_MAX:
            return _error_response(503, MalformedMessage("too many pages are open", fix="close one"))
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        self._streams += 1
        try:
            await response.prepare(request)
            while True:
                async with asyncio.timeout(WRITE_DEADLINE_S):
                    await response.write(f"retry: 1000\ndata: {self._status_json.text()}\n\n".encode())
                if await self._closed_within(STREAM_INTERVAL_S):
                    break
        except (TimeoutError, ConnectionError):
            pass  # the reader is gone; it reconnects by itself
        finally:
            self._streams -= 1
        return response

    async def _closed_within(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                return await self._closing.wait()
        except TimeoutError:
            return False

    async def _ca(self, _request: web.Request) -> web.Response:
        return web.json_response({"ca_pem": self._desk.ca_pem.decode("ascii")})

    async def _join(self, request: web.Request) -> web.Response:
        if (request.content_length or 0) > HTTP_JOIN_BYTES_MAX:
            raise web.HTTPRequestEntityTooLarge(HTTP_JOIN_BYTES_MAX, request.content_length or 0)
        async with asyncio.timeout(BODY_DEADLINE_S):
            body = await request.read()
        async with asyncio.timeout(JOIN_DEADLINE_S), self._joining:
            reply = await self._desk.join(body)
        return web.json_response(asdict(reply))

    async def _page(self, request: web.Request) -> web.Response:
        body, kind = self._pages[request.path]
        return web.Response(body=body, content_type=kind, charset="utf-8")


class HttpServer:
    """A listening HTTP port."""

    def __init__(self, api: HttpApi, runner: web.AppRunner, server: asyncio.Server) -> None:
        self._api = api
        self._runner = runner
        self._server = server
        self.port: int = server.sockets[0].getsockname()[1]

    @classmethod
    async def start(
        cls,
        api: HttpApi,
        *,
        host: str,
        port: int,
        tls: ssl.SSLContext | None,
        header_deadline_s: float = HEADER_DEADLINE_S,
    ) -> HttpServer:
        """Bind and serve.

        Raises:
            UnsafeBind: beyond loopback without TLS.
            PortInUse: the address cannot be bound.
        """
        if tls is None and not is_loopback(host):
            raise UnsafeBind(
                f"refusing to serve HTTP on {host} without TLS", fix="bind 127.0.0.1 or give a certificate"
            )
        runner = web.AppRunner(
            api.app(),
            access_log=None,
            keepalive_timeout=header_deadline_s,
            lingering_time=1.0,
            shutdown_timeout=SHUTDOWN_S,
        )
        await runner.setup()
        accept = runner.server
        assert accept is not None

        def connection() -> asyncio.Protocol:
            return accept() if len(accept.connections) < CONNECTIONS_MAX else _Full()

        loop, handshake_s = asyncio.get_running_loop(), TLS_HANDSHAKE_DEADLINE_S if tls else None
        try:
            server = await loop.create_server(connection, host, port, ssl=tls, ssl_handshake_timeout=handshake_s)
        except OSError as error:
            await runner.cleanup()
            raise bind_error(f"{host}:{port}", error, setting="serve.http_port") from None
        return cls(api, runner, server)

    async def stop(self) -> None:
        """Close the port, end streams, give running requests SHUTDOWN_S seconds."""
        self._api.close()
        self._server.close()
        await self._runner.cleanup()


class _Full(asyncio.Protocol):
    """What a connection above the cap gets: closed at once, nothing kept."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.abort()


async def _add_security_headers(_request: web.Request, response: web.StreamResponse) -> None:
    response.headers.update(SECURITY_HEADERS)


def _host_name(header: str) -> str:
    """The host of a Host header without its port: "[::1]:80" gives "::1"."""
    if header.startswith("["):
        return header[1:].partition("]")[0]
    return header.partition(":")[0].lower()


def _error_response(status: int, error: RollcastError) -> web.Response:
    return web.Response(text=error_to_json(error), status=status, content_type="application/json")
