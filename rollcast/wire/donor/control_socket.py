"""Connect the command line with the peer's daemon on one machine: one line of JSON each way over a Unix socket.

The socket lies in the peer's state folder and only its owner may open it. This module imports only the standard
library and our errors, because `rollcast peer status` must answer at once.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import tempfile
from pathlib import Path
from typing import Any

from rollcast.runtime.errors import DaemonAway, MalformedMessage, WaitTimedOut
from rollcast.wire.donor.process_end import last_end

REQUEST_BYTES_MAX = 4096
REPLY_BYTES_MAX = 1 << 20
DEADLINE_S = 5.0
_NAME = "control.sock"
_PATH_BYTES_MAX = 100  # a Unix socket's path has at most 107 bytes


def socket_path(state_folder: Path) -> Path:
    """Return the path of the daemon's socket: in the state folder, or in a short one if that path is too long.

    A folder that is named through a link, such as `runs/latest/peers/peer-1`, has the socket of the folder itself.
    """
    folder = state_folder.resolve()
    path = folder / _NAME
    digest = hashlib.sha256(os.fsencode(folder)).hexdigest()[:16]
    short = f"rollcast-{os.getuid()}-{digest}.sock"
    folders = filter(None, (os.environ.get("XDG_RUNTIME_DIR"), tempfile.gettempdir(), "/tmp"))
    candidates = [path, *(Path(folder) / short for folder in folders)]
    return next((one for one in candidates if len(os.fsencode(one)) <= _PATH_BYTES_MAX), candidates[-1])


def request(state_folder: Path, values: dict[str, Any], deadline_s: float = DEADLINE_S) -> dict[str, Any]:
    """Send one request to the daemon and return its reply.

    Raises:
        DaemonAway: no peer runs from this state folder.
        WaitTimedOut: the daemon does not answer within the deadline.
        MalformedMessage: the answer is not a reply.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(deadline_s)
        try:
            connection.connect(os.fspath(socket_path(state_folder)))
            connection.sendall(json.dumps(values).encode() + b"\n")
            connection.shutdown(socket.SHUT_WR)
            reply = _read(connection)
        except TimeoutError:
            raise WaitTimedOut(
                f"the peer of {state_folder} did not answer within {deadline_s:g} s",
                fix="look at its log, and restart it if it hangs",
            ) from None
        except OSError as error:
            never = isinstance(error, FileNotFoundError) and "none has been started there, or it has ended"
            raise DaemonAway(
                f"no peer runs from {state_folder}",
                cause=last_end(state_folder) or never or error.strerror or str(error),
                fix="start it with `rollcast peer join INVITE` or `peer run CONFIG`, or name its folder with --state",
            ) from None
    return parse(reply)


def parse(line: bytes) -> dict[str, Any]:
    """Parse one line into a message.

    Raises:
        MalformedMessage: the line is not one JSON object.
    """
    try:
        values = json.loads(line)
    except ValueError:
        values = None
    if not isinstance(values, dict):
        raise MalformedMessage("the line is not a message between a peer and its command line")
    return values


def _read(connection: socket.socket) -> bytes:
    parts: list[bytes] = []
    size = 0
    while part := connection.recv(65536):
        parts.append(part)
        size += len(part)
        if size > REPLY_BYTES_MAX:
            raise MalformedMessage(f"a reply has at most {REPLY_BYTES_MAX} bytes")
    return b"".join(parts)
