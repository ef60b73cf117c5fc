"""Store and read groups, attempts, rollouts, scores and batches: one function per statement, each in a transaction."""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Sequence
from statistics import fmean
from typing import assert_never

from blake3 import blake3

from coordinator.core.events.actions import (
    CloseAttempt,
    CloseGroup,
    CommitTogether,
    DropTurns,
    RecordAttempt,
    RecordBatch,
    RecordEpoch,
    RecordGroup,
    StoreEpisode,
    StoreRollout,
    StoreTurn,
)
from coordinator.core.events.events import Prompt
from coordinator.core.events.restored import (
    RestoredAttempt,
    RestoredFinished,
    RestoredGroup,
    RestoredRollout,
    RestoredTurn,
)
from coordinator.core.leases.drop_counts import NEXT_TURN
from coordinator.ledger.sql import NO_LIMIT, SqlConnection, insert_rows
from coordinator.ledger.store import BatchEntry, HighWater, ProblemReward, StoreCounts
from coordinator.tasks.checks.task import Score
from rollcast.runtime.errors import LedgerDamaged, StoreError
from rollcast.wire.ids import GroupId, RolloutId, Step
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.rollout_messages import body_of, rollout_from_pb
from rollcast.wire.rollouts import authors_of, observation

_ENTRY = (
    "rollout_id, group_id, prompt_token_ids, body, body_blake3, reward, exact, seed, agents"  # columns of a BatchEntry
)


def insert_group(connection: SqlConnection, action: RecordGroup, problem_json: str) -> None:
    connection.execute(
        "INSERT INTO groups VALUES (?, ?, ?, ?, ?, NULL, ?, ?)",
        (
            action.group_id,
            action.problem_id,
            _pack_ids(action.prompt_token_ids),
            action.mixture_position,
            problem_json,
            action.environment,
            action.agents,
        ),
    )


def close_group(connection: SqlConnection, action: CloseGroup) -> None:
    closed = connection.execute(
        "UPDATE groups SET over_at_step = (SELECT coalesce(max(step) + 1, 0) FROM batches) WHERE group_id = ?",
        (action.group_id,),
    )
    if closed.rowcount != 1:
        raise StoreError(f"group {action.group_id} was never opened")


def insert_attempts(connection: SqlConnection, actions: Sequence[RecordAttempt]) -> None:
    insert_rows(
        connection,
        "INSERT INTO attempts (lease_id, sample_index, fencing_token, group_id, seed, peer_id) VALUES <rows>",
        [
            (
                action.lease_id,
                action.sample_index,
                action.fencing_token,
                action.group_id,
                action.seed - (1 << 64) if action.seed >= 1 << 63 else action.seed,
                action.peer_id,
            )
            for action in actions
        ],
    )


def close_attempt(connection: SqlConnection, action: CloseAttempt) -> None:
    key = (action.lease_id, action.sample_index)
    row = connection.execute(
        "SELECT state, closed_reason FROM attempts WHERE lease_id = ? AND sample_index = ?", key
    ).fetchone()
    if action.reason == "late_duplicate" and row == ("dropped", "late_duplicate"):
        return  # the transaction of the other attempt's rollout dropped it
    if row is None or row[0] not in ("open", "filled"):
        raise StoreError(f"sample {action.sample_index} of lease {action.lease_id} is not open", cause=action.reason)
    connection.execute(
        "UPDATE attempts SET state = 'dropped', closed_reason = ?, closed_unix_s = ?"
        " WHERE lease_id = ? AND sample_index = ?",
        (action.reason, time.time(), *key),
    )


def insert_rollouts(connection: SqlConnection, actions: Sequence[StoreRollout]) -> None:
    insert_rows(
        connection,
        "INSERT INTO rollouts (rollout_id, lease_id, sample_index, peer_id, body, body_blake3, oldest_version,"
        " newest_version) VALUES <rows>",
        [
            (
                action.rollout_id,
                action.rollout.lease_id,
                action.rollout.sample_index,
                action.peer_id,
                body,
                body_checksum(body),
                action.rollout.oldest_version,
                action.rollout.newest_version,
            )
            for action in actions
            for body in [body_of(action.rollout)]
        ],
    )


