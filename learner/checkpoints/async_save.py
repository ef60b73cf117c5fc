"""Write checkpoints in the background of training, one at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Executor
from typing import Any

from learner.checkpoints.checkpoint import Checkpoints, HostState

State = Mapping[str, Any]


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
        """Return the steps of the durable checkpoints and of the one in flight; versions that they need must stay."""
        return self._checkpoints.steps() + ([self._step] if self._task is not None and self._step is not None else [])

    async def start(self, state: State, host: HostState, may_save: Callable[[], Awaitable[bool]]) -> None:
        """Start a save after waiting for the one in flight; nothing is written if ``may_save`` returns False.

        Raises:
            RollcastError: the save in flight failed.
        """
        await self.finish()
        self._step = host.step
        self._task = asyncio.create_task(self._save(state, host, may_save), name=f"checkpoint {host.step}")

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

    async def _save(self, state: State, host: HostState, may_save: Callable[[], Awaitable[bool]]) -> None:
        if not await may_save():
            return
        await asyncio.get_running_loop().run_in_executor(self._writer, self._checkpoints.save, state, host)
        self._on_saved(min(self._checkpoints.steps()))
