"""Run the coordinator's periodic work: time, the disk, compaction, and watching for failures."""

from __future__ import annotations

import asyncio
import itertools
import math
import time
from collections.abc import Awaitable, Coroutine
from dataclasses import dataclass
from typing import Any

import structlog

from coordinator.config.config import CoordinatorConfig
from coordinator.core.members import earned_book
from coordinator.core.members import standby as standing_by
from coordinator.ledger.compaction import Compactor
from coordinator.ledger.disk_guard import DiskGuard
from coordinator.ledger.retention import Retention
from coordinator.ledger.store import CompactingStore
from coordinator.metrics.metrics import CoordinatorMetrics
from coordinator.prompts.problems import Problems
from coordinator.shell.core_settings import TICK_S
from coordinator.shell.shell import Shell
from rollcast.runtime.background import or_fail
from rollcast.runtime.process import collect_young_garbage
from rollcast.runtime.run_folder import RunFolder
from rollcast.wire.ids import Step

SUMS_KEPT_TICKS = 50  # a killed coordinator loses at most ten seconds of its sums
LOOP_WATCH_S = 0.02  # blocks of the loop are measured to within this time, for a thousandth of a core
DISK_CHECK_S = 1.0  # no coordinator writes free_bytes_min (256 MiB by default) within this time


log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Background:
    """The periodic work of a running coordinator, and the components that it watches."""

    config: CoordinatorConfig
    folder: RunFolder
    shell: Shell
    ledger: CompactingStore
    problems: Problems
    metrics: CoordinatorMetrics
    disk: DiskGuard

    def coroutines(self) -> list[Coroutine[Any, Any, None]]:
        """Return coroutines that each run until they are cancelled; a failure in one ends the run."""
        work = (
            self._tick(),
            self._watch_loop(),
            self._end_with(self.ledger.failed()),
            self._end_with(self.problems.failed()),
            self._watch_disk(),
            self._compact(),
            collect_young_garbage(),
        )
        return [or_fail(one, self.shell.fail) for one in work]

    async def _tick(self) -> None:
        """Send the core a tick, store sums every SUMS_KEPT_TICKS ticks, and measure how late the loop is."""
        loop, kept = asyncio.get_running_loop(), dict[str, str]()
        for tick in itertools.count(1):
            due_at = loop.time() + TICK_S
            await asyncio.sleep(TICK_S)
            late_s = max(0.0, loop.time() - due_at)
            self.metrics.loop_lag_s.observe(late_s)
            self.metrics.loop_lag.observe(late_s)
            self.shell.tick()
            if tick % SUMS_KEPT_TICKS == 0:
                self.shell.keep_sums()
                self._keep_decided(kept)

    async def _watch_loop(self) -> None:
        """Measure how long the loop is blocked: a block delays a short timer by nearly its whole length.

        The processor time meanwhile tells what the loop did from what it waited for on a busy machine.
        """
        loop = asyncio.get_running_loop()
        while True:
            due_at, used_s = loop.time() + LOOP_WATCH_S, time.thread_time()
            await asyncio.sleep(LOOP_WATCH_S)
            now = loop.time()
            self.metrics.loop_blocks.observe(now - due_at, now)
            self.metrics.loop_work.observe(time.thread_time() - used_s, now)

    def _keep_decided(self, kept: dict[str, str]) -> None:
        """Store the standby set, what the capacity model has learned, and what peers earned, where it has changed."""
        core = self.shell.core
        now = {
            standing_by.STANDBY: standing_by.to_json(core.standby()),
            earned_book.EARNED: earned_book.to_json(core.earned()),
            standing_by.LEARNED: standing_by.learned_to_json(core.learned()),
        }
        for key, text in now.items():
            if kept.get(key, "") != text:
                kept[key] = text
                self.ledger.set_meta(key, text)

    async def _end_with(self, failed: Awaitable[Exception]) -> None:
        self.shell.fail(await failed)

    async def _watch_disk(self) -> None:
        """Check disk and store each second, and record when uploads are refused and when they are accepted again."""
        disk, was_reached = self.disk, True
        while True:
            was_refusing = disk.refusing
            await asyncio.to_thread(disk.check)
            is_reached = self.ledger.is_reached
            self.metrics.store_free_bytes.set(disk.free_bytes)
            self.metrics.store_refusing.set(disk.refusing or not is_reached)
            if is_reached != was_reached:
                log.warning(
                    "the store answers again" if is_reached else "the store does not answer: uploads are refused"
                )
                was_reached = is_reached
            if disk.refusing != was_refusing:
                kind, detail = "disk_low" if disk.refusing else "disk_roomy", f"{disk.free_bytes} bytes are free"
                self.ledger.record_event(kind, "run folder", detail, cause="disk")
            await asyncio.sleep(DISK_CHECK_S)

    async def _compact(self) -> None:
        """Compact the store periodically."""
        store = self.config.store
        compactor = Compactor(
            self.ledger,
            Retention(
                margin_steps=store.margin_steps,
                events_kept=store.events_kept,
                segments_bytes_max=store.segments_bytes_max,
                steps_kept=store.steps_kept,
            ),
            None if store.url else self.folder.events,
            oldest_checkpoint_step=lambda: _step(self.shell.learner_value("oldest_checkpoint_step")),
            oldest_trained_age=lambda: self.shell.core.rules.kept.age_max,
            newest_in_cell=(lambda: self.shell.core.newest_version) if self.shell.core.settings.is_cell else None,
        )
        await compactor.run(store.compaction_interval_s)


def _step(value: float | None) -> Step | None:
    """Return a step that the learner reported; None if the value cannot be a step."""
    return Step(int(value)) if value is not None and math.isfinite(value) and value >= 0.0 else None
