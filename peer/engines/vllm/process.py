"""Run the vLLM server as a child process: send it commands, receive its frames, keep its log, end it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import structlog

from peer.engines.vllm.server.frames import BadFrame, Frame, FrameReader, encode

READ_BYTES = 1 << 20
CLOSE_S = 3.0
"""Seconds that the server and vLLM's processes get to end and to remove their shared memory, before they are killed."""

_POLL_S = 0.02

LOG_LINE_LENGTH_MAX = 500
LOG_LINES_BURST = 50
LOG_LINES_PER_S = 5.0
TAIL_LINES = 12

log = structlog.get_logger()


class ServerLost(Exception):
    """The server ended, hangs, broke the protocol or failed at a command; it must be ended and may be started again."""


class ServerProcess:
    """One life of the server.

    Args:
        received: called with each frame that is no answer: progress and tokens.
        lost: called once when the server is lost.
    """

    def __init__(self, received: Callable[[Frame], None], lost: Callable[[], None]) -> None:
        self._received = received
        self._when_lost = lost
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._asked = 0
        self._lines = LogLines()
        self._tasks: list[asyncio.Task[None]] = []
        self.cause = ""
        """Why the server is lost; empty while it is not."""

    async def start(self, command: Sequence[str], environment: Mapping[str, str], folder: Path) -> None:
        """Start ``command FD`` with FD the number of its end of a socket pair, in a process group of its own.

        Raises:
            ServerLost: the program cannot be started.
        """
        ours, theirs = socket.socketpair()
        try:
            self._process = await asyncio.create_subprocess_exec(
                *command,
                str(theirs.fileno()),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                env=dict(environment),
                cwd=folder,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,  # so that vLLM's own processes can be killed with it
            )
        except OSError as error:
            ours.close()
            raise ServerLost(f"{command[0]} cannot be started: {error}") from None
        finally:
            theirs.close()
        reader, self._writer = await asyncio.open_connection(sock=ours)
        self._tasks = [asyncio.create_task(self._receive(reader)), asyncio.create_task(self._keep_log())]

    async def call(self, header: dict[str, Any], *, timeout_s: float, doing: str) -> dict[str, Any]:
        """Send a command and return its answer.

        Raises:
            ServerLost: the command failed, or was not answered within ``timeout_s``; the message names ``doing``.
        """
        self._asked += 1
        number = self._asked
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._answers[number] = answer
        self.send(Frame(header | {"id": number}))
        try:
            async with asyncio.timeout(timeout_s):
                found = await answer
        except TimeoutError:
            raise ServerLost(f"no answer within {timeout_s:g} s while {doing}") from None
        finally:
            self._answers.pop(number, None)
        if "error" in found:
            raise ServerLost(f"{doing} failed: {str(found['error'])[:2000]}")
        return found

    def send(self, frame: Frame) -> None:
        """Send a command that is not answered.

        Raises:
            ServerLost: the server is lost.
        """
        if self.cause:
            raise ServerLost(self.cause)
        self._writer.write(encode(frame))

    async def close(self) -> None:
        """End the server and all its processes within CLOSE_S and a moment."""
        self.cause = self.cause or "the engine was closed"
        if not self._tasks:
            return
        self._writer.close()
        with contextlib.suppress(TimeoutError, ProcessLookupError):
            async with asyncio.timeout(CLOSE_S):
                await self._process.wait()
                while True:  # until the group has no process left
                    os.killpg(self._process.pid, 0)
                    await asyncio.sleep(_POLL_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        await self._process.wait()
        # Both ends of the log's pipe are closed once no process of the group is left; its transport needs that.
        await asyncio.wait(self._tasks, timeout=CLOSE_S)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []

    async def _receive(self, reader: asyncio.StreamReader) -> None:
        frames, why = FrameReader(), ""
        try:
            while data := await reader.read(READ_BYTES):
                for frame in frames.receive(data):
                    self._take(frame)
        except ServerLost as error:
            why = str(error)
        except (BadFrame, OSError, KeyError, TypeError, ValueError) as error:
            why = f"it broke the protocol: {error!r}"[:300]
        self._lose(why or await self._how_it_ended())

    def _take(self, frame: Frame) -> None:
        if frame.header.get("is") != "answer":
            self._received(frame)
            return
        answer = self._answers.get(frame.header["id"])
        if answer is not None and not answer.done():
            answer.set_result(frame.header)

    def _lose(self, cause: str) -> None:
        self.cause = self.cause or cause
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(ServerLost(self.cause))
        self._when_lost()

    async def _how_it_ended(self) -> str:
        """Return how the process ended, with the end of its log."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                await self._process.wait()
                await asyncio.wait(self._tasks[1:])
        match self._process.returncode:
            case None:
                how = "it closed its connection"
            case -9:
                how = "it was killed (signal 9), most often because memory ran out"
            case status if status < 0:
                how = f"it was ended by signal {-status}"
            case status:
                how = f"it ended with exit status {status}"
        tail = "; ".join(self._lines.tail)
        return f"{how}; its last lines: {tail}" if tail else how

    async def _keep_log(self) -> None:
        output = self._process.stdout
        assert output is not None
        now = asyncio.get_running_loop().time
        while data := await output.read(READ_BYTES):
            for line in self._lines.receive(data, now()):
                log.info("vllm", line=line)


class LogLines:
    """Cuts a child's output into lines of limited length and number. Pure."""

    def __init__(self) -> None:
        self.tail: deque[str] = deque(maxlen=TAIL_LINES)
        """The last lines, those that were not logged included."""
        self._partial = b""
        self._allowance = float(LOG_LINES_BURST)
        self._refilled_s: float | None = None
        self._dropped = 0

    def receive(self, data: bytes, now: float) -> list[str]:
        """Return the lines to log; at most LOG_LINES_BURST at once and LOG_LINES_PER_S on average."""
        *whole, partial = (self._partial + data).split(b"\n")
        self._partial = partial[: LOG_LINE_LENGTH_MAX * 4]
        if self._refilled_s is not None:
            refill = (now - self._refilled_s) * LOG_LINES_PER_S
            self._allowance = min(float(LOG_LINES_BURST), self._allowance + refill)
        self._refilled_s = now
        return [text for one in whole if (text := self._admitted(one))]

    def _admitted(self, line: bytes) -> str:
        text = line.decode(errors="replace").strip()[:LOG_LINE_LENGTH_MAX]
        if not text:
            return ""
        self.tail.append(text)
        if self._allowance < 1.0:
            self._dropped += 1
            return ""
        self._allowance -= 1.0
        dropped, self._dropped = self._dropped, 0
        return f"({dropped} lines dropped) {text}" if dropped else text
