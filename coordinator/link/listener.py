"""Listen for gateways in the core's process: on a Unix socket, or over mutual TLS for those of other hosts."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
import stat
from collections import Counter
from pathlib import Path

import structlog

from coordinator.link import frames
from coordinator.link.core_end import CoreEnd, CoreEndSettings
from coordinator.rpc.core_link import LocalCore
from rollcast.runtime.process import bind_error

log = structlog.get_logger()

HANDSHAKE_TIMEOUT_S = 10.0
_SETTING = "gateways.listen"


def host_and_port(address: str) -> tuple[str, int] | None:
    """Return the host and port of HOST:PORT; None for the path of a Unix socket, which has a slash."""
    if "/" in address:
        return None
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


class GatewayListener:
    """Accepts gateways. Its owner must ``close`` it."""

    def __init__(self, core: LocalCore, settings: CoreEndSettings) -> None:
        self._core = core
        self._settings = settings
        self._ends: set[CoreEnd] = set()
        self._server: asyncio.Server | None = None
        self._path: Path | None = None
        self.address = ""
        """Where it listens, once it does."""

    def sessions(self) -> dict[str, int]:
        """Return the number of sessions by gateway; gateways of one name are counted together."""
        counts = Counter[str]()
        for end in self._ends:
            if end.name:
                counts[end.name] += end.session_count
        return counts

    async def listen(self, address: str, tls: ssl.SSLContext) -> None:
        """Listen at the path of a Unix socket, or at HOST:PORT over mutual TLS.

        Raises:
            PortInUse: the address cannot be bound.
        """
        loop, place = asyncio.get_running_loop(), host_and_port(address)
        try:
            if place is None:
                self._path = Path(address)
                bound = await asyncio.to_thread(_bind_path, self._path)
                self._server = await loop.create_unix_server(self._accept, sock=bound)
                self.address = address
            else:
                host, port = place
                self._server = await loop.create_server(
                    self._accept, host, port, ssl=tls, ssl_handshake_timeout=HANDSHAKE_TIMEOUT_S
                )
                self.address = f"{address.rpartition(':')[0]}:{self._server.sockets[0].getsockname()[1]}"
        except OSError as error:
            raise bind_error(address, error, setting=_SETTING) from None
        log.info("gateways may connect", address=self.address)

    def _accept(self) -> asyncio.BufferedProtocol:
        return CoreEnd(self._core, self._settings, self._ends).link

    async def close(self, over: str) -> None:
        """Stop listening and end every link; ``over``: why the run has ended for good, empty if it has not."""
        if self._server is not None:
            self._server.close()
        for end in [*self._ends]:
            if over:
                end.link.send(frames.Over(over))
            end.link.end("the core stops")
        if self._path is not None:
            with contextlib.suppress(OSError):
                await asyncio.to_thread(self._path.unlink)


def _bind_path(path: Path) -> socket.socket:
    """Bind a Unix socket that only this user may connect to, in the place of one that an earlier process left.

    Raises:
        OSError: it cannot be bound.
    """
    with contextlib.suppress(FileNotFoundError):
        if stat.S_ISSOCK(path.stat().st_mode):
            path.unlink()
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        bound.bind(os.fspath(path))
        path.chmod(0o600)  # before it listens: until then nobody can connect
    except OSError:
        bound.close()
        raise
    return bound
