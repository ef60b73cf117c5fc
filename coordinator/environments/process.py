"""Control one worker of an environment: start it, ask it, replace it when it has died."""

from __future__ import annotations

import asyncio
import itertools
import sys
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import coordinator
import rollcast
from coordinator.environments.answers import EnvironmentFailed
from coordinator.environments.games import CLOSE_TIMEOUT_S
from coordinator.workers.line_process import LineProcess, WorkerDied, WorkerHung
from rollcast.runtime.waits import cancel_and_wait

ANSWER_BYTES_MAX = 8 << 20
STOP_TIMEOUT_S = CLOSE_TIMEOUT_S + 5.0  # of a worker, which ends itself after CLOSE_TIMEOUT_S
HANG_GRACE_S = 5.0  # the worker itself notices a game that takes too long; code that never yields is killed
WORKER = ("-P", "-m", "coordinator.environments.worker")


@dataclass(frozen=True, slots=True)
class EnvironmentSpec:
    """Describes how the workers of an environment run it.

    ``settings``: arguments of GymGames or VerifiersGames. ``python``: another interpreter, which finds our own modules
    in a folder of links, and nothing else of this one. ``variables``: environment variables besides the usual ones.
    """

    kind: str
    settings: Mapping[str, Any]
    timeout_s: float
    python: Path | None = None
    variables: Mapping[str, str] | None = None


def link_packages(folder: Path) -> None:
    """Fill a folder with links to our packages, for interpreters of other virtual environments."""
    for package in (rollcast, coordinator):
        source = Path(str(package.__file__)).absolute().parent
        (folder / source.name).symlink_to(source)


class EnvironmentProcess:
    """A worker process. ``life`` counts its starts: a game of an earlier life is lost.

    Args:
        imports: a folder that link_packages filled; used if the environment has an interpreter of its own.
    """

    def __init__(self, spec: EnvironmentSpec, imports: Path) -> None:
        python, variables = sys.executable, dict(spec.variables or {})
        if spec.python is not None:
            python, variables = str(spec.python), {**variables, "PYTHONPATH": str(imports), "VIRTUAL_ENV": ""}
        hello = {"kind": spec.kind, "settings": dict(spec.settings), "timeout_s": spec.timeout_s}
        self._lines = LineProcess(
            (python, *WORKER), hello, name="environment", environment=variables, line_bytes_max=ANSWER_BYTES_MAX
        )
        self._timeout_s = spec.timeout_s + HANG_GRACE_S
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Mapping[str, Any]]] = {}
        self._reader: asyncio.Task[None] | None = None
        self.life = 0
        self.games_at_once = 1
        self.problem_count: int | None = None

    @property
    def alive(self) -> bool:
        """Return whether the worker runs and takes requests."""
        return self._reader is not None and not self._reader.done()

    @property
    def pid(self) -> int | None:
        """Return the process id; None if it is not running."""
        return self._lines.pid

    @property
    def stderr_end(self) -> str:
        """Return the end of what the worker wrote to stderr."""
        return self._lines.stderr_end

    async def start(self) -> None:
        """Start it and wait until it is ready.

        Raises:
            TaskError: the environment cannot be loaded, or the process does not start.
        """
        await self.kill()
        ready = await self._lines.start()
        self.games_at_once = max(1, int(ready["games_at_once"]))
        self.problem_count = ready["problem_count"]
        self.life += 1
        self._reader = asyncio.create_task(self._read(), name="environment answers")

    async def ask(self, do: str, episode: int, **values: Any) -> Mapping[str, Any]:
        """Return the worker's answer.

        Raises:
            WorkerDied: it ended before it answered.
            WorkerHung: it did not answer in time; it may be stuck, and has to be killed.
            EnvironmentFailed: the environment raised an exception, or noticed itself that it takes too long.
        """
        if not self.alive:
            raise WorkerDied("it is not running")
        number = next(self._numbers)
        future: asyncio.Future[Mapping[str, Any]] = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        try:
            await self._lines.send({"id": number, "do": do, "episode": episode, **values}, self._timeout_s)
            async with asyncio.timeout(self._timeout_s):
                answer = await future
        except TimeoutError:
            raise WorkerHung(f"no answer within {self._timeout_s:g} s") from None
        finally:
            self._waiting.pop(number, None)
        if "failed" in answer:
            raise EnvironmentFailed(str(answer["failed"]), retryable=True)
        return answer

    async def stop(self) -> None:
        """Let the worker close its games and end, and kill it if it does not; waiting requests fail with WorkerDied."""
        await self._end(self._lines.stop(STOP_TIMEOUT_S))

    async def kill(self) -> None:
        """Kill the worker now; waiting requests fail with WorkerDied."""
        await self._end(self._lines.kill())

    async def _end(self, ending: Awaitable[None]) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            await cancel_and_wait(reader)
        await ending
        self._fail(WorkerDied("it was replaced"))

    async def _read(self) -> None:
        try:
            while True:
                answer = await self._lines.receive(None)
                if not isinstance(answer, dict):
                    raise WorkerDied("its answer is not an object")
                future = self._waiting.get(answer.get("id", 0))
                if future is not None and not future.done():
                    future.set_result(answer)
        except WorkerDied as death:
            self._fail(death)

    def _fail(self, death: WorkerDied) -> None:
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(death)
                future.exception()  # marks it as retrieved, also when no caller waits any more