def insert_turn(connection: SqlConnection, action: StoreTurn) -> None:
    rollout, said, body = action.rollout, action.observation, body_of(action.rollout)
    connection.execute(
        "INSERT INTO turns VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            *(rollout.group_id, rollout.sample_index, action.turn, rollout.lease_id, action.peer_id),
            *(("", b"") if said is None else (said.role, said.packed_ids)),
            *(body, body_checksum(body)),
        ),
    )


def delete_turns(connection: SqlConnection, action: DropTurns) -> None:
    connection.execute(
        "DELETE FROM turns WHERE group_id = ? AND sample_index = ?", (action.group_id, action.sample_index)
    )


def insert_episode(connection: SqlConnection, action: StoreEpisode, exact: bool, problem: ProblemReward | None) -> None:
    insert_rollouts(connection, [StoreRollout(action.rollout_id, action.peer_id, action.rollout)])
    insert_scores(connection, [(action.rollout_id, Score(action.reward, exact))])
    upsert_problem_rewards(connection, [] if problem is None else [problem])


def make_together(connection: SqlConnection, action: CommitTogether, problem: ProblemReward | None) -> None:
    for change in action.changes:
        match change:
            case CloseAttempt():
                close_attempt(connection, change)
            case DropTurns():
                delete_turns(connection, change)
            case CloseGroup():
                close_group(connection, change)
            case StoreEpisode():
                insert_episode(connection, change, change.reward >= 1.0, problem)
            case _:
                assert_never(change)


def _select_turns(connection: SqlConnection) -> dict[GroupId, dict[int, tuple[RestoredTurn, ...]]]:
    """Return the turns of open groups' episodes, in order."""
    found: dict[GroupId, dict[int, tuple[RestoredTurn, ...]]] = {}
    for group_id, index, lease_id, peer_id, role, said, body, checksum in connection.execute(
        "SELECT group_id, sample_index, lease_id, peer_id, observation_role, observation, body, body_blake3"
        " FROM turns ORDER BY group_id, sample_index, turn"
    ):
        generated = rollout_from_pb(read_body(lease_id, body, checksum), logprobs=False).segments
        before = observation(role, _unpack_ids(said)) if role else None
        turns = found.setdefault(group_id, {})
        turns[index] = (*turns.get(index, ()), RestoredTurn(lease_id, peer_id, before, generated, body))
    return found


def select_rollout(connection: SqlConnection, rollout_id: RolloutId) -> pb.Rollout | None:
    row = connection.execute("SELECT body, body_blake3 FROM rollouts WHERE rollout_id = ?", (rollout_id,)).fetchone()
    return read_body(rollout_id, *row) if row else None


def read_body(rollout_id: int, body: bytes, checksum: bytes | None) -> pb.Rollout:
    """Return a stored rollout.

    Raises:
        LedgerDamaged: the disk gives back other bytes than were stored.
    """
    if checksum is not None and body_checksum(body) != checksum:
        raise LedgerDamaged(
            f"rollout {rollout_id} in the ledger is not what was stored",
            cause="its checksum differs: the disk or the file was changed",
            fix="restore a backup of the run with `rollcast restore`, and check the disk",
        )
    return pb.Rollout.FromString(body)


def body_checksum(body: bytes) -> bytes:
    """Return the checksum that is stored beside a rollout."""
    return blake3(body).digest(length=16)


