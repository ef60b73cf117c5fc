"""What a route of the API is: who may call it, what it takes and gives. Read by the server and by OpenAPI alike."""

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

#: JSON made already, for what is made once for all who ask.
JsonText = NewType("JsonText", str)
Answer = Mapping[str, Any] | BaseModel | JsonText


class Body(BaseModel):
    """Base of what is posted: nothing that is not asked for, no conversion of types."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False, str_max_length=TEXT_LENGTH_MAX
    )


class Query(BaseModel):
    """Base of what stands behind the question mark: texts there, converted."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, str_max_length=TEXT_LENGTH_MAX)


@dataclass(frozen=True, slots=True)
class Caller:
    """Args: who: name of the token; "loopback" where reading needs none; empty for strangers."""

    who: str
    access: Access

    def may(self, needed: Access) -> bool:
        return ACCESSES.index(self.access) >= ACCESSES.index(needed)


@dataclass(frozen=True, slots=True)
class Call:
    """One request, allowed and checked.

    Args:
        params: of the path.
        query, body: instances of the route's models; None where it has none.
    """

    caller: Caller
    params: Mapping[str, str] = field(default_factory=dict)
    query: Any = None
    body: Any = None


@dataclass(frozen=True, slots=True)
class Route:
    """A method and path that answer JSON.

    Args:
        path: with parameters in braces, for example "/api/v1/events/{id}".
        access: the least that a caller must be.
        handler: raises a RollcastError to refuse.
        summary: one sentence, for the API's description.
        query, body: models; a GET has no body.
        answer: a type for pydantic.TypeAdapter.
        act: what the audit log calls it; empty for what changes nothing.
        about: subject and detail for the audit log; else the path's parameters, and the body as JSON.
        outcome: of an answer, for the audit log; else "done".
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


@dataclass(frozen=True, slots=True)
class RawRoute:
    """A method and path that read and write for themselves: streams, uploads, texts. Access is checked before.

    Args:
        content_type: of what it answers.
    """

    method: Method
    path: str
    access: Access
    handler: Callable[[web.Request, Caller], Awaitable[web.StreamResponse]]
    summary: str
    content_type: str = "application/json"


@dataclass(frozen=True, slots=True)
class Topic:
    """Something that the stream tells of.

    Args:
        name: of the event, and in ?topics=.
        make: called once a second for all who listen, only while somebody does; None: nothing new.
        first: what one who begins to listen gets at once; else the newest that make gave.
    """

    name: str
    make: Callable[[], JsonText | None]
    first: Callable[[], JsonText | None] | None = None
