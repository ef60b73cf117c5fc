"""Publications run beside training, one at a time and in order."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from learner.publishing.publisher import Publisher
from rollcast.policy.snapshot import Snapshot
from rollcast.wire.ids import Version


class Publications:
    """At most one publication under way; starting the next waits for it."""

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher
        self._task: asyncio.Task[None] | None = None
        self._kept = asyncio.Event()  # of the one under way
        self.last_s = 0.0  # how long the last finished publication took

    @property
    def under_way(self) -> asyncio.Task[None] | None:
        """The publication under way, for others to watch."""
        return self._task

    async def start(self, version: Version, snapshot: Snapshot) -> None:
        """Begin to publish once the one before is finished.

        Raises:
            RollcastError: the one before failed.
        """
        await self.finish()
        self._kept = asyncio.Event()
        self._task = asyncio.create_task(self._publish(version, snapshot), name=f"publish version {version}")

    async def finish(self) -> None:
        """Wait for the publication under way, if any.

        Raises:
            RollcastError: it failed.
        """
        if self._task is not None:
            await self._task
            self._task = None

    def kept(self) -> Callable[[], Awaitable[None]]:
        """A wait until the version that is under way now, if any, is durable on our own disk.

        The wait raises what went wrong before.
        """
        task, event = self._task, self._kept

        async def until_kept() -> None:
            if task is None:
                return
            waiting = asyncio.ensure_future(event.wait())
            try:
                await asyncio.wait({waiting, task}, return_when=asyncio.FIRST_COMPLETED)
                if not event.is_set():
                    await asyncio.shield(task)
            finally:
                waiting.cancel()

        return until_kept

    async def cancel(self) -> None:
        """Give up on the one under way: a resumed learner publishes it again from its own disk."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def _publish(self, version: Version, snapshot: Snapshot) -> None:
        self.last_s = await self._publisher.publish(version, snapshot, on_kept=self._kept.set)