def insert_scores(connection: SqlConnection, scores: Sequence[tuple[RolloutId, Score]]) -> None:
    # A verifier may take so long that the rollout was dropped and compacted meanwhile: then its score is ignored.
    # Both engines name the columns of VALUES like this.
    insert_rows(
        connection,
        "INSERT INTO scores (rollout_id, reward, exact, detail, parts)"
        " SELECT column1, column2, column3, column4, column5 FROM (VALUES <rows>) AS new"
        " WHERE EXISTS (SELECT 1 FROM rollouts WHERE rollout_id = column1)"
        " OR column1 > (SELECT rollout_id FROM retention)",
        [
            (rollout_id, float(score.reward), int(score.exact), score.detail, _parts_json(score))
            for rollout_id, score in scores
        ],
    )


def _parts_json(score: Score) -> str:
    return json.dumps(dict(score.parts), separators=(",", ":")) if score.parts else "{}"


def upsert_problem_rewards(connection: SqlConnection, problems: Sequence[ProblemReward]) -> None:
    connection.executemany(
        "INSERT INTO problem_rewards VALUES (?, ?, ?, ?) ON CONFLICT (problem_id) DO UPDATE"
        " SET rollouts = excluded.rollouts, mean = excluded.mean, variance = excluded.variance",
        [(one.problem_id, one.rollouts, one.mean, one.variance) for one in problems],
    )


def select_problem_rewards(connection: SqlConnection) -> list[ProblemReward]:
    rows = connection.execute("SELECT problem_id, rollouts, mean, variance FROM problem_rewards ORDER BY problem_id")
    return [ProblemReward(*row) for row in rows]


def insert_batch(connection: SqlConnection, action: RecordBatch) -> None:
    if connection.execute("SELECT 1 FROM batches WHERE step = ?", (action.step,)).fetchone():
        raise StoreError(f"the batch of step {action.step + 1} is already recorded")
    connection.execute("INSERT INTO batches (step) VALUES (?)", (action.step,))
    connection.executemany(
        "INSERT INTO batch_rollouts VALUES (?, ?, ?)",
        [(action.step, position, rollout_id) for position, rollout_id in enumerate(action.rollout_ids)],
    )
    connection.execute(
        "UPDATE groups SET over_at_step = ? WHERE group_id IN (SELECT group_id FROM batch_rollouts"
        " JOIN rollouts USING (rollout_id) JOIN attempts USING (lease_id, sample_index) WHERE step = ?)",
        (action.step, action.step),
    )


def insert_epoch(connection: SqlConnection, action: RecordEpoch) -> None:
    (newest,) = connection.execute(
        "SELECT coalesce(max(epoch), 0) FROM (SELECT epoch FROM epochs UNION ALL SELECT epoch FROM versions) AS epochs"
    ).fetchone()
    if action.epoch <= newest:
        raise StoreError(f"epoch {action.epoch} is not newer than epoch {newest}")
    connection.execute(
        "INSERT INTO epochs VALUES (?, ?, ?, ?)",
        (action.epoch, action.step_from, action.step_to, action.common_version),
    )
    steps = range(action.step_from, action.step_to)
    connection.executemany("INSERT INTO batches (step) VALUES (?)", [(step,) for step in steps])


def select_epochs(connection: SqlConnection) -> list[RecordEpoch]:
    rows = connection.execute("SELECT epoch, step_from, step_to, common_version FROM epochs ORDER BY epoch")
    return [RecordEpoch(*row) for row in rows]


def select_batch_size(connection: SqlConnection, step: Step) -> int:
    _require_kept(connection, step)
    (count,) = connection.execute("SELECT count(*) FROM batch_rollouts WHERE step = ?", (step,)).fetchone()
    return int(count)


def select_batch_parts(connection: SqlConnection, step: Step) -> dict[str, float]:
    rows = connection.execute(
        "SELECT parts FROM batch_rollouts JOIN scores USING (rollout_id) WHERE step = ? AND parts <> '{}'", (step,)
    )
    values: dict[str, list[float]] = {}
    for (parts,) in rows:
        for name, value in json.loads(parts).items():
            values.setdefault(name, []).append(value)
    return {name: fmean(values[name]) for name in sorted(values)}


