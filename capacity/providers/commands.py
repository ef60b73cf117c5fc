"""Run one command with an input, and return its output, bounded in bytes and in time."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rollcast.runtime.errors import ProviderFailed

OUTPUT_BYTES_MAX = 4 << 20
_QUOTED_BYTES = 600
_READ_BYTES = 1 << 16
_REAP_S = 2.0


@dataclass(frozen=True, slots=True)
class Done:
    """The exit status of a command that ended by itself, with its stdout and stderr."""

    status: int
    output: bytes
    errors: bytes

    def last_words(self) -> str:
        """Return the end of its stderr, or of its stdout if that is empty, as one line of printable characters."""
        text = (self.errors.strip() or self.output.strip())[-_QUOTED_BYTES:].decode(errors="replace")
        return " ".join("".join(one if one.isprintable() else " " for one in text).split())


async def run_command(
    command: Sequence[str],
    data: bytes = b"",
    *,
    deadline_s: float,
    environment: Mapping[str, str] | None = None,
) -> Done:
    """Run a command, and kill it if it takes too long, prints too much, or its caller is cancelled.

    Args:
        command: the program and its arguments; no shell is involved.
        data: bytes for the command's standard input.
        deadline_s: seconds that the command may take.
        environment: variables on top of those of this process.

    Raises:
        ProviderFailed: the command cannot be started, took longer than ``deadline_s``, or printed more than
            OUTPUT_BYTES_MAX.
    """
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, **(environment or {})},
        )
    except OSError as error:
        raise ProviderFailed(f"cannot run {command[0]}", cause=str(error), fix="install it, or name its path") from None
    try:
        async with asyncio.timeout(deadline_s):
            return await _converse(process, data)
    except TimeoutError:
        raise ProviderFailed(f"{command[0]} took longer than {deadline_s:g} s") from None
    except _TooLong:
        raise ProviderFailed(f"{command[0]} printed more than {OUTPUT_BYTES_MAX} bytes") from None
    finally:
        await _end(process)


class _TooLong(Exception):
    """The command printed more than OUTPUT_BYTES_MAX on one of its outputs."""


async def _converse(process: asyncio.subprocess.Process, data: bytes) -> Done:
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    output, errors, _ = await asyncio.gather(_read(process.stdout), _read(process.stderr), _write(process.stdin, data))
    return Done(await process.wait(), output, errors)


async def _read(stream: asyncio.StreamReader) -> bytes:
    found = bytearray()
    while part := await stream.read(_READ_BYTES):
        found += part
        if len(found) > OUTPUT_BYTES_MAX:
            raise _TooLong
    return bytes(found)


async def _write(stream: asyncio.StreamWriter, data: bytes) -> None:
    with contextlib.suppress(ConnectionError):  # the command ended without reading: its status has the reason
        stream.write(data)
        await stream.drain()
        stream.close()
        await stream.wait_closed()


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_REAP_S):
                await process.wait()
    # Pipes stay open if they were not read to their end, or a grandchild holds them. asyncio's Process has no public
    # way to close them.
    process._transport.close()  # type: ignore[attr-defined]
    await asyncio.sleep(0)
