"""Close connections to the control port that are in excess and carry no call, so that newcomers find room.

gRPC limits connections neither by address nor by what they do: a host that opens sockets and says nothing would take
every descriptor. A connection with a call in progress, such as a session, is never closed here; of the others an
address may have some, and all addresses together a few more. gRPC itself ends handshakes that take too long
(``rollcast.wire.identity.tls.SERVER_OPTIONS``).

Connections that have just been made are counted apart, and of those the newest are closed: where a fleet returns at
once, the oldest are the next to have a call, and whoever closes them does all handshakes in vain. All addresses
together may have as many of them as one alone: no more than a core gets through before members give up.

The sockets belong to gRPC, so they are found in /proc, which only Linux has; elsewhere nothing is closed.
"""

from __future__ import annotations

import asyncio
import os
import re
import socket
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import lru_cache, partial
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import unquote

import structlog

from rollcast.wire.address_scope import plain_host, unmapped
from rollcast.wire.connection_caps import TOO_MANY_CONNECTIONS, excess

log = structlog.get_logger()

INTERVAL_S = 1.0
ARRIVAL_S = 20.0  # that a connection may take until its first call; members give an attempt up after 10 s
HOSTS_KNOWN_MAX = 1 << 14
_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_ESTABLISHED = "01"  # in the column st
_OWN_SOCKETS = Path("/proc/self/fd")

Remote = tuple[str, int]  # IP address and port of the other end


@dataclass(slots=True)
class Busy:
    """Counts the calls in progress by connection."""

    calls: Counter[Remote] = field(default_factory=Counter)

    def began(self, grpc_peer: str) -> None:
        """Count a call of this gRPC peer, such as ``ipv4:192.0.2.7:4242``."""
        remote = remote_of(grpc_peer)
        if remote is not None:
            self.calls[remote] += 1

    def ended(self, grpc_peer: str) -> None:
        """Take a call out of the count."""
        remote = remote_of(grpc_peer)
        if remote is not None:
            self.calls[remote] -= 1
            if not self.calls[remote]:
                del self.calls[remote]


class ConnectionGuard:
    """Watches one port.

    Args:
        refused: counts, by reason, the connections that it closes.
        per_address: connections without a call that one IPv4 address or IPv6 /64 may have, and as many that have just
            been made, by all addresses.
        most: connections without a call that all addresses together may have, those that have just been made aside.
        allowed: connections that the port takes at all; None: any number.
        clock: returns seconds that only grow.
    """

    def __init__(
        self,
        port: int,
        busy: Busy,
        refused: Counter[str],
        *,
        per_address: int,
        most: int,
        allowed: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._port = port
        self._allowed = allowed
        self._was_full = False
        self._busy = busy
        self._per_address, self._most = per_address, most
        self._clock = clock
        self._seen: dict[Remote, float] = {}  # when each was first seen, in this order
        self._refused = refused

    async def run(self) -> None:
        """Check again and again; ends only by cancellation."""
        was_able = True
        while await asyncio.to_thread(_OWN_SOCKETS.exists):
            try:
                await self.check()
                was_able = True
            except OSError as error:  # no descriptor is left to look with, as under the attack that this is for
                if was_able:
                    log.warning("connections without a call cannot be found", cause=str(error))
                was_able = False
            await asyncio.sleep(INTERVAL_S)

    async def check(self) -> int:
        """Close what is in excess now; return how many connections that was."""
        self._report_full()
        idle_most = await asyncio.to_thread(open_files) - len(self._busy.calls)
        if idle_most <= min(self._per_address, self._most):  # the tables have a line for each socket of the machine
            return 0
        count, addresses = await asyncio.to_thread(self._close_excess)
        if not count:
            return 0
        self._refused[TOO_MANY_CONNECTIONS] += count
        log.info("connections without a call were closed", count=count, addresses=addresses)
        return count

    def _report_full(self) -> None:
        """Log once that members have taken all connections that the limit on open files leaves."""
        is_full = self._allowed is not None and len(self._busy.calls) >= self._allowed
        if is_full and not self._was_full:
            fix = "raise the limit on open files (ulimit -Hn, or LimitNOFILE=), or use gateways"
            log.warning("the control port has no room for further members", connections=self._allowed, fix=fix)
        self._was_full = is_full

    def _close_excess(self) -> tuple[int, int]:
        """Close what is in excess; return how many connections that was, and of how many addresses."""
        over = self._excess(dict.fromkeys(established(self._port)))
        count = close(self._port, frozenset(over)) if over else 0
        return count, len({one[0] for one in over})

    def _excess(self, found: Mapping[Remote, None]) -> list[Remote]:
        """Return which of the connections that exist now are to be closed."""
        now = self._clock()
        self._seen = {one: at for one, at in self._seen.items() if one in found}
        for one in found:
            self._seen.setdefault(one, now)
        without_call = [(one[0], one) for one in self._seen if one not in self._busy.calls]
        arrived = [one for one in without_call if now - self._seen[one[1]] < ARRIVAL_S]
        idle = without_call[: len(without_call) - len(arrived)]
        limit = partial(excess, per_address=self._per_address)
        return [*limit(idle, most=self._most), *limit(reversed(arrived), most=self._per_address)]


@lru_cache(maxsize=HOSTS_KNOWN_MAX)  # each call of a connection asks twice
def remote_of(grpc_peer: str) -> Remote | None:
    """Return the address and port of a gRPC peer; None if it is not an IP address."""
    scheme, _, rest = unquote(grpc_peer).partition(":")
    host, _, port = rest.rpartition(":")
    if scheme not in ("ipv4", "ipv6") or not port.isdecimal():
        return None
    try:
        return str(unmapped(ip_address(host.strip("[]").partition("%")[0]))), int(port)
    except ValueError:
        return None


def open_files() -> int:
    """Return how many files and sockets this process has open."""
    return os.stat(_OWN_SOCKETS).st_size or len(os.listdir(_OWN_SOCKETS))  # Linux before 6.2 gives no size


def established(port: int) -> list[Remote]:
    """Return the other ends of this machine's established connections to a local port."""
    ours = re.compile(rf"^ *\d+: [0-9A-F]+:{port:04X} ([0-9A-F]+):([0-9A-F]+) {_ESTABLISHED} ", re.MULTILINE)
    return [
        (_host_from_hex(host), int(remote_port, 16))
        for table in _TABLES
        if table.exists()
        for host, remote_port in ours.findall(table.read_text())
    ]


def close(port: int, remotes: Collection[Remote]) -> int:
    """Shut down this process's connections from ``remotes`` to a local port; return their number.

    The socket is duplicated before it is looked at, so that another one cannot take its descriptor meanwhile.
    """
    closed = 0
    for name in os.listdir(_OWN_SOCKETS):
        try:
            if not os.readlink(_OWN_SOCKETS / name).startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(name))) as one:
                if one.family not in (socket.AF_INET, socket.AF_INET6) or one.getsockname()[1] != port:
                    continue
                host, remote_port = one.getpeername()[:2]
                if (plain_host(host.partition("%")[0]), remote_port) in remotes:
                    one.shutdown(socket.SHUT_RDWR)
                    closed += 1
        except OSError:
            continue  # it was closed meanwhile, or is not connected
    return closed


@lru_cache(maxsize=HOSTS_KNOWN_MAX)  # each look at the tables asks for all of them
def _host_from_hex(words: str) -> str:
    """Return the address that the kernel prints so: 32-bit words in the byte order of the machine."""
    packed = b"".join(bytes.fromhex(words[at : at + 8])[::-1] for at in range(0, len(words), 8))
    return str(unmapped(ip_address(packed)))
