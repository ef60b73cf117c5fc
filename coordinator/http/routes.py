"""Describe the API's routes: the role each requires, and the types it accepts and returns, for server and OpenAPI."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NewType

from aiohttp import web
from pydantic import BaseModel, ConfigDict

#: Roles of people and of their tokens, in order of power; each may do what those before it may.
Access = Literal["anyone", "viewer", "operator", "admin"]
TokenAccess = Literal["viewer", "operator", "admin"]
ACCESSES: tuple[Access, ...] = ("anyone", "viewer", "operator", "admin")
Method = Literal["GET", "POST"]

TEXT_LENGTH_MAX = 4096  # of any text in a body or query

#: A text that is JSON already, for answers that are encoded once for all callers.
JsonText = NewType("JsonText", str)
Answer = Mapping[str, Any] | BaseModel | JsonText


class Body(BaseModel):
    """Base of request bodies: no unknown fields, no conversion of types."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False, str_max_length=TEXT_LENGTH_MAX
    )


class Query(BaseModel):
    """Base of query parameters, which arrive as texts and are converted."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, str_max_length=TEXT_LENGTH_MAX)


@dataclass(frozen=True, slots=True)
class Caller:
    """The sender of a request.

    Args:
        who: name of the token; "loopback" if reading needs none; empty for strangers.
        access: the role of the token.
    """

    who: str
    access: Access

    def may(self, needed: Access) -> bool:
        return ACCESSES.index(self.access) >= ACCESSES.index(needed)


@dataclass(frozen=True, slots=True)
class Call:
    """One request that was allowed and checked.

    Args:
        params: path parameters.
        query, body: instances of the route's models; None if the route has none.
    """

    caller: Caller
    params: Mapping[str, str] = field(default_factory=dict)
    query: Any = None
    body: Any = None


@dataclass(frozen=True, slots=True)
class Route:
    """A method and path that answer with JSON.

    Args:
        path: with parameters in braces, for example "/api/v1/events/{id}".
        access: the least role that a caller must have.
        handler: returns the answer, or raises a RollcastError to refuse.
        summary: one sentence for the API's description.
        query, body: models of the request; a GET has no body.
        answer: a type for pydantic.TypeAdapter.
        act: name of the act in the audit log; empty for routes that change nothing.
        about: returns subject and detail for the audit log; None: the path's parameters and the body as JSON.
        outcome: returns the audit log's outcome of an answer; None: "done".
        needs_run: whether the route concerns a run that goes on; it is refused once the run has ended.
    """

    method: Method
    path: str
    access: Access
    handler: Callable[[Call], Awaitable[Answer]]
    summary: str
    query: type[BaseModel] | None = None
    body: type[BaseModel] | None = None
    answer: Any = dict[str, Any]
    act: str = ""
    about: Callable[[Call], tuple[str, str]] | None = None
    outcome: Callable[[Any], str] | None = None
    needs_run: bool = False


@dataclass(frozen=True, slots=True)
class RawRoute:
    """A method and path whose handler reads and writes by itself: streams, uploads, texts. Access is checked before.

    Args:
        content_type: type of the response.
    """

    method: Method
    path: str
    access: Access
    handler: Callable[[web.Request, Caller], Awaitable[web.StreamResponse]]
    summary: str
    content_type: str = "application/json"


@dataclass(frozen=True, slots=True)
class Topic:
    """One subject of the event stream.

    Args:
        name: name of the event, and in ?topics=.
        make: called once a second for all listeners, only while there are any; None: nothing new.
        first: makes the message that a new listener gets at once; by default the newest one of ``make``.
    """

    name: str
    make: Callable[[], JsonText | None]
    first: Callable[[], JsonText | None] | None = None
