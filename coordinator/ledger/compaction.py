"""Bound the store of a long run: old rows become counts, old events move to files, one short transaction at a time.

Counts, ages, the largest ids and the refusal of ids that were ever used stay exact.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import structlog

from coordinator.ledger.event_archive import write_segment
from coordinator.ledger.retention import GROUPS_FIRST, Retention, horizon_of_cell, horizon_step, next_group_count
from coordinator.ledger.sql import SqlConnection
from coordinator.ledger.store import Compacted, CompactingStore, StoryEntry
from rollcast.runtime.errors import RunFolderError
from rollcast.wire.ids import Step, Version

TRANSACTION_AIM_S = 0.025  # most that an acknowledgement waits for compaction, on a disk that keeps up
REST_SHARE = 3.0  # seconds of rest for each second of compaction: a quarter of the disk's time at most
VERSIONS_AT_ONCE = 64
BATCHES_AT_ONCE = 512
STEPS_AT_ONCE = 512
SHARED_EVENTS_AT_ONCE = 256

_log = structlog.get_logger()

_CHOSEN = "(SELECT group_id FROM chosen)"
_ATTEMPTS = f"SELECT lease_id, sample_index FROM attempts WHERE group_id IN {_CHOSEN}"
_ROLLOUTS = f"SELECT rollout_id FROM rollouts WHERE (lease_id, sample_index) IN ({_ATTEMPTS})"
_ADD = "ON CONFLICT (kind, key) DO UPDATE SET count = compacted.count + excluded.count"


class Compactor:
    """Compacts the store while the run continues.

    Args:
        archive: folder of the files for old events; None: they stay in the store, which several hosts share, up to its
            bound.
        oldest_checkpoint_step: returns the oldest step that the learner could resume from; None before it reported one.
        oldest_trained_age: returns the age in learner steps up to which rollouts were ever trained.
        newest_in_cell: returns the newest version of a cell; None: this is no cell.
    """

    def __init__(
        self,
        store: CompactingStore,
        retention: Retention,
        archive: Path | None,
        *,
        oldest_checkpoint_step: Callable[[], Step | None],
        oldest_trained_age: Callable[[], int],
        newest_in_cell: Callable[[], Version | None] | None = None,
    ) -> None:
        self._store = store
        self._retention = retention
        self._archive = archive
        self._oldest_checkpoint_step = oldest_checkpoint_step
        self._oldest_trained_age = oldest_trained_age
        self._newest_in_cell = newest_in_cell
        self._groups = GROUPS_FIRST
        self.groups_compacted = 0

    async def run(self, interval_s: float) -> None:
        """Compact every ``interval_s`` seconds until cancelled; on a disk that is full, old events stay in the store.

        Raises:
            StoreError: the store fails.
        """
        while True:
            await asyncio.sleep(interval_s)
            try:
                await self.once()
            except RunFolderError as error:
                _log.warning("old events could not be archived", cause=error.cause or error.what)

    async def once(self) -> None:
        """Compact everything that may be compacted now."""
        before = self.groups_compacted
        recorded = await self._store.recorded_batches()
        if self._newest_in_cell is not None:
            horizon = horizon_of_cell(recorded, self._newest_in_cell())
        else:
            horizon = horizon_step(
                self._retention,
                oldest_checkpoint_step=self._oldest_checkpoint_step(),
                recorded_batches=recorded,
                oldest_trained_age=self._oldest_trained_age(),
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
        """Run one transaction; return whether there was something to compact."""
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
        """Archive one segment of events; return whether there was one.

        The segment is written before its events are deleted: a crash in between writes it once more.
        """
        retention = self._retention
        if self._archive is None:
            entries = await self._store.oldest_events(SHARED_EVENTS_AT_ONCE, kept=retention.shared_events_kept)
            if entries:
                await self._store.delete_events(entries[-1].order)
                await asyncio.sleep(TRANSACTION_AIM_S * REST_SHARE)
            return bool(entries)
        entries = await self._store.oldest_events(retention.segment_events, kept=retention.events_kept)
        if not entries:
            return False
        await asyncio.to_thread(write_segment, self._archive, entries, retention.segments_bytes_max)
        await self._store.delete_events(entries[-1].order)
        return True


def compact(connection: SqlConnection, horizon: Step, groups_max: int, steps_kept: int) -> Compacted:
    """Compact some of what was over before ``horizon``; the newest group and the newest batch always stay."""
    began_s = time.monotonic()
    connection.execute("UPDATE retention SET horizon_step = ? WHERE horizon_step < ?", (horizon, horizon))
    groups = _compact_groups(connection, groups_max)
    connection.execute(
        "DELETE FROM batches WHERE step IN (SELECT step FROM batches"
        " WHERE step < (SELECT horizon_step FROM retention) AND step < (SELECT max(step) FROM batches)"
        " AND NOT EXISTS (SELECT 1 FROM batch_rollouts WHERE batch_rollouts.step = batches.step) LIMIT ?)",
        (BATCHES_AT_ONCE,),
    )
    versions = connection.execute(
        "DELETE FROM versions WHERE (epoch, version) IN (SELECT epoch, version FROM versions"
        " WHERE version < (SELECT horizon_step FROM retention) AND version < (SELECT max(version) FROM versions)"
        " LIMIT ?)",
        (VERSIONS_AT_ONCE,),
    ).rowcount
    connection.execute(
        "DELETE FROM steps WHERE step IN (SELECT step FROM steps"
        " WHERE step <= (SELECT max(step) FROM steps) - ? ORDER BY step LIMIT ?)",
        (steps_kept, STEPS_AT_ONCE),
    )
    return Compacted(groups, versions, time.monotonic() - began_s)


def _compact_groups(connection: SqlConnection, groups_max: int) -> int:
    connection.execute("CREATE TEMPORARY TABLE IF NOT EXISTS chosen (group_id BIGINT PRIMARY KEY)")
    connection.execute("DELETE FROM chosen")
    count = connection.execute(
        "INSERT INTO chosen SELECT group_id FROM groups WHERE over_at_step < (SELECT horizon_step FROM retention)"
        " AND group_id < (SELECT max(group_id) FROM groups) ORDER BY over_at_step LIMIT ?",
        (groups_max,),
    ).rowcount
    if not count:
        return 0
    for kind, key, rows in (
        ("accepted", "''", _ROLLOUTS),
        ("trained", "''", f"SELECT 1 FROM attempts WHERE state = 'trained' AND group_id IN {_CHOSEN}"),
        (
            "dropped",
            "closed_reason",
            f"SELECT closed_reason FROM attempts WHERE state = 'dropped' AND group_id IN {_CHOSEN}",
        ),
        (
            "age",
            "age",
            "SELECT step - oldest_version AS age FROM batch_rollouts JOIN rollouts USING (rollout_id)"
            f" WHERE rollout_id IN ({_ROLLOUTS})",
        ),
    ):
        connection.execute(
            f"INSERT INTO compacted SELECT '{kind}', {key}, count(*) FROM ({rows}) AS deleted GROUP BY 2 HAVING true"
            f" {_ADD}"
        )
    for column, rows in (("lease_id", _ATTEMPTS), ("rollout_id", _ROLLOUTS)):
        connection.execute(
            f"UPDATE retention SET {column} = largest"
            f" FROM (SELECT max({column}) AS largest FROM ({rows}) AS deleted) AS found WHERE {column} < largest"
        )
    for table in ("batch_rollouts", "scores"):
        connection.execute(f"DELETE FROM {table} WHERE rollout_id IN ({_ROLLOUTS})")
    connection.execute(f"DELETE FROM rollouts WHERE (lease_id, sample_index) IN ({_ATTEMPTS})")
    for table in ("attempts", "groups"):
        connection.execute(f"DELETE FROM {table} WHERE group_id IN {_CHOSEN}")
    return count


def oldest_events(connection: SqlConnection, count: int, kept: int) -> list[StoryEntry]:
    """Return the oldest ``count`` events if at least ``kept`` newer ones exist, else none."""
    rows = connection.execute(
        "SELECT event_order, at_unix_s, kind, subject, detail, cause FROM events"
        " WHERE event_order <= (SELECT max(event_order) FROM events) - ? ORDER BY event_order LIMIT ?",
        (kept, count),
    ).fetchall()
    return [StoryEntry(*row) for row in rows] if len(rows) == count else []


def delete_events(connection: SqlConnection, up_to: int) -> None:
    """Delete events that were archived in a segment file."""
    connection.execute("UPDATE retention SET events_archived = ? WHERE events_archived < ?", (up_to, up_to))
    connection.execute("DELETE FROM events WHERE event_order <= ?", (up_to,))
