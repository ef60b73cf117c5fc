"""The local TCP port of hole punching: a router maps all connections from one local port to the same outside port."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Callable

Address = tuple[str, int]

_BACKLOG = 16


def address_in(text: str) -> Address | None:
    """Parse ip:port, or [ip]:port of IPv6; port 0: unknown. None: not such an address."""
    host, _, port = text.rpartition(":")
    try:
        bracketed = host.startswith("[") and host.endswith("]")
        found = str(ipaddress.IPv6Address(host[1:-1]) if bracketed else ipaddress.IPv4Address(host))
        number = int(port) if port.isdecimal() and len(port) <= 5 else -1
    except ValueError:
        return None
    return (found, number) if 0 <= number < 1 << 16 else None


class PunchPort:
    """A local port, held until ``close``; only processes of the same user can bind it as well.

    Args:
        host: address of the interface, which decides between IPv4 and IPv6; 0.0.0.0, or "::" for IPv6: the one on the
            route to the remote.
        number: port number; 0: the system chooses.

    Raises:
        OSError: the port cannot be bound.
    """

    def __init__(self, host: str = "0.0.0.0", number: int = 0) -> None:
        self._host, self.number = host, number
        self.family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._holder = self.bound()
        self.number = int(self._holder.getsockname()[1])
        self._listener: socket.socket | None = None

    def bound(self) -> socket.socket:
        """Return another socket bound to this port (SO_REUSEPORT), to dial or listen with."""
        one = socket.socket(self.family, socket.SOCK_STREAM)
        try:
            one.setblocking(False)
            if self.family == socket.AF_INET6:
                one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            one.bind((self._host, self.number))
        except BaseException:
            one.close()
            raise
        return one

    async def dialled(self, remote: Address) -> socket.socket:
        """Connect to ``remote``. If it dials this port at the same moment, both get one connection (RFC 9293, 3.5).

        Raises:
            OSError: the connection failed.
        """
        one = self.bound()
        try:
            await asyncio.get_running_loop().sock_connect(one, remote)
        except BaseException:
            one.close()
            raise
        return one

    def listen(self, came: Callable[[socket.socket, Address], None]) -> None:
        """Pass every incoming connection and its remote address to ``came``, until ``deafen`` is called.

        Raises:
            OSError: the port cannot be listened on.
        """
        if self._listener is None:
            listener = self.bound()
            try:
                listener.listen(_BACKLOG)
            except BaseException:
                listener.close()
                raise
            self._listener = listener
            asyncio.get_running_loop().add_reader(listener, _accept, listener, came)

    def deafen(self) -> None:
        """Stop listening."""
        if self._listener is not None:
            asyncio.get_running_loop().remove_reader(self._listener)
            self._listener.close()
            self._listener = None

    def close(self) -> None:
        """Release the port; open connections stay."""
        self.deafen()
        self._holder.close()


def _accept(listener: socket.socket, came: Callable[[socket.socket, Address], None]) -> None:
    try:
        one, remote = listener.accept()
    except OSError:  # the remote end has closed it already, or too many files are open; attempts have a deadline
        return
    one.setblocking(False)
    came(one, (str(remote[0]), int(remote[1])))
