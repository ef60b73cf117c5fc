"""What is written to and read from the ledger's tables beside work: versions, invites, figures, facts, the story."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Mapping

from coordinator.store import StoredVersion
from rollcast.runtime.errors import JoinRefused, StoreError
from rollcast.wire.ids import PeerId, Step, Version


def insert_version(connection: sqlite3.Connection, stored: StoredVersion) -> bool:
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


def select_version(connection: sqlite3.Connection, version: Version | None) -> StoredVersion | None:
    row = connection.execute(
        "SELECT epoch, version, announcement FROM versions WHERE ? IS NULL OR version = ?"
        " ORDER BY epoch DESC, version DESC LIMIT 1",
        (version, version),
    ).fetchone()
    return StoredVersion(*row) if row else None


def select_newest_versions(connection: sqlite3.Connection, count: int) -> list[StoredVersion]:
    rows = connection.execute(
        "SELECT epoch, version, announcement FROM versions ORDER BY epoch DESC, version DESC LIMIT ?",
        (count,),
    )
    return [StoredVersion(*row) for row in rows]


def insert_invite(
    connection: sqlite3.Connection, token_hash: bytes, role: str, quota: int, expires_unix_s: float
) -> None:
    connection.execute("INSERT INTO invites VALUES (?, ?, ?, 0, ?)", (token_hash, role, quota, expires_unix_s))


def claim_invite(
    connection: sqlite3.Connection, token_hash: bytes, role: str, peer_id: PeerId, now_unix_s: float
) -> None:
    row = connection.execute(
        "SELECT role, quota, used, expires_unix_s FROM invites WHERE token_hash = ?", (token_hash,)
    ).fetchone()
    ask = "ask the operator for a new invite"
    if row is None:
        raise JoinRefused("the invite is not one of this run", fix=ask)
    invited_role, quota, used, expires_unix_s = row
    if role != invited_role:
        raise JoinRefused(f"the invite is for the role {invited_role}, not {role}", fix=ask)
    if now_unix_s >= expires_unix_s:
        raise JoinRefused("the invite has expired", fix=ask)
    claim = (token_hash, peer_id)
    if connection.execute("SELECT 1 FROM invite_claims WHERE token_hash = ? AND peer_id = ?", claim).fetchone():
        return
    if used >= quota:
        raise JoinRefused("the invite is used up", cause=f"it was good for {quota}", fix=ask)
    connection.execute("UPDATE invites SET used = used + 1 WHERE token_hash = ?", (token_hash,))
    connection.execute("INSERT INTO invite_claims VALUES (?, ?)", claim)


def check_invite(connection: sqlite3.Connection, token_hash: bytes, now_unix_s: float) -> None:
    """That an invite is one of this run and has not expired; one that is used up is good for those who used it."""
    row = connection.execute("SELECT expires_unix_s FROM invites WHERE token_hash = ?", (token_hash,)).fetchone()
    ask = "ask the operator for a new invite"
    if row is None:
        raise JoinRefused("the invite is not one of this run", fix=ask)
    if now_unix_s >= row[0]:
        raise JoinRefused("the invite has expired", fix=ask)


def insert_step(connection: sqlite3.Connection, step: Step, figures: Mapping[str, float]) -> None:
    connection.execute(
        "INSERT INTO steps (step, figures) VALUES (?, ?) ON CONFLICT (step) DO NOTHING",
        (step, json.dumps(dict(figures))),
    )


def select_steps(connection: sqlite3.Connection) -> list[tuple[Step, dict[str, float]]]:
    rows = connection.execute("SELECT step, figures FROM steps ORDER BY step")
    return [(Step(step), json.loads(figures)) for step, figures in rows]


def insert_events(
    connection: sqlite3.Connection, at_unix_s: float, events: Iterable[tuple[str, str, str, str]]
) -> None:
    connection.executemany(
        "INSERT INTO events (at_unix_s, kind, subject, detail, cause) VALUES (?, ?, ?, ?, ?)",
        [(at_unix_s, *event) for event in events],
    )


def put_meta(connection: sqlite3.Connection, key: str, value: str) -> None:
    connection.execute(
        "INSERT INTO meta VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value", (key, value)
    )


def get_meta(connection: sqlite3.Connection, key: str) -> str | None:
    row = connection.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
    return str(row[0]) if row else None
