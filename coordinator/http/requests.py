"""Turn an HTTP request into a Call, with limits on everything that the sender chooses, and errors into responses."""

from __future__ import annotations

import asyncio
from typing import Any

from aiohttp import web
from pydantic import BaseModel, ValidationError

from coordinator.http.auth import LOOPBACK, STRANGER
from coordinator.http.routes import Call, Caller, Route
from rollcast.runtime.errors import (
    MalformedMessage,
    NotAllowed,
    NotProfiled,
    RollcastError,
    RunOver,
    StoreError,
    WaitTimedOut,
)
from rollcast.wire.joining.error_json import error_to_json

BODY_DEADLINE_S = 5.0
READ_DEADLINE_S = 5.0
"""Seconds for a store to return what a page shows; then the answer has status 503, and the page asks again."""
BODY_BYTES_MAX = 64 << 10
PARAMETER_LENGTH_MAX = 256
QUERY_KEYS_MAX = 32
JSON = "application/json"


async def read_body(request: web.Request, bytes_max: int = BODY_BYTES_MAX) -> bytes:
    """Return the whole body.

    Raises:
        web.HTTPRequestEntityTooLarge: it is longer than ``bytes_max``.
        TimeoutError: it takes longer than BODY_DEADLINE_S.
    """
    if (request.content_length or 0) > bytes_max:
        raise web.HTTPRequestEntityTooLarge(bytes_max, request.content_length or 0)
    async with asyncio.timeout(BODY_DEADLINE_S):
        body = await request.read()
    if len(body) > bytes_max:
        raise web.HTTPRequestEntityTooLarge(bytes_max, len(body))
    return body


async def call_of(route: Route, caller: Caller, request: web.Request) -> Call:
    """Return the request as a call, checked against the route.

    Raises:
        MalformedMessage: path, query or body does not fit the route.
        web.HTTPException, TimeoutError: see read_body; also if the body is not JSON.
    """
    params = dict(request.match_info)
    if any(len(value) > PARAMETER_LENGTH_MAX for value in params.values()):
        raise MalformedMessage(f"a path parameter is longer than {PARAMETER_LENGTH_MAX} characters")
    return Call(caller, params, _query(route, request), await _body(route, request) if route.method == "POST" else None)


def _query(route: Route, request: web.Request) -> BaseModel | None:
    given = list(request.query.items())
    if len({name for name, _ in given}) != len(given) or len(given) > QUERY_KEYS_MAX:
        raise MalformedMessage("the query has a key twice, or too many keys")
    if route.query is None:
        if given:
            raise MalformedMessage(f"{route.path} takes no query, and ?{given[0][0][:64]}= was sent")
        return None
    try:
        return route.query.model_validate(dict(given))
    except ValidationError as error:
        raise _invalid("query", error) from None


async def _body(route: Route, request: web.Request) -> BaseModel | None:
    if request.content_type != JSON:
        raise web.HTTPUnsupportedMediaType
    body = await read_body(request)
    if route.body is None:
        if body.strip() not in (b"", b"{}"):
            raise MalformedMessage(f"{route.path} takes no body", fix="send {}")
        return None
    try:
        return route.body.model_validate_json(body)
    except ValidationError as error:
        raise _invalid("body", error) from None


def _invalid(where: str, error: ValidationError) -> MalformedMessage:
    """Describe the first problem that validation found, without what was sent."""
    first: Any = error.errors(include_url=False, include_context=False, include_input=False)[0]
    place = ".".join(str(part) for part in first["loc"])[:128]
    return MalformedMessage(
        f"the {where} is invalid" + (f" at {place}" if place else ""),
        cause=str(first["msg"])[:256],
        fix="see /api/v1/openapi.json",
    )


_HTTP_ERRORS = {
    404: ("there is nothing at this address", "see /api/v1/openapi.json"),
    405: ("this address does not accept that method", "see /api/v1/openapi.json"),
    413: ("the body is too long", f"send at most {BODY_BYTES_MAX} bytes"),
    415: ("the body is not JSON", f"send it with Content-Type: {JSON}"),
}


def answer_to(error: Exception, caller: Caller) -> web.Response | None:
    """Return the error as a response; None for an error of the coordinator itself."""
    match error:
        case NotAllowed():
            bare = caller in (STRANGER, LOOPBACK)  # a token would help
            headers = {"WWW-Authenticate": 'Bearer realm="rollcast"'} if bare else {}
            return error_response(401 if bare else 403, error, headers)
        case web.HTTPException() if error.status >= 400:
            what, fix = _HTTP_ERRORS.get(error.status, (error.reason, ""))
            headers = {"Allow": error.headers["Allow"]} if "Allow" in error.headers else {}
            return error_response(error.status, MalformedMessage(what, fix=fix), headers)
        case TimeoutError():
            return error_response(408, MalformedMessage("the request took too long"))
        case NotProfiled() | RunOver():
            return error_response(409, error)
        case StoreError() | WaitTimedOut():
            return error_response(503, error)
        case MalformedMessage():
            return error_response(400, error)
        case RollcastError():
            return error_response(403, error)
        case _:
            return None


def error_response(status: int, error: RollcastError, headers: dict[str, str] | None = None) -> web.Response:
    """Return a response whose JSON is {"code", "what", "cause", "fix"}."""
    return web.Response(text=error_to_json(error), status=status, content_type=JSON, headers=headers)
