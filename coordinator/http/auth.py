"""Authenticate callers and check their roles.

A token travels in the Authorization header only. No browser adds that header by itself, as it does with cookies, so
another site cannot act in a person's name (OWASP, Cross-Site Request Forgery Prevention). In addition acts must be
JSON, and requests that a browser marks as another site's are refused.
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
    """Looks up the caller that a token belongs to."""

    def caller_of(self, token: str) -> Caller | None: ...


class Gate:
    """Finds the caller of a request.

    Args:
        key: the run folder's operator key, an admin's.
        open_reading: whether callers without a token are viewers; for loopback only.
    """

    def __init__(self, key: str, tokens: Tokens, *, open_reading: bool) -> None:
        self._key = key.encode()
        self._tokens = tokens
        self.open_reading = open_reading

    def caller(self, headers: Mapping[str, str]) -> Caller:
        """Return the sender of these headers; an invalid token makes a stranger, never a viewer."""
        scheme, _, token = headers.get("Authorization", "").partition(" ")
        if scheme.lower() != _BEARER:
            return LOOPBACK if self.open_reading else STRANGER
        if hmac.compare_digest(token.strip().encode("utf-8", "replace"), self._key):
            return Caller(KEY_NAME, "admin")
        return self._tokens.caller_of(token.strip()) or STRANGER


def check_access(caller: Caller, needed: Access) -> None:
    """Check that the caller has the needed role.

    Raises:
        NotAllowed: the caller's role is lower.
    """
    if caller.may(needed):
        return
    if caller in (STRANGER, LOOPBACK):
        raise NotAllowed(
            f"this request needs a token with the role {needed}",
            cause="the request has no token, or one that is unknown, expired or revoked",
            fix="open the page with `rollcast dashboard`, or ask an admin of the run for a token",
        )
    raise NotAllowed(
        f"this request needs the role {needed}, and {caller.who} has the role {caller.access}",
        fix=f"use a token made with `rollcast token create --role {needed}`",
    )


def check_site(method: str, headers: Mapping[str, str]) -> None:
    """Refuse a request that a browser sends for a page of another site (Fetch Metadata, W3C; RFC 6454).

    Raises:
        NotAllowed: the request comes from another site.
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
