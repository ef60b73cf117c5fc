"""The daemon's end of the control socket, which answers its owner's commands (rollcast.wire.donor.control_socket)."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import structlog

from rollcast.runtime.errors import MalformedMessage, RollcastError
from rollcast.runtime.process import bind_error
from rollcast.wire.donor.control_socket import DEADLINE_S, REQUEST_BYTES_MAX, parse, socket_path
from rollcast.wire.joining.error_json import error_to_json

log = structlog.get_logger()

CONNECTIONS_MAX = 16
_FOR_S_MAX = 366 * 86400.0

#: A command: takes the unchecked request, and returns the reply.
Command = Callable[[dict[str, Any]], dict[str, Any]]


class Control:
    """Serve commands on a Unix socket.

    Args:
        commands: commands by name; they run on the event loop and must not block.
    """

    def __init__(self, commands: dict[str, Command]) -> None:
        self._commands = commands
        self._open = 0

    @asynccontextmanager
    async def serving(self, state_folder: Path) -> AsyncIterator[None]:
        """Listen while the body runs. The caller holds the lock of the state folder, so an old socket is removed.

        Raises:
            PortInUse: the socket cannot be created.
        """
        path = socket_path(state_folder)
        path.unlink(missing_ok=True)
        mask = os.umask(0o177)
        try:
            server = await asyncio.start_unix_server(self._connected, path, limit=REQUEST_BYTES_MAX)
        except OSError as error:
            raise bind_error(str(path), error, setting="state_folder") from None
        finally:
            os.umask(mask)
        try:
            yield
        finally:
            server.close()
            path.unlink(missing_ok=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._open >= CONNECTIONS_MAX:
            writer.transport.abort()
            return
        self._open += 1
        try:
            async with asyncio.timeout(DEADLINE_S):
                line = await reader.readline()
                writer.write(json.dumps(self.answer(line)).encode() + b"\n")
                await writer.drain()
        except (TimeoutError, ConnectionError, ValueError):  # ValueError: a line longer than the limit
            pass  # the command line sees the connection end
        finally:
            self._open -= 1
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    def answer(self, line: bytes) -> dict[str, Any]:
        """Return the reply to one request; an error becomes {"error": its JSON}."""
        try:
            values = parse(line)
            command = self._commands.get(str(values.get("do")))
            if command is None:
                raise MalformedMessage(
                    f"this peer knows no command {str(values.get('do'))[:40]!r}",
                    fix="use the same version of rollcast for the command line and the daemon",
                )
            return command(values)
        except RollcastError as error:
            return {"error": error_to_json(error)}


def seconds_of(values: dict[str, Any]) -> float | None:
    """Return the argument for_s of a request; None: it has none.

    Raises:
        MalformedMessage: it is not a number of seconds from 0 to a year.
    """
    value = values.get("for_s")
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= _FOR_S_MAX:
        raise MalformedMessage("for_s must be seconds, more than 0 and at most a year")
    return float(value)
