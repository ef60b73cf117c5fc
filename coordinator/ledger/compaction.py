"""Keeps the store of a long run bounded, a short transaction at a time, beside everything else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import structlog

from coordinator.ledger.event_archive import write_segment
from coordinator.ledger.retention import GROUPS_FIRST, Retention, horizon_step, next_group_count
from coordinator.ledger.store import CompactingStore
from rollcast.wire.ids import Step

TRANSACTION_AIM_S = 0.025  # what an acknowledgement waits for compaction at most, on a disk that keeps up
REST_SHARE = 3.0  # seconds of rest for each second of compaction: a quarter of the disk's time at most

_log = structlog.get_logger()


class Compactor:
    """``oldest_checkpoint_step``: what the learner says it could resume from; None while it has not said so."""

    def __init__(
        self,
        store: CompactingStore,
        retention: Retention,
        archive: Path,
        *,
        oldest_checkpoint_step: Callable[[], Step | None],
        oldest_trained_age: int,
    ) -> None:
        self._store = store
        self._retention = retention
        self._archive = archive
        self._oldest_checkpoint_step = oldest_checkpoint_step
        self._oldest_trained_age = oldest_trained_age
        self._groups = GROUPS_FIRST
        self.groups_compacted = 0

    async def run(self, interval_s: float) -> None:
        """Until cancelled.

        Raises:
            RollcastError: the disk fails.
        """
        while True:
            await asyncio.sleep(interval_s)
            await self.once()

    async def once(self) -> None:
        """Compact all that may be compacted now."""
        before = self.groups_compacted
        horizon = horizon_step(
            self._retention,
            oldest_checkpoint_step=self._oldest_checkpoint_step(),
            recorded_batches=await self._store.recorded_batches(),
            oldest_trained_age=self._oldest_trained_age,
        )
        while await self._compact_some(horizon):
            pass
        while await self._archive_some():
            pass
        while await self._give_back_some():
            pass
        if self.groups_compacted > before:
            _log.info("compacted", groups=self.groups_compacted - before, horizon=horizon)

    async def _compact_some(self, horizon: Step) -> bool:
        """One transaction; whether there was something to do."""
        kept = self._retention.steps_kept
        done = await self._store.compact(horizon, groups_max=self._groups, steps_kept=kept)
        self._groups = next_group_count(self._groups, done.took_s, aim_s=TRANSACTION_AIM_S)
        self.groups_compacted += done.groups
        if done.groups or done.versions:
            await asyncio.sleep(done.took_s * REST_SHARE)
        return bool(done.groups or done.versions)

    async def _give_back_some(self) -> bool:
        given_back = await self._store.give_back_pages()
        if given_back:
            await asyncio.sleep(TRANSACTION_AIM_S * REST_SHARE)
        return given_back > 0

    async def _archive_some(self) -> bool:
        """One segment; whether there was one. Written before it is deleted: a crash between writes it once more."""
        retention = self._retention
        entries = await self._store.oldest_events(retention.segment_events, kept=retention.events_kept)
        if not entries:
            return False
        await asyncio.to_thread(write_segment, self._archive, entries, retention.segments_bytes_max)
        await self._store.delete_events(entries[-1].order)
        return True
