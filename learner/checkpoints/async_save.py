"""Write checkpoints in the background of training, one at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor, Future

import structlog

from learner.checkpoints.arrays import ArrayWrite
from learner.checkpoints.checkpoint import Checkpoints, HostState, Saving
from rollcast.runtime.errors import RollcastError
from rollcast.runtime.waits import cancel_and_wait

_log = structlog.get_logger()


class Saves:
    """A background writer with at most one save in flight, so that only one copy of the state is in memory.

    Args:
        checkpoints: the checkpoints to save to.
        writer: an executor with one thread, used for nothing else.
        on_saved: called after each save with the step of the oldest durable checkpoint.
    """

    def __init__(self, checkpoints: Checkpoints, writer: Executor, on_saved: Callable[[int], None]) -> None:
        self._checkpoints = checkpoints
        self._writer = writer
        self._on_saved = on_saved
        self._begun: Future[Saving] | None = None  # until its arrays are written or could not be
        self._task: asyncio.Task[None] | None = None
        self._step: int | None = None

    @property
    def under_way(self) -> asyncio.Task[None] | None:
        """Return the save in flight; None if there is none."""
        return self._task

    def steps(self) -> list[int]:
        """Return the steps of the durable checkpoints and of the one in flight; versions that they need must stay.

        It reads the folder, which may be far away, and may be called on any thread.
        """
        return self._checkpoints.steps() + ([self._step] if self._task is not None and self._step is not None else [])

    async def begin(self, host: HostState, write: Callable[[str], ArrayWrite], worker: Executor) -> None:
        """Copy the state to the host on ``worker``, after waiting for the save in flight; see Checkpoints.begin.

        Raises:
            RollcastError: the state cannot be written, or the save in flight failed.
        """
        await self.finish()
        self._step = host.step
        self._begun = worker.submit(self._checkpoints.begin, host, write)
        await asyncio.wrap_future(self._begun)

    def start(self, may_save: Callable[[], Awaitable[bool]]) -> None:
        """Complete the save that has begun in the background; it is discarded if ``may_save`` returns False."""
        self._task = asyncio.create_task(self._save(may_save), name=f"checkpoint {self._step}")

    async def finish(self) -> None:
        """Wait until the save in flight, if there is one, is durable.

        Raises:
            RollcastError: the save failed.
        """
        if self._task is not None:
            await self._task
            self._task = None

    async def close(self) -> None:
        """Discard a save that has begun, unless it is being committed: that is completed.

        Its arrays are written on threads that nothing else waits for. The next life, in this process too, removes
        what it finds in the folder and must not meet them.
        """
        if self._task is not None:
            await cancel_and_wait(self._task)
            self._task = None
        try:
            await asyncio.get_running_loop().run_in_executor(self._writer, self._end, Saving.discard)
        except RollcastError as error:
            _log.warning("a checkpoint that does not count was not removed", step=self._step, error=str(error))

    async def _save(self, may_save: Callable[[], Awaitable[bool]]) -> None:
        loop = asyncio.get_running_loop()
        if await may_save():
            self._on_saved(await loop.run_in_executor(self._writer, self._commit))
        else:
            await loop.run_in_executor(self._writer, self._end, Saving.discard)

    def _commit(self) -> int:
        """Complete a save and return the step of the oldest durable checkpoint."""
        self._end(Saving.commit)
        return min(self._checkpoints.steps())

    def _end(self, how: Callable[[Saving], None]) -> None:
        """End the save that has begun, if there is one, on the writer's thread."""
        begun, self._begun = self._begun, None
        if begun is not None and not begun.cancelled() and begun.exception() is None:
            how(begun.result())
