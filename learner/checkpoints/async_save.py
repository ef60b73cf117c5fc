"""Write checkpoints in the background of training, one at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor

from learner.checkpoints.arrays import ArrayWrite
from learner.checkpoints.checkpoint import Checkpoints, HostState, Saving


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

    def begin(self, host: HostState, write: Callable[[str], ArrayWrite]) -> Saving:
        """Copy the state to the host, while training waits; see Checkpoints.begin. Call `finish` before."""
        return self._checkpoints.begin(host, write)

    async def start(self, saving: Saving, may_save: Callable[[], Awaitable[bool]]) -> None:
        """Complete a save in the background; it is discarded if ``may_save`` returns False.

        Raises:
            RollcastError: the save in flight before it failed.
        """
        await self.finish()
        self._step = saving.host.step
        self._task = asyncio.create_task(self._save(saving, may_save), name=f"checkpoint {self._step}")

    async def finish(self) -> None:
        """Wait until the save in flight, if there is one, is durable.

        Raises:
            RollcastError: the save failed.
        """
        if self._task is not None:
            await self._task
            self._task = None

    async def cancel(self) -> None:
        """Cancel the save in flight; the step that its thread is at is still completed."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def _save(self, saving: Saving, may_save: Callable[[], Awaitable[bool]]) -> None:
        loop = asyncio.get_running_loop()
        allowed = False
        try:
            allowed = await may_save()
        finally:  # cancelled, too: the arrays are being written on threads that nothing else waits for
            if not allowed:
                await loop.run_in_executor(self._writer, saving.discard)
        if not allowed:
            return
        self._on_saved(await loop.run_in_executor(self._writer, self._commit, saving))

    def _commit(self, saving: Saving) -> int:
        """Complete a save and return the step of the oldest durable checkpoint."""
        saving.commit()
        return min(self._checkpoints.steps())
