"""What a coordinator does beside its events: time, the disk, compaction, and watching what may fail."""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Awaitable, Coroutine
from typing import TYPE_CHECKING, Any

from coordinator import standing_by
from coordinator.compaction import Compactor
from coordinator.events import Tick
from coordinator.retention import Retention
from rollcast.runtime.errors import RollcastError
from rollcast.wire.ids import Step

if TYPE_CHECKING:
    from coordinator.assembly import Coordinator

TICK_S = 0.2
SUMS_KEPT_TICKS = 50  # a coordinator that is killed forgets ten seconds at most
DISK_LOOKED_AT_S = 1.0  # in which no coordinator writes a low-water mark's worth


def works(coordinator: Coordinator) -> list[Coroutine[Any, Any, None]]:
    """Each runs until it is cancelled; what fails in one ends the run."""
    return [
        _tick(coordinator),
        _ends(coordinator, coordinator.ledger.failed()),
        _ends(coordinator, coordinator.problems.failed()),
        _watch_disk(coordinator),
        _compact(coordinator),
    ]


async def _tick(coordinator: Coordinator) -> None:
    """Let the core see time pass, now and then write down sums, and measure how late the loop is."""
    loop, kept = asyncio.get_running_loop(), ""
    for tick in itertools.count(1):
        due_at = loop.time() + TICK_S
        await asyncio.sleep(TICK_S)
        late_s = max(0.0, loop.time() - due_at)
        coordinator.metrics.loop_lag_s.observe(late_s)
        coordinator.metrics.loop_lag.observe(late_s)
        coordinator.shell.apply(Tick())
        if tick % SUMS_KEPT_TICKS == 0:
            coordinator.shell.keep_sums()
            standby = standing_by.to_json(coordinator.shell.core.standby())
            if standby != kept:
                kept = standby
                coordinator.ledger.set_meta(standing_by.STANDBY, standby)


async def _ends(coordinator: Coordinator, failed: Awaitable[Exception]) -> None:
    coordinator.shell.fail(await failed)


async def _watch_disk(coordinator: Coordinator) -> None:
    """Look at the disk now and then, and write down when uploads are refused, and when they are taken again."""
    disk, metrics = coordinator.disk, coordinator.metrics
    try:
        while True:
            was_refusing = disk.refusing
            await asyncio.to_thread(disk.look)
            metrics.store_free_bytes.set(disk.free_bytes)
            metrics.store_refusing.set(disk.refusing)
            if disk.refusing != was_refusing:
                kind, detail = "disk_low" if disk.refusing else "disk_roomy", f"{disk.free_bytes} bytes are free"
                coordinator.ledger.record_event(kind, "run folder", detail, cause="disk")
            await asyncio.sleep(DISK_LOOKED_AT_S)
    except RollcastError as error:
        coordinator.shell.fail(error)


async def _compact(coordinator: Coordinator) -> None:
    """Keep the store small."""
    store = coordinator.config.store
    compactor = Compactor(
        coordinator.ledger,
        Retention(
            margin_steps=store.margin_steps,
            events_kept=store.events_kept,
            segments_bytes_max=store.segments_bytes_max,
            steps_kept=store.steps_kept,
        ),
        coordinator.folder.events,
        oldest_checkpoint_step=lambda: _step(coordinator.shell.learner_value("oldest_checkpoint_step")),
        oldest_trained_age=coordinator.config.run.age_max,
    )
    try:
        await compactor.run(store.compaction_interval_s)
    except RollcastError as error:
        coordinator.shell.fail(error)


def _step(value: float | None) -> Step | None:
    """What the learner reported as a step, if it can be one."""
    return Step(int(value)) if value is not None and math.isfinite(value) and value >= 0.0 else None
