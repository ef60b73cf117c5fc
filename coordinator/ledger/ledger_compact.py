"""Compaction of the ledger's tables: old rows become counts. Each function is one short transaction.

Counts, ages, the largest ids and the refusal of ids that were ever used stay exactly what they were.
"""

from __future__ import annotations

import sqlite3
import time

from coordinator.ledger.store import Compacted, StoryEntry
from rollcast.wire.ids import Step

VERSIONS_AT_ONCE = 64
BATCHES_AT_ONCE = 512
STEPS_AT_ONCE = 512
VACUUM_PAGES = 128
FREE_SHARE_MAX = 0.25  # of a file's pages; more are given back to the file system

_CHOSEN = "(SELECT group_id FROM chosen)"
_ATTEMPTS = f"SELECT lease_id, sample_index FROM attempts WHERE group_id IN {_CHOSEN}"
_ROLLOUTS = f"SELECT rollout_id FROM rollouts WHERE (lease_id, sample_index) IN ({_ATTEMPTS})"
_ADD = "ON CONFLICT (kind, key) DO UPDATE SET count = count + excluded.count"


def compact(connection: sqlite3.Connection, horizon: Step, groups_max: int, steps_kept: int) -> Compacted:
    """Compact some of what was over before ``horizon``; the newest group and the newest batch always stay."""
    began_s = time.monotonic()
    connection.execute("UPDATE retention SET horizon_step = max(horizon_step, ?)", (horizon,))
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


def _compact_groups(connection: sqlite3.Connection, groups_max: int) -> int:
    connection.execute("CREATE TEMP TABLE IF NOT EXISTS chosen (group_id INTEGER PRIMARY KEY)")
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
            f"INSERT INTO compacted SELECT '{kind}', {key}, count(*) FROM ({rows}) GROUP BY 2 HAVING true {_ADD}"
        )
    connection.execute(
        "UPDATE retention SET"
        f" lease_id = max(lease_id, coalesce((SELECT max(lease_id) FROM ({_ATTEMPTS})), 0)),"
        f" rollout_id = max(rollout_id, coalesce((SELECT max(rollout_id) FROM ({_ROLLOUTS})), 0))"
    )
    for table in ("batch_rollouts", "scores"):
        connection.execute(f"DELETE FROM {table} WHERE rollout_id IN ({_ROLLOUTS})")
    connection.execute(f"DELETE FROM rollouts WHERE (lease_id, sample_index) IN ({_ATTEMPTS})")
    for table in ("attempts", "groups"):
        connection.execute(f"DELETE FROM {table} WHERE group_id IN {_CHOSEN}")
    return count


def oldest_events(connection: sqlite3.Connection, count: int, kept: int) -> list[StoryEntry]:
    """The oldest ``count`` entries if at least ``kept`` newer ones are there, else none."""
    rows = connection.execute(
        "SELECT event_order, at_unix_s, kind, subject, detail, cause FROM events"
        " WHERE event_order <= (SELECT max(event_order) FROM events) - ? ORDER BY event_order LIMIT ?",
        (kept, count),
    ).fetchall()
    return [StoryEntry(*row) for row in rows] if len(rows) == count else []


def delete_events(connection: sqlite3.Connection, up_to: int) -> None:
    """These are in a segment file."""
    connection.execute("UPDATE retention SET events_archived = max(events_archived, ?)", (up_to,))
    connection.execute("DELETE FROM events WHERE event_order <= ?", (up_to,))


def give_back_pages(connection: sqlite3.Connection) -> int:
    """Cut free pages off the file if it has many; how many were cut off."""
    ((free,), (total,)) = (connection.execute(f"PRAGMA {name}_count").fetchone() for name in ("freelist", "page"))
    if free <= VACUUM_PAGES or free < total * FREE_SHARE_MAX:
        return 0
    connection.execute(f"PRAGMA incremental_vacuum({VACUUM_PAGES})").fetchall()
    return VACUUM_PAGES
