"""Hold a TCP port for one peer: libp2p sets SO_REUSEPORT, so two peers would share a port without noticing."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import tempfile
from pathlib import Path

from rollcast.runtime.errors import PortInUse

_TRIES = 8


class PortHold:
    """A port, held until ``release`` or until the process ends.

    Args:
        host: interface to listen on.
        port: port to hold; 0 lets the system choose.
        folder: folder of the lock file, the same for all processes of this user; None: the system's temporary folder.

    Raises:
        PortInUse: another process listens there, or it cannot be bound.
    """

    def __init__(self, host: str, port: int, folder: Path | None = None) -> None:
        self._folder = folder or Path(tempfile.gettempdir())
        self._descriptor = -1
        for tries_left in reversed(range(_TRIES)):
            self.port = _bindable(host, port)
            try:
                if self._take(host):
                    return
            except PortInUse:
                # The system may choose a port that another peer is about to bind, or has bound in another network
                # namespace.
                if port or not tries_left:
                    raise
        raise _in_use(host, self.port, f"{self._path} is taken by another peer at every try")

    def release(self) -> None:
        """Release the port for other peers."""
        if self._descriptor >= 0:
            with contextlib.suppress(OSError):
                self._path.unlink()  # while it is locked: a process that opens the name from now on makes a new file
            os.close(self._descriptor)
            self._descriptor = -1

    @property
    def _path(self) -> Path:
        return self._folder / f"rollcast-p2p-{os.getuid()}-{self.port}.lock"

    def _take(self, host: str) -> bool:
        """Lock the port's file; return False if its holder removed the file between our opening and locking it."""
        try:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise _in_use(host, self.port, str(error)) from None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            same = os.path.samestat(os.fstat(descriptor), self._path.stat())
        except FileNotFoundError:
            same = False
        except BlockingIOError:
            os.close(descriptor)
            raise _in_use(host, self.port, f"another peer holds {self._path}") from None
        if not same:
            os.close(descriptor)
            return False
        self._descriptor = descriptor
        return True


def _bindable(host: str, port: int) -> int:
    """Return the port after a socket could be bound to it that does not share it."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # an earlier listener's connections do not matter
        try:
            probe.bind((host, port))
        except OSError as error:
            raise _in_use(host, port, str(error)) from None
        bound: int = probe.getsockname()[1]
        return bound


def _in_use(host: str, port: int, cause: str) -> PortInUse:
    return PortInUse(
        f"cannot listen for p2p links on {host}:{port}",
        cause=cause,
        fix="stop the other process, or set another port (0 lets the system choose)",
    )
