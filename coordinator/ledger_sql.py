"""What is written to and read from the ledger's tables: one function a statement, each inside a transaction."""

from __future__ import annotations

import json
import sqlite3
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from coordinator.actions import CloseAttempt, RecordAttempt, RecordBatch, RecordGroup, StoreRollout
from rollcast.runtime.errors import JoinRefused, StoreError
from rollcast.wire.ids import Epoch, FencingToken, GroupId, LeaseId, PeerId, RolloutId, Step, Version
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.rollouts import rollout_to_pb


@dataclass(frozen=True, slots=True)
class BatchEntry:
    """One rollout of a recorded batch, with what the learner needs beside it."""

    rollout_id: RolloutId
    group_id: GroupId
    prompt_token_ids: tuple[int, ...]
    rollout: pb.Rollout
    reward: float
    exact: bool


@dataclass(frozen=True, slots=True)
class StoredVersion:
    """A version as it was announced: serialized pb.VersionAnnouncement."""

    epoch: Epoch
    version: Version
    announcement: bytes


@dataclass(frozen=True, slots=True)
class LedgerCounts:
    """Attempts by what became of them: issued = trained + open + the sum of dropped."""

    issued: int
    accepted: int
    trained: int
    open: int
    dropped: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class HighWater:
    """Largest ids in use; 0 where there are none."""

    group_id: GroupId
    lease_id: LeaseId
    fencing_token: FencingToken
    rollout_id: RolloutId


def insert_group(connection: sqlite3.Connection, action: RecordGroup, problem_json: str) -> None:
    connection.execute(
        "INSERT INTO groups VALUES (?, ?, ?, ?, ?)",
        (
            action.group_id,
            action.problem_id,
            _pack_ids(action.prompt_token_ids),
            action.mixture_position,
            problem_json,
        ),
    )


def insert_attempt(connection: sqlite3.Connection, action: RecordAttempt) -> None:
    connection.execute(
        "INSERT INTO attempts VALUES (?, ?, ?, ?, ?, ?, NULL)",
        (
            action.lease_id,
            action.sample_index,
            action.fencing_token,
            action.group_id,
            action.seed - (1 << 64) if action.seed >= 1 << 63 else action.seed,
            action.peer_id,
        ),
    )


def close_attempt(connection: sqlite3.Connection, action: CloseAttempt) -> None:
    closed = connection.execute(
        "UPDATE attempts SET closed_reason = ? WHERE lease_id = ? AND sample_index = ? AND closed_reason IS NULL",
        (action.reason, action.lease_id, action.sample_index),
    )
    if closed.rowcount != 1:
        raise StoreError(f"sample {action.sample_index} of lease {action.lease_id} is not open", cause=action.reason)


def close_open_attempts(connection: sqlite3.Connection, reason: str) -> int:
    closed = connection.execute(
        "UPDATE attempts SET closed_reason = ? WHERE closed_reason IS NULL AND NOT EXISTS ("
        "SELECT 1 FROM rollouts JOIN batches USING (rollout_id)"
        " WHERE rollouts.lease_id = attempts.lease_id AND rollouts.sample_index = attempts.sample_index)",
        (reason,),
    )
    return closed.rowcount


def insert_rollouts(connection: sqlite3.Connection, actions: Sequence[StoreRollout]) -> None:
    (newest,) = connection.execute("SELECT coalesce(max(accepted_order), 0) FROM rollouts").fetchone()
    connection.executemany(
        "INSERT INTO rollouts VALUES (?, ?, ?, ?, ?, ?, ?)",
        [
            (
                action.rollout_id,
                action.rollout.lease_id,
                action.rollout.sample_index,
                action.peer_id,
                rollout_to_pb(action.rollout).SerializeToString(),
                action.rollout.oldest_version,
                order,
            )
            for order, action in enumerate(actions, start=newest + 1)
        ],
    )


def insert_score(connection: sqlite3.Connection, rollout_id: RolloutId, reward: float, exact: bool, error: str) -> None:
    connection.execute("INSERT INTO scores VALUES (?, ?, ?, ?)", (rollout_id, reward, exact, error))


