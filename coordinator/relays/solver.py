"""Have relay problems solved by a process of their own, one at a time; it starts with the first and is kept."""

from __future__ import annotations

import asyncio
from base64 import b64decode, b64encode
from collections.abc import Sequence

import structlog

from coordinator.core.broadcast.nodes import PlanShape
from coordinator.core.broadcast.problem import RelayProblem, RelaySolution
from coordinator.relays.packing import SolutionReader, pack_problem, pack_shape
from coordinator.workers.line_process import LineProcess, WorkerDied, WorkerHung
from rollcast.runtime.errors import TaskError
from rollcast.runtime.install import module_command

WORKER_COMMAND = module_command("coordinator.relays.worker")
LINE_BYTES_MAX = 4 << 20  # of a message: a tree of 100,000 members
SEND_TIMEOUT_S = 10.0
SOLVE_TIMEOUT_S = 50.0  # for the next message: the core asks for another plan after 60 s
_ATTEMPTS = 2  # a process that was lost is replaced at once

_log = structlog.get_logger()


class RelaySolver:
    """Solves relay problems; its owner must ``close`` it.

    Args:
        command: the process's command line.
    """

    def __init__(self, command: Sequence[str] = WORKER_COMMAND) -> None:
        self._command = tuple(command)
        self._process: LineProcess | None = None
        self._shape: PlanShape | None = None
        self._newest: RelaySolution | None = None  # the one that the process has
        self._turn = asyncio.Lock()

    @property
    def pid(self) -> int | None:
        """Return the id of the process; None if there is none."""
        return None if self._process is None else self._process.pid

    async def solve(self, problem: RelayProblem) -> bool | None:
        """Have a problem solved. Return whether the plan begins afresh, although there is one in force.

        None: there is no solution, because the process was lost twice. The core asks for another plan later.
        """
        async with self._turn:
            for attempt in range(1, _ATTEMPTS + 1):
                try:
                    return await self._solve(problem)
                except (TaskError, WorkerDied, WorkerHung, ValueError, LookupError) as error:
                    _log.warning("the process that plans relays was lost", attempt=attempt, error=str(error))
                    await self.close()
        return None

    async def close(self) -> None:
        """Kill the process."""
        process, self._process, self._newest = self._process, None, None
        if process is not None:
            await process.kill()

    async def _solve(self, problem: RelayProblem) -> bool:
        process = await self._started(problem.shape)
        before = problem.before if problem.before is self._newest else None
        for data in pack_problem(problem, continues=before is not None):
            await process.send({"data": b64encode(data).decode()}, SEND_TIMEOUT_S)
            await asyncio.sleep(0)  # the loop serves others between two messages
        solution = await self._solution(process, SolutionReader(problem, before))
        begins_afresh = problem.before is not before
        if begins_afresh:
            problem.begin_afresh()
        problem.solved(solution)
        self._newest = solution
        return begins_afresh

    async def _solution(self, process: LineProcess, reader: SolutionReader) -> RelaySolution:
        while True:
            message = await process.receive(SOLVE_TIMEOUT_S)
            if (solution := reader.take(b64decode(message["data"]))) is not None:
                return solution
            await asyncio.sleep(0)

    async def _started(self, shape: PlanShape) -> LineProcess:
        if self._process is None or not self._process.alive or self._shape != shape:
            await self.close()
            hello = {"shape": b64encode(pack_shape(shape)).decode()}
            process = LineProcess(self._command, hello, name="relay planner", line_bytes_max=LINE_BYTES_MAX)
            await process.start()
            self._process, self._shape = process, shape
        return self._process
