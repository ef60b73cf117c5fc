"""Decide which requests the owner's page answers: those of the browser that was given its token, on this machine.

The page is on loopback, where every user of the machine and every web site in the owner's browser can send requests.
So each request names the host that it was opened with (a site that points its own name at 127.0.0.1 does not), those
for figures and acts carry the token, and acts are JSON that no form of another site can send. There are no cookies.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Mapping

HOST = "127.0.0.1"
BODY_BYTES_MAX = 65536
_TOKEN_BYTES = 32
_OWN_SITES = ("", "same-origin", "none")  # Sec-Fetch-Site; empty: the browser does not send it


def new_token() -> str:
    """Return a new secret for the owner's browser."""
    return secrets.token_urlsafe(_TOKEN_BYTES)


def refusal(method: str, path: str, headers: Mapping[str, str], *, token: str, port: int) -> tuple[int, str] | None:
    """Return why a request is refused, as an HTTP status and in words; None: it is answered.

    Args:
        headers: the request's headers, whose names are found whatever their case.
    """
    if headers.get("Host", "") not in (f"{HOST}:{port}", f"localhost:{port}"):
        return 421, "this page is served under another host name"
    if not path.startswith("/api/"):
        return None if method in ("GET", "HEAD") else (405, "only GET and HEAD are allowed here")
    kind, _, given = headers.get("Authorization", "").partition(" ")
    if kind.lower() != "bearer" or not hmac.compare_digest(given.encode(), token.encode()):
        return 401, "this request requires the token in the address that `rollcast peer page` prints"
    if method == "GET":
        return None
    if method != "POST":
        return 405, "only GET and POST are allowed here"
    if headers.get("Sec-Fetch-Site", "") not in _OWN_SITES:
        return 403, "requests of other sites are refused"
    if headers.get("Origin", f"http://{HOST}:{port}") not in (f"http://{HOST}:{port}", f"http://localhost:{port}"):
        return 403, "requests of other sites are refused"
    if headers.get("Content-Type", "").partition(";")[0].strip() != "application/json":
        return 415, "the request body must be JSON"
    return None
