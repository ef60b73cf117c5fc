"""Who is calling, and whether that is enough.

A token travels in the Authorization header alone. No browser adds that header by itself, as it does with cookies, so
another site cannot act in a person's name (OWASP, Cross-Site Request Forgery Prevention); that acts must be JSON and
that requests which a browser marks as another site's are refused comes on top.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from typing import Protocol
from urllib.parse import urlsplit

from coordinator.http.routes import Access, Caller
from rollcast.runtime.errors import NotAllowed

LOOPBACK = Caller("loopback", "viewer")
STRANGER = Caller("", "anyone")
KEY_NAME = "run's key"  # in the audit log; no token can be called that
_BEARER = "bearer"


class Tokens(Protocol):
    """Whose token it is."""

    def caller_of(self, token: str) -> Caller | None: ...


class Gate:
    """Args:
    key: of the run folder, an admin's.
    open_reading: whoever sends no token is a viewer; for loopback only.
    """

    def __init__(self, key: str, tokens: Tokens, *, open_reading: bool) -> None:
        self._key = key.encode()
        self._tokens = tokens
        self.open_reading = open_reading

    def caller(self, headers: Mapping[str, str]) -> Caller:
        """Who sends these headers; a token that does not hold makes a stranger, never a viewer."""
        scheme, _, token = headers.get("Authorization", "").partition(" ")
        if scheme.lower() != _BEARER:
            return LOOPBACK if self.open_reading else STRANGER
        if hmac.compare_digest(token.strip().encode("utf-8", "replace"), self._key):
            return Caller(KEY_NAME, "admin")
        return self._tokens.caller_of(token.strip()) or STRANGER


def check_access(caller: Caller, needed: Access) -> None:
    """Raises: NotAllowed: the caller may not do what needs that role."""
    if caller.may(needed):
        return
    if caller in (STRANGER, LOOPBACK):
        raise NotAllowed(
            f"this needs a token of the role {needed}",
            cause="none was sent, or the one sent is unknown, expired or revoked",
            fix="open the page with `rollcast dashboard`, or ask an admin of the run for a token",
        )
    raise NotAllowed(
        f"this needs the role {needed}, and {caller.who} is {caller.access}",
        fix=f"use a token made with `rollcast token create --role {needed}`",
    )


def check_site(method: str, headers: Mapping[str, str]) -> None:
    """Refuse what a browser sends for a page of another site (Fetch Metadata, W3C; RFC 6454).

    Raises:
        NotAllowed: it does.
    """
    site, mode = headers.get("Sec-Fetch-Site", ""), headers.get("Sec-Fetch-Mode", "")
    followed_link = method == "GET" and mode == "navigate"
    origin = headers.get("Origin", "")
    foreign = origin and _place(origin) != headers.get("Host", "").lower()
    if foreign or (site in ("cross-site", "same-site") and not followed_link):
        raise NotAllowed("this request comes from a page of another site", fix="use the coordinator's own page")


def _place(origin: str) -> str:
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""