def select_batch(connection: SqlConnection, step: Step, first: int, count: int | None) -> list[BatchEntry]:
    _require_kept(connection, step)
    rows = connection.execute(
        f"SELECT {_ENTRY} FROM batch_rollouts"
        " JOIN rollouts USING (rollout_id) JOIN scores USING (rollout_id)"
        " JOIN attempts USING (lease_id, sample_index) JOIN groups USING (group_id)"
        " WHERE step = ? AND position >= ? ORDER BY position LIMIT ?",
        (step, first, NO_LIMIT if count is None else count),
    ).fetchall()
    return [_entry(*row) for row in rows]


def select_rollouts(connection: SqlConnection, rollout_ids: Sequence[RolloutId]) -> list[BatchEntry]:
    found = (
        connection.execute(
            f"SELECT {_ENTRY} FROM rollouts LEFT JOIN scores USING (rollout_id)"
            " JOIN attempts USING (lease_id, sample_index) JOIN groups USING (group_id) WHERE rollout_id = ?",
            (rollout_id,),
        ).fetchone()
        for rollout_id in sorted(rollout_ids)
    )
    return [_entry(*row) for row in found if row is not None]


def _entry(
    rollout_id: int,
    group_id: int,
    prompt: bytes,
    body: bytes,
    checksum: bytes | None,
    reward: float | None,
    exact: int | None,
    seed: int,
    agents: int,
) -> BatchEntry:
    return BatchEntry(
        RolloutId(rollout_id),
        GroupId(group_id),
        _unpack_ids(prompt),
        read_body(RolloutId(rollout_id), body, checksum),
        reward or 0.0,
        bool(exact),
        seed % (1 << 64),
        agents,
    )


def _require_kept(connection: SqlConnection, step: Step) -> None:
    (horizon,) = connection.execute("SELECT horizon_step FROM retention").fetchone()
    if step < horizon:
        raise StoreError(
            f"the batch of step {step + 1} was compacted",
            cause=f"the learner's oldest checkpoint needs no steps before {horizon}",
            fix="resume the learner from a newer checkpoint",
        )


def count_batches(connection: SqlConnection) -> int:
    (count,) = connection.execute("SELECT coalesce(max(step) + 1, 0) FROM batches").fetchone()
    return int(count)


def select_open_groups(connection: SqlConnection) -> list[RestoredGroup]:
    groups = connection.execute(
        "SELECT group_id, problem_id, prompt_token_ids, mixture_position, environment, agents FROM groups"
        " WHERE over_at_step IS NULL ORDER BY group_id"
    ).fetchall()
    turns = _select_turns(connection)
    live: dict[GroupId, list[RestoredAttempt]] = {}
    rollouts: dict[GroupId, list[RestoredRollout]] = {}
    rows = connection.execute(
        "SELECT group_id, lease_id, fencing_token, sample_index, attempts.peer_id, rollout_id, oldest_version,"
        " newest_version, scores.reward, body, body_blake3"
        " FROM groups JOIN attempts USING (group_id) LEFT JOIN rollouts USING (lease_id, sample_index)"
        " LEFT JOIN scores USING (rollout_id)"
        " WHERE over_at_step IS NULL AND state IN ('open', 'filled') ORDER BY lease_id, sample_index"
    )
    for group_id, lease_id, token, sample_index, peer_id, rollout_id, oldest, newest, reward, body, checksum in rows:
        attempt = RestoredAttempt(lease_id, token, sample_index, peer_id)
        if rollout_id is None:
            live.setdefault(group_id, []).append(attempt)
        else:
            made_with, scored = (oldest, newest), reward is not None
            made = rollout_from_pb(read_body(rollout_id, body, checksum), logprobs=False)
            tokens = b"" if scored else made.packed_completion
            rollouts.setdefault(group_id, []).append(
                RestoredRollout(
                    rollout_id, attempt, *made_with, scored, tokens, reward or 0.0, authors_of(made.segments)
                )
            )
    return [
        RestoredGroup(
            group_id,
            Prompt(problem_id, _unpack_ids(prompt), position, environment, agents),
            tuple(live.get(group_id, ())),
            tuple(rollouts.get(group_id, ())),
            turns.get(group_id, {}),
        )
        for group_id, problem_id, prompt, position, environment, agents in groups
    ]


