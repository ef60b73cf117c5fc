"""Control a child process that is spoken to in JSON lines: start it, send it values, receive values, kill it.

The child's side is coordinator/workers/child.py. A child is trusted to be our own program, not to behave: its lines
are limited, every wait has a deadline, and what it starts is killed with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from asyncio.subprocess import PIPE, Process
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from coordinator.workers.pipe_reader import PipeReader
from rollcast.runtime.errors import TaskError, exit_words
from rollcast.runtime.waits import deadline

START_TIMEOUT_S = 120.0  # a cold import of sympy and friends on a busy machine
DEATH_TIMEOUT_S = 10.0
STATUS_TIMEOUT_S = 1.0  # from the end of a process's output to its status, which only messages need
STDERR_TAIL_BYTES = 2_000
READ_BYTES = 64 << 10
# The environment variables that a child needs; any other might hold a secret.
PASSED_ENVIRONMENT = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "PYTHONPATH", "VIRTUAL_ENV", "XDG_CACHE_HOME")
# Threads of numerical libraries would take the learner's and the peers' cores; no plot is ever drawn.
SET_ENVIRONMENT = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MPLBACKEND": "Agg"}


class WorkerDied(Exception):
    """The process ended, or broke the protocol."""


class WorkerHung(Exception):
    """The process sent nothing within the timeout."""


class LineProcess:
    """A process that can be started again after it was killed.

    Args:
        command: its command line.
        hello: the first value that it is sent; it answers ``{"ready": true, ...}``, or refuses.
        name: what the process is, for errors: "verifier".
        environment: variables besides PASSED_ENVIRONMENT, which they replace.
        line_bytes_max: the longest line that it may send.
    """

    def __init__(
        self,
        command: Sequence[str],
        hello: Mapping[str, Any],
        *,
        name: str,
        environment: Mapping[str, str] | None = None,
        line_bytes_max: int = 16 << 10,
    ) -> None:
        self._command = tuple(command)
        self._hello = hello
        self._name = name
        self._environment = dict(environment or {})
        self._line_bytes_max = line_bytes_max
        self._process: Process | None = None
        self._answers: PipeReader | None = None  # the process's stdout, as long as there is a process
        self._stderr_reader: asyncio.Task[None] | None = None
        self._stderr_tail = b""
        self._unread = b""
        self._reading = asyncio.Lock()  # stdout has one reader: a kill reads its rest after a ``receive`` that waits

    @property
    def pid(self) -> int | None:
        """Return the process id; None if it is not running."""
        return self._process.pid if self._process is not None else None

    @property
    def alive(self) -> bool:
        """Return whether the process runs; False once its end was noticed."""
        return self._process is not None and self._process.returncode is None

    @property
    def stderr_end(self) -> str:
        """Return the end of what the process wrote to stderr."""
        return self._stderr_tail.decode(errors="replace").strip()

    async def start(self) -> Mapping[str, Any]:
        """Start the process, send it the hello, and return its answer once it is ready.

        Raises:
            TaskError: it refuses, ends, or takes too long; no process is left running.
        """
        await self.kill()
        self._unread = self._stderr_tail = b""
        try:
            answer = await self._greet()
        except (WorkerDied, WorkerHung, OSError) as error:
            await self.kill()
            raise TaskError(
                f"a {self._name} process did not start",
                cause=self.stderr_end or str(error),
                fix="run the coordinator with the extra packages of its role; see the cause",
            ) from None
        except BaseException:
            await asyncio.shield(self.kill())
            raise
        if not isinstance(answer, dict) or answer.get("ready") is not True:
            await self.kill()
            refused = answer.get("refused", {}) if isinstance(answer, dict) else {}
            raise TaskError(
                str(refused.get("what", f"a {self._name} process did not start")),
                cause=str(refused.get("cause", "")),
                fix=str(refused.get("fix", "")),
            )
        return answer

    async def send(self, value: Any, timeout_s: float) -> None:
        """Send a value.

        Raises:
            WorkerDied: it ended, or does not read.
        """
        await self.send_json(json.dumps(value).encode(), timeout_s)

    async def send_json(self, line: bytes, timeout_s: float) -> None:
        """Send a value that is encoded as JSON in one line.

        Raises:
            WorkerDied: it ended, or does not read.
        """
        if self._process is None or self._process.stdin is None:
            raise WorkerDied("it is not running")
        self._process.stdin.write(line + b"\n")
        try:
            async with asyncio.timeout(timeout_s):
                await self._process.stdin.drain()
        except (ConnectionError, TimeoutError) as error:
            raise WorkerDied(f"it does not read: {error}") from None

    async def receive(self, timeout_s: float | None, gather_s: float = 0.0) -> Any:
        """Return the next value that it sends; a timeout of None waits for as long as it lives.

        Args:
            gather_s: seconds to wait for further values once one has come, which are then returned without a wait.

        Raises:
            WorkerHung: it sent nothing in time.
            WorkerDied: it ended, or what it sent is not JSON or too long.
        """
        if self._process is None or self._answers is None:
            raise WorkerDied("it is not running")
        if b"\n" not in self._unread:
            await self._read_line(self._answers, timeout_s, gather_s)
        line, _, self._unread = self._unread.partition(b"\n")
        try:
            return json.loads(line)
        except (ValueError, RecursionError):
            raise WorkerDied("its answer is not JSON") from None

    async def _read_line(self, answers: PipeReader, timeout_s: float | None, gather_s: float) -> None:
        try:
            async with asyncio.timeout(None if timeout_s is None else timeout_s + gather_s), self._reading:
                while b"\n" not in self._unread:
                    data = await answers.read(READ_BYTES, gather_s)
                    if not data:
                        raise WorkerDied(await self._how_it_ended())
                    if len(self._unread) > self._line_bytes_max:
                        raise WorkerDied("its answer is too long")
                    self._unread += data
        except TimeoutError:
            raise WorkerHung(f"no answer within {timeout_s:g} s") from None

    async def _how_it_ended(self) -> str:
        """Return how the process ended that has closed its output; its status is known a moment later."""
        if self._process is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(STATUS_TIMEOUT_S):
                    return f"it {exit_words(await self._process.wait())}"
        return "it closed its output"

    async def stop(self, timeout_s: float) -> None:
        """Let the process end by itself, by the end of its stdin, and kill it if it has not ended in time."""
        process = self._process
        if process is not None and process.stdin is not None:
            process.stdin.close()
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await process.wait()
        await self.kill()

    async def kill(self) -> None:
        """Kill the process group now and wait until it has ended; a ``receive`` that waits raises WorkerDied."""
        process, self._process = self._process, None
        answers, self._answers = self._answers, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        assert process.stdin is not None
        assert answers is not None
        process.stdin.close()
        async with deadline(DEATH_TIMEOUT_S, f"a killed {self._name} process to end"):
            async with self._reading:
                while await answers.read(READ_BYTES):
                    pass
                answers.close()
            if self._stderr_reader is not None:
                await self._stderr_reader
            await process.wait()

    async def _greet(self) -> Any:
        environment = {name: os.environ[name] for name in PASSED_ENVIRONMENT if name in os.environ}
        reading, writing = os.pipe()
        answers = PipeReader(reading)
        try:
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=PIPE,
                stdout=writing,
                stderr=PIPE,
                env=environment | SET_ENVIRONMENT | self._environment,
                start_new_session=True,  # so that its children can be killed with it
            )
        except BaseException:
            answers.close()
            raise
        finally:
            os.close(writing)
        self._answers = answers
        self._stderr_reader = asyncio.create_task(self._keep_stderr_tail(self._process))
        with suppress(WorkerDied):  # an answer that it sent before it stopped reading explains more
            await self.send(self._hello, START_TIMEOUT_S)
        return await self.receive(START_TIMEOUT_S)

    async def _keep_stderr_tail(self, process: Process) -> None:
        assert process.stderr is not None
        while data := await process.stderr.read(READ_BYTES):
            self._stderr_tail = (self._stderr_tail + data)[-STDERR_TAIL_BYTES:]
