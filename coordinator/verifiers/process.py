"""Control one verifier process for the pool: start it, send a batch, read one result, kill it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from asyncio.subprocess import PIPE, Process
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from rollcast.runtime.errors import TaskError
from rollcast.runtime.waits import deadline

START_TIMEOUT_S = 120.0  # a cold import of sympy and friends on a busy machine
DEATH_TIMEOUT_S = 10.0
ANSWER_BYTES_MAX = 16 << 10
STDERR_TAIL_BYTES = 2_000
READ_BYTES = 64 << 10
# The environment variables that a verifier needs; any other might hold a secret.
PASSED_ENVIRONMENT = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "PYTHONPATH", "VIRTUAL_ENV", "XDG_CACHE_HOME")
# Threads of numerical libraries would take the learner's and the peers' cores; no plot is ever drawn.
SET_ENVIRONMENT = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MPLBACKEND": "Agg"}


class WorkerDied(Exception):
    """The process ended, or broke the protocol."""


class WorkerHung(Exception):
    """The process returned no result within the item's timeout."""


class VerifierProcess:
    """A process that can be restarted after it was killed."""

    def __init__(self, command: Sequence[str], task_config_json: str, seed: int, timeout_s: float) -> None:
        self._command = tuple(command)
        hello = {"task": json.loads(task_config_json), "seed": seed, "timeout_s": timeout_s}
        self._hello = json.dumps(hello).encode() + b"\n"
        self._timeout_s = timeout_s
        self._process: Process | None = None
        self._stderr_reader: asyncio.Task[None] | None = None
        self._stderr_tail = b""
        self._unread = b""

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

    async def start(self) -> None:
        """Start the process, send it the task, and wait until it is ready.

        Raises:
            TaskError: it refuses the task, ends, or takes too long; no process is left running.
        """
        await self.kill()
        self._unread = self._stderr_tail = b""
        try:
            answer = await self._send_task()
        except (WorkerDied, WorkerHung, OSError) as error:
            await self.kill()
            raise TaskError(
                "a verifier process did not start",
                cause=self.stderr_end or str(error),
                fix="run the coordinator with the extra packages of its role; see the cause",
            ) from None
        except BaseException:
            await asyncio.shield(self.kill())
            raise
        if answer != {"ready": True}:
            await self.kill()
            refused = answer.get("refused", {}) if isinstance(answer, dict) else {}
            raise TaskError(
                str(refused.get("what", "a verifier process did not start")),
                cause=str(refused.get("cause", "")),
                fix=str(refused.get("fix", "")),
            )

    async def send(self, items: Sequence[tuple[str, str]]) -> None:
        """Send a batch of (problem as JSON text, completion).

        Raises:
            WorkerDied: it ended before it had read the batch, so that no item is to blame.
        """
        await self._write(json.dumps({"items": items}).encode() + b"\n", self._timeout_s)

    async def result(self) -> tuple[float, bool, str]:
        """Return reward, exactness and error of the next item of the batch.

        Raises:
            WorkerHung: the item exceeded its timeout.
            WorkerDied: the process ended during this item.
        """
        match await self._read(self._timeout_s):
            case [int() | float() as reward, bool() as exact, str() as error]:
                return float(reward), exact, error
        raise WorkerDied("it sent something that is not a score")

    async def kill(self) -> None:
        """Kill the process group now and wait until it has ended."""
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        async with deadline(DEATH_TIMEOUT_S, "a killed verifier process to end"):
            while await process.stdout.read(READ_BYTES):
                pass
            if self._stderr_reader is not None:
                await self._stderr_reader
            await process.wait()

    async def _send_task(self) -> Any:
        environment = {name: os.environ[name] for name in PASSED_ENVIRONMENT if name in os.environ}
        self._process = await asyncio.create_subprocess_exec(
            *self._command,
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
            env=environment | SET_ENVIRONMENT,
            start_new_session=True,  # so that its children can be killed with it
        )
        self._stderr_reader = asyncio.create_task(self._keep_stderr_tail(self._process))
        with suppress(WorkerDied):  # an answer that it sent before it stopped reading explains more
            await self._write(self._hello, START_TIMEOUT_S)
        return await self._read(START_TIMEOUT_S)

    async def _write(self, data: bytes, timeout_s: float) -> None:
        if self._process is None or self._process.stdin is None:
            raise WorkerDied("it is not running")
        self._process.stdin.write(data)
        try:
            async with asyncio.timeout(timeout_s):
                await self._process.stdin.drain()
        except (ConnectionError, TimeoutError) as error:
            raise WorkerDied(f"it does not read: {error}") from None

    async def _read(self, timeout_s: float) -> Any:
        """Return the next line of the process's answers, parsed."""
        if self._process is None or self._process.stdout is None:
            raise WorkerDied("it is not running")
        try:
            async with asyncio.timeout(timeout_s):
                while b"\n" not in self._unread:
                    data = await self._process.stdout.read(READ_BYTES)
                    if not data or len(self._unread) > ANSWER_BYTES_MAX:
                        raise WorkerDied("it ended" if not data else "its answer is too long")
                    self._unread += data
        except TimeoutError:
            raise WorkerHung(f"no answer within {timeout_s:g} s") from None
        line, _, self._unread = self._unread.partition(b"\n")
        try:
            return json.loads(line)
        except ValueError:
            raise WorkerDied("its answer is not JSON") from None

    async def _keep_stderr_tail(self, process: Process) -> None:
        assert process.stderr is not None
        while data := await process.stderr.read(READ_BYTES):
            self._stderr_tail = (self._stderr_tail + data)[-STDERR_TAIL_BYTES:]
