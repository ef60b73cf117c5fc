"""Find the hop that fails on the way to a coordinator: name lookup, connection, TLS, clock or certificate.

The diagnosis runs only after a failure, because it opens and closes a connection of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from dataclasses import dataclass
from typing import Any, Literal

from rollcast.runtime.errors import ClockWrong, RollcastError, Unreachable, WrongKey
from rollcast.wire.address_scope import with_port
from rollcast.wire.identity.clock import CLOCK_FIX, out_of_time

HopName = Literal["name lookup", "connection", "TLS", "clock", "certificate", "session"]

LOOKUP_S = 5.0
CONNECT_S = 4.0
HANDSHAKE_S = 5.0
_FIRST_BYTES_S = (
    1.0  # with TLS 1.3 a server rejects our certificate only after the handshake, in place of its first bytes
)
_ADDRESSES_MOST = 4
_ALPN = ["h2", "http/1.1"]  # a gRPC server rejects clients that do not offer h2

_FIXES: dict[HopName, str] = {
    "name lookup": "check the name in the invite, and this machine's DNS (`getent hosts NAME`)",
    "connection": "check that the coordinator runs, that its port is right, and that no firewall is between",
    "TLS": "check the port: another program than a coordinator listens there, or a proxy is between",
    "clock": CLOCK_FIX,
    "certificate": "ask the operator for a new invite: this one is of another run, or has expired",
    "session": "read the coordinator's log: it was reached, but refused the session",
}
_ERRORS: dict[HopName, type[RollcastError]] = {"clock": ClockWrong, "certificate": WrongKey}


@dataclass(frozen=True, slots=True)
class HopFailed:
    """The first hop that fails.

    Args:
        address: the host:port that was to be reached.
        reason: the failure in words, with the addresses that were tried.
    """

    hop: HopName
    address: str
    reason: str

    def __str__(self) -> str:
        place = "" if self.reason.startswith(self.address) else f" of {self.address}"
        return f"{self.hop}{place}: {self.reason}"

    @property
    def fix(self) -> str:
        """Return what the user can do about the failure."""
        return _FIXES[self.hop]

    def as_error(self, what: str) -> RollcastError:
        """Return the error to raise or show; ``what`` names in one sentence what the failure prevented."""
        kind = _ERRORS.get(self.hop, Unreachable)
        return kind(what, cause=str(self), fix=self.fix)


async def failed_hop(address: str, tls: ssl.SSLContext | None, *, reads_first: bool = False) -> HopFailed | None:
    """Connect to ``address`` hop by hop and return the first hop that fails, or None if all succeed.

    Args:
        address: host:port, IPv6 in brackets.
        tls: the context to connect with; its protocols are set here. None means that the server does not use TLS.
        reads_first: whether the server sends first, as gRPC servers do; a rejection of our certificate is seen then.
    """
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    found = await _lookup(address, host, int(port))
    if isinstance(found, HopFailed):
        return found
    reasons = []
    for family, ip in found:
        try:
            async with asyncio.timeout(CONNECT_S):
                reader, writer = await asyncio.open_connection(ip, int(port), family=family)
        except (OSError, TimeoutError) as error:
            reasons.append(f"{with_port(ip, port)} {_connecting(error)}")
            continue
        try:
            return (
                None
                if tls is None
                else await _handshake(address, with_port(ip, port), tls, reader, writer, reads_first)
            )
        finally:
            with contextlib.suppress(RuntimeError):
                writer.transport.abort()
    return HopFailed("connection", address, "; ".join(reasons))


async def _lookup(address: str, host: str, port: int) -> list[tuple[int, str]] | HopFailed:
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(LOOKUP_S):
            answers: list[Any] = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except TimeoutError:
        return HopFailed("name lookup", address, f"no answer about {host!r} in {LOOKUP_S:g} s")
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        return HopFailed("name lookup", address, f"no address for {host!r} ({reason})")
    found = dict.fromkeys((int(family), str(where[0])) for family, _, _, _, where in answers)
    return list(found)[:_ADDRESSES_MOST]


async def _handshake(
    address: str,
    shown: str,
    tls: ssl.SSLContext,
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    reads_first: bool,
) -> HopFailed | None:
    tls.set_alpn_protocols(_ALPN)
    try:
        async with asyncio.timeout(HANDSHAKE_S):
            await writer.start_tls(tls, server_hostname="")
    except ssl.SSLCertVerificationError as error:
        if (wrong := out_of_time(shown, error)) is not None:
            return HopFailed("clock", address, f"{wrong.what} ({wrong.cause})")
        return HopFailed("certificate", address, f"{shown} shows no certificate of this run ({error.verify_message})")
    except TimeoutError:
        return HopFailed("TLS", address, f"{shown} accepts the connection but sends nothing for {HANDSHAKE_S:g} s")
    except (ssl.SSLError, OSError) as error:
        return HopFailed("TLS", address, f"{shown} does not speak TLS ({_reason(error)})")
    if not reads_first:
        return None
    try:
        async with asyncio.timeout(_FIRST_BYTES_S):
            first = await reader.read(1)
    except TimeoutError:
        return None
    except (ssl.SSLError, OSError) as error:
        return HopFailed("certificate", address, f"{shown} rejects our certificate ({_reason(error)})")
    return (
        None
        if first
        else HopFailed("certificate", address, f"{shown} rejects our certificate (it closed the connection)")
    )


def _connecting(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return f"does not answer for {CONNECT_S:g} s"
    return (
        "refuses the connection"
        if isinstance(error, ConnectionRefusedError)
        else f"cannot be reached ({_reason(error)})"
    )


def _reason(error: BaseException) -> str:
    if isinstance(error, ssl.SSLError):
        return error.reason or "SSL error"
    return (error.strerror if isinstance(error, OSError) and error.strerror else str(error)) or type(error).__name__
