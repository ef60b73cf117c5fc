"""Runs one command: input in, output out, bounded in bytes and in time."""

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
    """How a command ended."""

    status: int
    output: bytes
    errors: bytes

    def last_words(self) -> str:
        """The end of what it wrote on stderr, or else on stdout, in one line of printable characters."""
        text = (self.errors.strip() or self.output.strip())[-_QUOTED_BYTES:].decode(errors="replace")
        return " ".join("".join(one if one.isprintable() else " " for one in text).split())


async def run_command(
    command: Sequence[str],
    data: bytes = b"",
    *,
    deadline_s: float,
    environment: Mapping[str, str] | None = None,
) -> Done:
    """Run a command, and kill it where it takes too long, says too much, or its caller is cancelled.

    Args:
        command: the program and its arguments; no shell is involved.
        data: its standard input.
        environment: on top of ours.

    Raises:
        ProviderFailed: it cannot be started, or was killed.
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
        raise ProviderFailed(f"{command[0]} said more than {OUTPUT_BYTES_MAX} bytes") from None
    finally:
        await _end(process)


class _TooLong(Exception):
    """More output than anybody needs."""


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
    with contextlib.suppress(ConnectionError):  # it ended without reading: its status says why
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
    # Its pipes stay open where they were not read to their end, or a grandchild holds them; asyncio has no other way.
    process._transport.close()  # type: ignore[attr-defined]
    await asyncio.sleep(0)
