"""Store versions, steps' metrics, events and facts in the ledger's tables, one function per statement."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping

from coordinator.core.events.actions import RecordQuarantine
from coordinator.ledger.sql import SqlConnection
from coordinator.ledger.store import StoredVersion
from rollcast.runtime.errors import StoreError
from rollcast.wire.ids import PeerId, Step, Version


def insert_version(connection: SqlConnection, stored: StoredVersion) -> bool:
    known = connection.execute(
        "SELECT announcement FROM versions WHERE epoch = ? AND version = ?", (stored.epoch, stored.version)
    ).fetchone()
    if known is None:
        connection.execute(
            "INSERT INTO versions (epoch, version, announcement) VALUES (?, ?, ?)",
            (stored.epoch, stored.version, stored.announcement),
        )
        return True
    if known[0] != stored.announcement:
        raise StoreError(
            f"version {stored.version} of epoch {stored.epoch} was announced before with other content",
            fix="a learner that lost its state must start a new epoch",
        )
    return False


def select_version(connection: SqlConnection, version: Version | None) -> StoredVersion | None:
    condition, values = ("true", ()) if version is None else ("version = ?", (version,))
    row = connection.execute(
        f"SELECT epoch, version, announcement FROM versions WHERE {condition}"
        " ORDER BY epoch DESC, version DESC LIMIT 1",
        values,
    ).fetchone()
    return StoredVersion(*row) if row else None


def select_newest_versions(connection: SqlConnection, count: int) -> list[StoredVersion]:
    rows = connection.execute(
        "SELECT epoch, version, announcement FROM versions ORDER BY epoch DESC, version DESC LIMIT ?",
        (count,),
    )
    return [StoredVersion(*row) for row in rows]


def insert_quarantine(connection: SqlConnection, action: RecordQuarantine) -> None:
    connection.execute(
        "INSERT INTO quarantines (peer_id, reason, receipt) VALUES (?, ?, ?) ON CONFLICT (peer_id) DO NOTHING",
        (action.peer_id, action.reason, action.receipt),
    )


def delete_quarantine(connection: SqlConnection, peer_id: PeerId) -> None:
    connection.execute("DELETE FROM quarantines WHERE peer_id = ?", (peer_id,))


def select_quarantines(connection: SqlConnection) -> list[RecordQuarantine]:
    rows = connection.execute("SELECT peer_id, reason, receipt FROM quarantines ORDER BY peer_id")
    return [RecordQuarantine(PeerId(peer_id), reason, receipt) for peer_id, reason, receipt in rows]


def insert_step(connection: SqlConnection, step: Step, figures: Mapping[str, float]) -> None:
    connection.execute(
        "INSERT INTO steps (step, figures) VALUES (?, ?) ON CONFLICT (step) DO NOTHING",
        (step, json.dumps(dict(figures))),
    )


def select_steps(connection: SqlConnection) -> list[tuple[Step, dict[str, float]]]:
    rows = connection.execute("SELECT step, figures FROM steps ORDER BY step")
    return [(Step(step), json.loads(figures)) for step, figures in rows]


def insert_events(connection: SqlConnection, at_unix_s: float, events: Iterable[tuple[str, str, str, str]]) -> None:
    connection.executemany(
        "INSERT INTO events (at_unix_s, kind, subject, detail, cause) VALUES (?, ?, ?, ?, ?)",
        [(at_unix_s, *event) for event in events],
    )


def newest_event_unix_s(connection: SqlConnection) -> float | None:
    row = connection.execute("SELECT at_unix_s FROM events ORDER BY event_order DESC LIMIT 1").fetchone()
    return float(row[0]) if row else None


def put_meta(connection: SqlConnection, key: str, value: str) -> None:
    connection.execute(
        "INSERT INTO meta VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value", (key, value)
    )


def get_meta(connection: SqlConnection, key: str) -> str | None:
    row = connection.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
    return str(row[0]) if row else None


def peer_names(connection: SqlConnection) -> dict[str, str]:
    """Return the names of the run's peers by id; peers of the same name get the beginning of their id beside it."""
    rows = connection.execute("SELECT subject, detail FROM events WHERE kind = 'peer_joined' ORDER BY event_order")
    names = {peer_id: detail.rpartition(" as ")[0] for peer_id, detail in rows}
    how_many = Counter(names.values())
    return {
        peer_id: name if how_many[name] == 1 else f"{name} ({peer_id[-6:]})" for peer_id, name in names.items() if name
    }
