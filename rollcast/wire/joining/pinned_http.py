"""Call a coordinator over HTTP with nothing but an invite.

The run CA is fetched first and must match the fingerprint in the invite; no secret is sent before it does. Answers are
limited in length and must be JSON objects.
"""

from __future__ import annotations

import json
import ssl
from dataclasses import dataclass
from typing import Any

import aiohttp

from rollcast.runtime.errors import JoinRefused, MalformedMessage, WrongKey
from rollcast.wire.identity.certificates import COORDINATOR_NAME, fingerprint_of
from rollcast.wire.joining.error_json import error_from_json
from rollcast.wire.joining.invite import Invite
from rollcast.wire.limits import HTTP_JOIN_BYTES_MAX


async def read_bounded(response: aiohttp.ClientResponse, bytes_max: int) -> bytes:
    """Return the body of a response.

    Raises:
        MalformedMessage: the body is longer than ``bytes_max``.
    """
    data = bytearray()
    async for piece in response.content.iter_any():
        data += piece
        if len(data) > bytes_max:
            raise MalformedMessage(f"the answer of {response.url.host} is too long")
    return bytes(data)


def json_object(data: bytes, url: str, *, fix: str) -> dict[str, Any]:
    """Return the JSON object in a body.

    Args:
        url: the URL that the body came from.
        fix: what the user can do if another program than a coordinator answers there.

    Raises:
        MalformedMessage: the body is not a JSON object.
    """
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise MalformedMessage(f"{url} does not answer like a coordinator", fix=fix)
    return value


class NotReady(Exception):
    """The coordinator answers, but is not ready for the request yet."""


@dataclass(frozen=True, slots=True)
class PinnedHttp:
    """A coordinator whose run CA matched the fingerprint in an invite."""

    invite: Invite
    ca_pem: bytes
    session: aiohttp.ClientSession

    @classmethod
    async def open(cls, session: aiohttp.ClientSession, invite: Invite) -> PinnedHttp:
        """Fetch the run CA and compare it with the invite.

        Raises:
            WrongKey: the server that answers is not the coordinator that wrote the invite.
            MalformedMessage: the server does not answer like a coordinator.
            NotReady: the coordinator is not ready yet.
            aiohttp.ClientError, OSError, TimeoutError: the coordinator cannot be reached.
        """
        url = f"{invite.http_url}/api/v1/ca"
        answer = await _exchange(session, "GET", url, _anybody())
        ca_pem = text_in(answer, "ca_pem").encode("ascii")
        if fingerprint_of(ca_pem) != invite.ca_sha256:
            raise WrongKey(
                f"the server at {invite.http_url} is not the coordinator of this invite",
                cause="its run CA has another fingerprint",
                fix="ask the operator for a new invite, or check the address",
            )
        return cls(invite, ca_pem, session)

    async def exchange(
        self,
        method: str,
        path: str,
        body: dict[str, Any] | None = None,
        *,
        headers: dict[str, str] | None = None,
    ) -> dict[str, Any]:
        """Send a JSON object and return the one in the answer.

        Raises:
            NotReady: the coordinator answers 429 or 5xx.
            RollcastError: the error that the coordinator answers with.
        """
        url = f"{self.invite.http_url}{path}"
        return await _exchange(self.session, method, url, _pinned(self.ca_pem), body, headers)

    def stream_options(self, path: str) -> dict[str, Any]:
        """Return the arguments of a request that streams at this path, with the invite's token."""
        return {"headers": self.authorization, **pinned_options(f"{self.invite.http_url}{path}", self.ca_pem)}

    def trusting(self) -> ssl.SSLContext:
        """Return a context for another kind of TLS connection that trusts only this run's CA, under any name."""
        context = _pinned(self.ca_pem)
        context.check_hostname = False
        return context

    @property
    def authorization(self) -> dict[str, str]:
        """Return the headers that prove possession of the invite."""
        return {"Authorization": f"Invite {self.invite.token}"}


def pinned_options(url: str, ca_pem: bytes) -> dict[str, Any]:
    """Return the arguments of an aiohttp request to a coordinator whose run CA is known."""
    return {"url": url, **_tls(url, _pinned(ca_pem))}


def text_in(answer: dict[str, Any], key: str) -> str:
    """Return an ASCII text of an answer.

    Raises:
        MalformedMessage: the answer has no such text.
    """
    value = answer.get(key)
    if not isinstance(value, str) or not value.isascii():
        raise MalformedMessage(f"the coordinator's answer has no {key}")
    return value


async def _exchange(
    session: aiohttp.ClientSession,
    method: str,
    url: str,
    context: ssl.SSLContext,
    body: dict[str, Any] | None = None,
    headers: dict[str, str] | None = None,
) -> dict[str, Any]:
    async with session.request(
        method, url, json=body, headers=headers, allow_redirects=False, **_tls(url, context)
    ) as response:
        data = await read_bounded(response, HTTP_JOIN_BYTES_MAX)
        if response.status == 200:
            return json_object(data, url, fix="check the address in the invite")
        error = error_from_json(data)
        if response.status >= 500 or response.status == 429:
            raise NotReady(f"the coordinator answers {response.status}" + (f": {error.what}" if error else ""))
        raise error or JoinRefused(f"{url} answers {response.status}", fix="check that this is a coordinator's address")


def _tls(url: str, context: ssl.SSLContext) -> dict[str, Any]:
    is_tls = url.startswith("https:")
    return {"ssl": context if is_tls else True, "server_hostname": COORDINATOR_NAME if is_tls else None}


def _anybody() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def _pinned(ca_pem: bytes) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_verify_locations(cadata=ca_pem.decode("ascii"))
    return context