def select_finished_attempts(connection: SqlConnection, count: int) -> list[RestoredFinished]:
    rows = connection.execute(
        "SELECT lease_id, sample_index, attempts.peer_id, group_id,"
        f" rollout_id IS NOT NULL OR coalesce(closed_reason, '') = '{NEXT_TURN}'"
        " FROM attempts LEFT JOIN rollouts USING (lease_id, sample_index) WHERE state IN ('trained', 'dropped')"
        " ORDER BY lease_id DESC, sample_index DESC LIMIT ?",
        (count,),
    ).fetchall()
    return [
        RestoredFinished(lease_id, sample_index, peer_id, group_id, bool(stored))
        for lease_id, sample_index, peer_id, group_id, stored in reversed(rows)
    ]


def select_open_problems(connection: SqlConnection) -> list[str]:
    rows = connection.execute("SELECT problem FROM groups WHERE over_at_step IS NULL ORDER BY group_id")
    return [problem for (problem,) in rows]


def select_mixture_position(connection: SqlConnection) -> str | None:
    row = connection.execute("SELECT mixture_position FROM groups ORDER BY group_id DESC LIMIT 1").fetchone()
    return str(row[0]) if row else None


def select_high_water(connection: SqlConnection) -> HighWater:
    group_id, rollout_id = connection.execute(
        "SELECT coalesce((SELECT max(group_id) FROM groups), 0), max(rollout_id) FROM"
        " (SELECT rollout_id FROM retention UNION ALL SELECT max(rollout_id) FROM rollouts) AS ids"
    ).fetchone()
    return HighWater(group_id, rollout_id)


def select_counts(connection: SqlConnection) -> StoreCounts:
    states: dict[str, int] = {}
    dropped: dict[str, int] = {}
    for state, reason, count in connection.execute(
        "SELECT state, closed_reason, count(*) FROM attempts GROUP BY state, closed_reason"
        " UNION ALL SELECT kind, key, count FROM compacted WHERE kind IN ('trained', 'dropped')"
    ):
        states[state] = states.get(state, 0) + count
        if state == "dropped":
            dropped[reason] = dropped.get(reason, 0) + count
    (accepted,) = connection.execute(
        "SELECT (SELECT count(*) FROM rollouts)"
        " + coalesce((SELECT CAST(sum(count) AS BIGINT) FROM compacted WHERE kind = 'accepted'), 0)"
    ).fetchone()
    is_open = states.get("open", 0) + states.get("filled", 0)
    return StoreCounts(sum(states.values()), accepted, states.get("trained", 0), is_open, dropped)


def select_trained_ages(connection: SqlConnection) -> dict[int, int]:
    rows = connection.execute(
        "SELECT age, CAST(sum(count) AS BIGINT) FROM ("
        "SELECT step - oldest_version AS age, count(*) AS count FROM batch_rollouts JOIN rollouts USING (rollout_id)"
        " GROUP BY age UNION ALL SELECT CAST(key AS BIGINT), count FROM compacted WHERE kind = 'age') AS ages"
        " GROUP BY age ORDER BY age"
    )
    return dict(rows.fetchall())


def _pack_ids(token_ids: Sequence[int]) -> bytes:
    return struct.pack(f"<{len(token_ids)}I", *token_ids)


def _unpack_ids(packed: bytes) -> tuple[int, ...]:
    return struct.unpack(f"<{len(packed) // 4}I", packed)
