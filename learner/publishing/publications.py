"""Run publications in the background of training, one at a time and in order."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from learner.publishing.publisher import Publisher
from learner.publishing.versions import Freezing
from rollcast.policy.snapshot import Snapshot
from rollcast.runtime.waits import cancel_and_wait
from rollcast.wire.ids import Version


class Publications:
    """A background publisher with at most one publication in flight; starting the next one waits for it.

    A snapshot that is still to be written is encoded meanwhile.
    """

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher
        self._task: asyncio.Task[None] | None = None
        self._kept = asyncio.Event()  # set once the version in flight is durable on this disk
        self.last_s = 0.0  # seconds that the last finished publication took

    @property
    def under_way(self) -> asyncio.Task[None] | None:
        """Return the publication in flight; None if there is none."""
        return self._task

    async def start(self, version: Version, snapshot: Snapshot | Freezing) -> None:
        """Start to publish, after waiting for the publication in flight.

        Raises:
            RollcastError: the publication in flight failed.
        """
        await self.finish()
        self._kept = asyncio.Event()
        self._task = asyncio.create_task(self._publish(version, snapshot), name=f"publish version {version}")

    async def finish(self) -> None:
        """Wait for the publication in flight, if there is one.

        Raises:
            RollcastError: the publication failed.
        """
        if self._task is not None:
            await self._task
            self._task = None

    def kept(self) -> Callable[[], Awaitable[None]]:
        """Return a function that waits until the version in flight now, if there is one, is durable on this disk.

        The wait raises the publication's error if it failed before that.
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

    def announced(self) -> Callable[[], Awaitable[None]]:
        """Return a function that waits until the publication in flight now, if there is one, has ended.

        Its version is announced then, unless repeated training gave another state than was published. The wait raises
        the publication's error if it failed.
        """
        task = self._task

        async def until_announced() -> None:
            if task is not None:
                await asyncio.shield(task)

        return until_announced

    async def cancel(self) -> None:
        """Cancel the publication in flight; a resumed learner publishes the version again from its own disk."""
        if self._task is not None:
            await cancel_and_wait(self._task)
            self._task = None

    async def _publish(self, version: Version, snapshot: Snapshot | Freezing) -> None:
        self.last_s = await self._publisher.publish(version, snapshot, on_kept=self._kept.set)
