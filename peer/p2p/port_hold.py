"""A TCP port that only one peer listens on: libp2p sets SO_REUSEPORT, and two would share it in silence."""

from __future__ import annotations

import fcntl
import os
import socket
import tempfile
from pathlib import Path

from rollcast.runtime.errors import PortInUse


class PortHold:
    """Held until ``release``, or until the process ends.

    Args:
        port: 0 lets the system choose.
        folder: of the lock file; the same for all processes of this user.

    Raises:
        PortInUse: another process listens there, or it cannot be bound.
    """

    def __init__(self, host: str, port: int, folder: Path | None = None) -> None:
        self.port = _bindable(host, port)
        folder = folder or Path(tempfile.gettempdir())
        path = folder / f"rollcast-p2p-{os.getuid()}-{self.port}.lock"
        try:
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise _in_use(host, self.port, str(error)) from None
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._descriptor)
            raise _in_use(host, self.port, f"another peer holds {path}") from None

    def release(self) -> None:
        """Let others have it. The file stays: removing it would let two hold files of one name."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def _bindable(host: str, port: int) -> int:
    """The port, once a socket that shares it with nobody could be bound to it."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections of a listener before do not matter
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
