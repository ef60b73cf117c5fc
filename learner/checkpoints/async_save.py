"""Checkpoints are written beside training, one at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Executor
from typing import Any

from learner.checkpoints.checkpoint import Checkpoints, HostState

State = Mapping[str, Any]


class Saves:
    """At most one save under way; starting the next waits for it, so that one copy of the state is in memory.

    Args:
        checkpoints: where to.
        writer: one thread, all of its own.
        on_saved: called with the oldest durable checkpoint's step whenever there is a new one.
    """

    def __init__(self, checkpoints: Checkpoints, writer: Executor, on_saved: Callable[[int], None]) -> None:
        self._checkpoints = checkpoints
        self._writer = writer
        self._on_saved = on_saved
        self._task: asyncio.Task[None] | None = None
        self._step: int | None = None

    @property
    def under_way(self) -> asyncio.Task[None] | None:
        """The save under way, for others to watch."""
        return self._task

    def steps(self) -> list[int]:
        """Steps of the durable checkpoints and of the one under way: versions that these need must stay."""
        return self._checkpoints.steps() + ([self._step] if self._task is not None and self._step is not None else [])

    async def start(self, state: State, host: HostState, may_save: Callable[[], Awaitable[bool]]) -> None:
        """Begin to save, once the save before is finished and ``may_save`` says yes.

        Raises:
            RollcastError: the save before failed.
        """
        await self.finish()
        self._step = host.step
        self._task = asyncio.create_task(self._save(state, host, may_save), name=f"checkpoint {host.step}")

    async def finish(self) -> None:
        """Wait until the save under way, if any, is durable.

        Raises:
            RollcastError: it failed.
        """
        if self._task is not None:
            await self._task
            self._task = None

    async def cancel(self) -> None:
        """Give up on the one under way; what its thread does at this moment is still done."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def _save(self, state: State, host: HostState, may_save: Callable[[], Awaitable[bool]]) -> None:
        if not await may_save():
            return
        await asyncio.get_running_loop().run_in_executor(self._writer, self._checkpoints.save, state, host)
        self._on_saved(min(self._checkpoints.steps()))