def insert_batch(connection: sqlite3.Connection, action: RecordBatch) -> None:
    if connection.execute("SELECT 1 FROM batches WHERE step = ?", (action.step,)).fetchone():
        raise StoreError(f"the batch of step {action.step} is already recorded")
    connection.executemany(
        "INSERT INTO batches VALUES (?, ?, ?)",
        [(action.step, position, rollout_id) for position, rollout_id in enumerate(action.rollout_ids)],
    )


def select_batch(connection: sqlite3.Connection, step: Step) -> list[BatchEntry]:
    rows = connection.execute(
        "SELECT rollout_id, group_id, prompt_token_ids, body, reward, exact FROM batches"
        " JOIN rollouts USING (rollout_id) JOIN scores USING (rollout_id)"
        " JOIN attempts USING (lease_id, sample_index) JOIN groups USING (group_id)"
        " WHERE step = ? ORDER BY position",
        (step,),
    )
    return [
        BatchEntry(rollout_id, group_id, _unpack_ids(prompt), pb.Rollout.FromString(body), reward, bool(exact))
        for rollout_id, group_id, prompt, body, reward, exact in rows
    ]


def count_batches(connection: sqlite3.Connection) -> int:
    (count,) = connection.execute("SELECT coalesce(max(step) + 1, 0) FROM batches").fetchone()
    return int(count)


def insert_version(connection: sqlite3.Connection, stored: StoredVersion) -> bool:
    known = connection.execute(
        "SELECT announcement FROM versions WHERE epoch = ? AND version = ?", (stored.epoch, stored.version)
    ).fetchone()
    if known is None:
        connection.execute("INSERT INTO versions VALUES (?, ?, ?)", (stored.epoch, stored.version, stored.announcement))
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
        "SELECT epoch, version, announcement FROM versions WHERE epoch = (SELECT max(epoch) FROM versions)"
        " ORDER BY version DESC LIMIT ?",
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


def insert_step(connection: sqlite3.Connection, step: Step, figures: Mapping[str, float]) -> None:
    connection.execute(
        "INSERT INTO steps VALUES (?, ?) ON CONFLICT (step) DO UPDATE SET figures = excluded.figures",
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


def select_mixture_position(connection: sqlite3.Connection) -> str | None:
    row = connection.execute("SELECT mixture_position FROM groups ORDER BY group_id DESC LIMIT 1").fetchone()
    return str(row[0]) if row else None


def select_high_water(connection: sqlite3.Connection) -> HighWater:
    (group_id,) = connection.execute("SELECT coalesce(max(group_id), 0) FROM groups").fetchone()
    lease_id, token = connection.execute(
        "SELECT coalesce(max(lease_id), 0), coalesce(max(fencing_token), 0) FROM attempts"
    ).fetchone()
    (rollout_id,) = connection.execute("SELECT coalesce(max(rollout_id), 0) FROM rollouts").fetchone()
    return HighWater(group_id, lease_id, token, rollout_id)


def select_counts(connection: sqlite3.Connection) -> LedgerCounts:
    by_reason = dict(connection.execute("SELECT closed_reason, count(*) FROM attempts GROUP BY closed_reason"))
    not_closed = by_reason.pop(None, 0)
    (accepted,) = connection.execute("SELECT count(*) FROM rollouts").fetchone()
    (trained,) = connection.execute("SELECT count(*) FROM batches").fetchone()
    issued = not_closed + sum(by_reason.values())
    return LedgerCounts(issued, accepted, trained, not_closed - trained, by_reason)


def select_trained_ages(connection: sqlite3.Connection) -> dict[int, int]:
    rows = connection.execute(
        "SELECT step - oldest_version AS age, count(*) FROM batches JOIN rollouts USING (rollout_id) GROUP BY age"
    )
    return dict(rows.fetchall())


def _pack_ids(token_ids: Sequence[int]) -> bytes:
    return struct.pack(f"<{len(token_ids)}I", *token_ids)


def _unpack_ids(packed: bytes) -> tuple[int, ...]:
    return struct.unpack(f"<{len(packed) // 4}I", packed)
