"""Serve the routes of the HTTP API: authenticate the caller, check the request, write acts to the audit log."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

import structlog
from aiohttp import web
from pydantic import BaseModel

from coordinator.http.audit import DONE, AuditLog
from coordinator.http.auth import STRANGER, Gate, check_access, check_site
from coordinator.http.requests import BODY_BYTES_MAX, JSON, answer_to, call_of, error_response
from coordinator.http.routes import Answer, Call, Caller, RawRoute, Route
from coordinator.http.stream import Hub
from rollcast.runtime import finite_json
from rollcast.runtime.errors import MalformedMessage, NotAllowed, RollcastError, RunOver
from rollcast.web.assets import Assets
from rollcast.web.headers import NO_STORE, RUN_HEADER, SECURITY_HEADERS

log = structlog.get_logger()

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

ANSWER_DEADLINE_S = 60.0
_CALLER = web.RequestKey("caller", Caller)


class KeptConnections(Protocol):
    """Connections that stay open by design, such as those of members that watch their address."""

    @property
    def open_connections(self) -> int:
        """Return the number of open connections."""

    def end(self) -> None:
        """End all connections, so that shutdown need not wait for them."""


@dataclass(frozen=True, slots=True)
class HttpApp:
    """The HTTP application: its routes, static files, and the checks that every request passes.

    Args:
        hosts: names allowed in the Host header (against DNS rebinding); None allows any name.
        background: contexts that are open for as long as the application is served.
        kept: members' connections that stay open; they do not count against the limit on connections.
    """

    routes: Sequence[Route | RawRoute]
    hub: Hub
    gate: Gate
    audit: AuditLog
    assets: Assets
    hosts: frozenset[str] | None
    background: Sequence[Callable[[web.Application], AsyncIterator[None]]] = ()
    kept: KeptConnections | None = None
    run_id: str = ""
    """Id of the run, which every answer names: a port may have belonged to another run before."""
    run_over: Callable[[], RunOver | None] = lambda: None
    """Returns the error that refuses to change a run that has ended; None while it goes on."""
    active: Counter[asyncio.BaseTransport] = field(default_factory=Counter)
    """The connections with a request in progress."""
    refused: Counter[str] = field(default_factory=Counter)
    """Requests refused and connections closed so far, by reason."""

    def application(self) -> web.Application:
        app = web.Application(client_max_size=BODY_BYTES_MAX, middlewares=[self._guard])
        for route in self.routes:
            handler = self._raw(route) if isinstance(route, RawRoute) else self._json(route)
            app.router.add_route(route.method, route.path, handler)
            if route.method == "GET":  # add_get would add the HEAD route by itself, add_route does not
                app.router.add_route("HEAD", route.path, handler)
        for url in self.assets.urls:
            app.router.add_get(url, self._asset)
        app.on_response_prepare.append(self._add_headers)
        app.cleanup_ctx.extend(self.background)
        return app

    async def _add_headers(self, _request: web.Request, response: web.StreamResponse) -> None:
        response.headers.update(SECURITY_HEADERS)
        if self.run_id:
            response.headers[RUN_HEADER] = self.run_id
        if "Cache-Control" not in response.headers:
            response.headers.update(NO_STORE)

    @property
    def kept_connections(self) -> int:
        """Return the number of connections that stay open by design."""
        return 0 if self.kept is None else self.kept.open_connections

    async def end_streams(self) -> None:
        """End the responses that stay open, so that shutdown need not wait for them."""
        if self.kept is not None:
            self.kept.end()
        await self.hub.close()

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if self.hosts is not None and _host_name(request.host) not in self.hosts:
            self.refused["http_421"] += 1
            return error_response(421, MalformedMessage("this server does not serve the name in the Host header"))
        with self._counted(request.transport):
            return await self._answered(request, handler)

    @contextmanager
    def _counted(self, transport: asyncio.BaseTransport | None) -> Iterator[None]:
        if transport is None:
            yield
            return
        self.active[transport] += 1
        try:
            yield
        finally:
            self.active[transport] -= 1
            if not self.active[transport]:
                del self.active[transport]

    async def _answered(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            return await handler(request)
        except Exception as error:
            if isinstance(error, web.HTTPException) and error.status < 400:
                raise
            response = answer_to(error, request.get(_CALLER, STRANGER))
            if response is None:
                log.exception("request failed", path=request.path)
                return error_response(500, RollcastError("the coordinator failed", fix="see its log"))
            self.refused[error.reason if isinstance(error, RollcastError) else f"http_{response.status}"] += 1
            if isinstance(error, RollcastError) and not _is_noise(error, request.get(_CALLER, STRANGER)):
                log.info("request refused", path=request.path, code=error.code, what=error.what)
            return response

    def _raw(self, route: RawRoute) -> Handler:
        async def handle(request: web.Request) -> web.StreamResponse:
            return await route.handler(request, self._admitted(route, request))

        return handle

    def _json(self, route: Route) -> Handler:
        async def handle(request: web.Request) -> web.StreamResponse:
            try:
                caller = self._admitted(route, request)
            except NotAllowed as error:
                if route.act:
                    who = self.gate.caller(request.headers)
                    await self.audit.refused(who, route.act, request.path, f"{error.code}: {error.what}")
                raise
            call = await call_of(route, caller, request)
            async with asyncio.timeout(ANSWER_DEADLINE_S):
                answer = await (self._acted(route, call) if route.act else self._handled(route, call))
            return web.Response(text=_text(answer), content_type=JSON)

        return handle

    def _admitted(self, route: Route | RawRoute, request: web.Request) -> Caller:
        caller = self.gate.caller(request.headers)
        request[_CALLER] = caller
        check_access(caller, route.access)
        check_site(request.method, request.headers)
        return caller

    async def _handled(self, route: Route, call: Call) -> Answer:
        if route.needs_run and (over := self.run_over()) is not None:
            raise over
        return await route.handler(call)

    async def _acted(self, route: Route, call: Call) -> Answer:
        subject, detail = (route.about or _about)(call)
        try:
            answer = await self._handled(route, call)
        except BaseException as error:  # cancellation included: the act may have taken effect already
            why = f"{error.code}: {error.what}" if isinstance(error, RollcastError) else type(error).__name__
            await self.audit.done(call.caller, route.act, subject, detail, why)
            raise
        outcome = route.outcome(answer) if route.outcome else DONE
        await self.audit.done(call.caller, route.act, subject, detail, outcome)
        return answer

    async def _asset(self, request: web.Request) -> web.Response:
        headers = request.headers
        reply = self.assets.reply(
            request.path,
            accept_encoding=headers.get("Accept-Encoding", ""),
            if_none_match=headers.get("If-None-Match", ""),
        )
        if reply is None:
            raise web.HTTPNotFound
        return web.Response(status=reply.status, headers=reply.headers, body=reply.body)


def _is_noise(error: RollcastError, caller: Caller) -> bool:
    """Decide whether to keep a refusal out of the log: strangers can cause these as often as they like."""
    return caller.access == "anyone" and isinstance(error, MalformedMessage | NotAllowed)


def _about(call: Call) -> tuple[str, str]:
    """Return subject and detail of a call for the audit log; request bodies hold no secrets."""
    body = call.body.model_dump_json(exclude_unset=True) if isinstance(call.body, BaseModel) else ""
    return ", ".join(call.params.values()), body


def _text(answer: Answer) -> str:
    match answer:
        case str():
            return answer
        case BaseModel():
            return finite_json.dumps(answer.model_dump(mode="json"))
        case _:
            return finite_json.dumps(answer)


def _host_name(header: str) -> str:
    """Return the host of a Host header without its port: "::1" for "[::1]:80"."""
    if header.startswith("["):
        return header[1:].partition("]")[0]
    return header.partition(":")[0].lower()
