"""Store a run in a database: attempts, rollouts, scores, batches, versions and events, by the statements of sql_*.py.

coordinator/ledger/store.py documents each method.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence

from coordinator.core.events.actions import (
    CloseAttempt,
    CloseGroup,
    CommitTogether,
    DropTurns,
    Note,
    RecordAttempt,
    RecordBatch,
    RecordEpoch,
    RecordGroup,
    RecordQuarantine,
    StoreEpisode,
    StoreRollout,
    StoreTurn,
)
from coordinator.core.events.restored import RestoredFinished, RestoredGroup
from coordinator.ledger import compaction
from coordinator.ledger import sql_access as people
from coordinator.ledger import sql_facts as facts
from coordinator.ledger import sql_invites as invites
from coordinator.ledger import sql_work as sql
from coordinator.ledger.sql_access import AuditRow, StoredToken
from coordinator.ledger.sql_invites import StoredInvite
from coordinator.ledger.store import (
    BatchEntry,
    Compacted,
    CompactingStore,
    HighWater,
    ProblemReward,
    StoreCounts,
    StoredVersion,
    StoryEntry,
)
from coordinator.ledger.thread import LedgerThread
from coordinator.ledger.work_group import RecordScore, WorkChange, WorkGroup
from coordinator.tasks.checks.task import Score
from rollcast.runtime.errors import StoreError
from rollcast.wire.ids import Epoch, PeerId, RolloutId, Step, Version
from rollcast.wire.proto import rollcast_pb2 as pb


class SqlStore(CompactingStore):
    """The asyncio front of the store of an engine; it is made inside a running loop, and ends with close."""

    def __init__(self, thread: LedgerThread) -> None:
        self._thread = thread
        self._work = WorkGroup()  # the newest group, with its future
        self._work_made: asyncio.Future[None] | None = None

    @property
    def is_reached(self) -> bool:
        return self._thread.is_answering

    async def close(self) -> None:
        await self._thread.close()

    async def failed(self) -> StoreError:
        return await self._thread.failed()

    def record_group(self, action: RecordGroup, problem_json: str) -> asyncio.Future[None]:
        return self._thread.submit(lambda connection: sql.insert_group(connection, action, problem_json))

    def close_group(self, action: CloseGroup) -> asyncio.Future[None]:
        return self._thread.submit(lambda connection: sql.close_group(connection, action))

    def record_attempt(self, action: RecordAttempt) -> asyncio.Future[None]:
        return self._make_with_others([action], is_awaited=False)

    def close_attempt(self, action: CloseAttempt) -> asyncio.Future[None]:
        return self._thread.submit(lambda connection: sql.close_attempt(connection, action))

    def store_rollouts(self, actions: Sequence[StoreRollout]) -> asyncio.Future[None]:
        return self._make_with_others(actions, is_awaited=True)

    def store_turn(self, action: StoreTurn) -> asyncio.Future[None]:
        return self._thread.submit(lambda connection: sql.insert_turn(connection, action))

    def drop_turns(self, action: DropTurns) -> asyncio.Future[None]:
        return self._thread.submit(lambda connection: sql.delete_turns(connection, action))

    def commit_together(self, action: CommitTogether, *, problem: ProblemReward | None = None) -> asyncio.Future[None]:
        return self._thread.submit(lambda connection: sql.make_together(connection, action, problem))

    def store_episode(
        self, action: StoreEpisode, *, exact: bool, problem: ProblemReward | None = None
    ) -> asyncio.Future[None]:
        return self._thread.submit(lambda connection: sql.insert_episode(connection, action, exact, problem))

    def record_score(
        self, rollout_id: RolloutId, score: Score, problem: ProblemReward | None = None
    ) -> asyncio.Future[None]:
        return self._make_with_others([RecordScore(rollout_id, score, problem)], is_awaited=False)

    def _make_with_others(self, changes: Sequence[WorkChange], *, is_awaited: bool) -> asyncio.Future[None]:
        """Make changes in the group that was requested last, or in a new one; both share the group's future.

        An upload's answer waits for its rollout; attempts and scores are needed only by changes that come after them.
        """
        made = self._work_made
        if made is None or self._work.is_full or not self._thread.is_last(made):
            self._work = WorkGroup()
            made = self._work_made = self._thread.submit(self._work.make, is_awaited=is_awaited)
        elif is_awaited:
            self._thread.hasten()
        for change in changes:
            self._work.add(change)
        return made

    def problem_rewards(self) -> asyncio.Future[list[ProblemReward]]:
        return self._thread.submit(sql.select_problem_rewards)

    def rollout(self, rollout_id: RolloutId) -> asyncio.Future[pb.Rollout | None]:
        return self._thread.submit(lambda connection: sql.select_rollout(connection, rollout_id))

    def open_groups(self) -> asyncio.Future[list[RestoredGroup]]:
        return self._thread.submit(sql.select_open_groups)

    def finished_attempts(self, count: int) -> asyncio.Future[list[RestoredFinished]]:
        return self._thread.submit(lambda connection: sql.select_finished_attempts(connection, count))

    def open_problems(self) -> asyncio.Future[list[str]]:
        return self._thread.submit(sql.select_open_problems)

    def record_epoch(self, action: RecordEpoch) -> asyncio.Future[None]:
        return self._thread.submit(lambda connection: sql.insert_epoch(connection, action))

    def epochs(self) -> asyncio.Future[list[RecordEpoch]]:
        return self._thread.submit(sql.select_epochs)

    def record_quarantine(self, action: RecordQuarantine) -> asyncio.Future[None]:
        return self._thread.submit(lambda connection: facts.insert_quarantine(connection, action))

    def lift_quarantine(self, peer_id: PeerId) -> asyncio.Future[None]:
        return self._thread.submit(lambda connection: facts.delete_quarantine(connection, peer_id))

    def quarantines(self) -> asyncio.Future[list[RecordQuarantine]]:
        return self._thread.submit(facts.select_quarantines)

    def record_batch(self, action: RecordBatch) -> asyncio.Future[None]:
        return self._thread.submit(lambda connection: sql.insert_batch(connection, action))

    def rollouts(self, rollout_ids: Sequence[RolloutId]) -> asyncio.Future[list[BatchEntry]]:
        return self._thread.submit(lambda connection: sql.select_rollouts(connection, rollout_ids))

    def record_version(self, epoch: Epoch, version: Version, announcement: bytes) -> asyncio.Future[bool]:
        stored = StoredVersion(epoch, version, announcement)
        return self._thread.submit(lambda connection: facts.insert_version(connection, stored))

    def create_invite(
        self, token_hash: bytes, role: str, *, quota: int, expires_unix_s: float, note: str = ""
    ) -> asyncio.Future[None]:
        invite = StoredInvite(token_hash, role, quota, 0, expires_unix_s, note)
        return self._thread.submit(lambda connection: invites.insert_invite(connection, invite))

    def invites(self, limit: int) -> asyncio.Future[list[StoredInvite]]:
        return self._thread.submit(lambda connection: invites.select_invites(connection, limit))

    def revoke_invite(self, invite_id: str) -> asyncio.Future[bool]:
        return self._thread.submit(lambda connection: invites.revoke_invite(connection, invite_id))

    def claim_invite(self, token_hash: bytes, role: str, peer_id: PeerId, *, now_unix_s: float) -> asyncio.Future[None]:
        return self._thread.submit(
            lambda connection: invites.claim_invite(connection, token_hash, role, peer_id, now_unix_s)
        )

    def check_invite(self, token_hash: bytes, *, now_unix_s: float) -> asyncio.Future[None]:
        return self._thread.submit(lambda connection: invites.check_invite(connection, token_hash, now_unix_s))

    def invite_of(self, peer_id: PeerId) -> asyncio.Future[str]:
        return self._thread.submit(lambda connection: invites.invite_of(connection, peer_id))

    def peers_of_invite(self, invite_id: str) -> asyncio.Future[list[PeerId]]:
        return self._thread.submit(lambda connection: invites.peers_of(connection, invite_id))

    def create_token(
        self, token_hash: bytes, name: str, access: str, *, made_unix_s: float, expires_unix_s: float | None
    ) -> asyncio.Future[StoredToken]:
        return self._thread.submit(
            lambda connection: people.insert_token(connection, token_hash, name, access, made_unix_s, expires_unix_s)
        )

    def revoke_token(self, token_id: int, revoked_unix_s: float) -> asyncio.Future[bool]:
        return self._thread.submit(lambda connection: people.revoke_token(connection, token_id, revoked_unix_s))

    def tokens(self) -> asyncio.Future[list[StoredToken]]:
        return self._thread.submit(people.select_tokens)

    def record_audit(self, row: AuditRow) -> asyncio.Future[int]:
        return self._thread.submit(lambda connection: people.insert_audit(connection, row))

    def audit_rows(self, before: int | None, limit: int) -> asyncio.Future[list[tuple[int, AuditRow]]]:
        return self._thread.submit(lambda connection: people.select_audit(connection, before, limit))

    def record_step(self, step: Step, figures: Mapping[str, float]) -> asyncio.Future[None]:
        return self._thread.submit(lambda connection: facts.insert_step(connection, step, figures))

    def record_event(self, kind: str, subject: str, detail: str, *, cause: str) -> asyncio.Future[None]:
        at_unix_s = time.time()
        return self._thread.submit(
            lambda connection: facts.insert_events(connection, at_unix_s, [(kind, subject, detail, cause)])
        )

    def record_note(self, note: Note, *, cause: str) -> asyncio.Future[None]:
        return self.record_event(note.kind, note.subject, note.detail, cause=cause)

    def set_meta(self, key: str, value: str) -> asyncio.Future[None]:
        return self._thread.submit(lambda connection: facts.put_meta(connection, key, value))

    def get_meta(self, key: str) -> asyncio.Future[str | None]:
        return self._thread.submit(lambda connection: facts.get_meta(connection, key))

    def batch_parts(self, step: Step) -> asyncio.Future[dict[str, float]]:
        return self._thread.submit(lambda connection: sql.select_batch_parts(connection, step))

    def batch_size(self, step: Step) -> asyncio.Future[int]:
        return self._thread.submit(lambda connection: sql.select_batch_size(connection, step))

    def batch(self, step: Step, first: int = 0, count: int | None = None) -> asyncio.Future[list[BatchEntry]]:
        return self._thread.submit(lambda connection: sql.select_batch(connection, step, first, count))

    def recorded_batches(self) -> asyncio.Future[int]:
        return self._thread.submit(sql.count_batches)

    def version(self, version: Version) -> asyncio.Future[StoredVersion | None]:
        return self._thread.submit(lambda connection: facts.select_version(connection, version))

    def newest_version(self) -> asyncio.Future[StoredVersion | None]:
        return self._thread.submit(lambda connection: facts.select_version(connection, None))

    def newest_versions(self, count: int) -> asyncio.Future[list[StoredVersion]]:
        return self._thread.submit(lambda connection: facts.select_newest_versions(connection, count))

    def steps(self) -> asyncio.Future[list[tuple[Step, dict[str, float]]]]:
        return self._thread.submit(facts.select_steps)

    def counts(self) -> asyncio.Future[StoreCounts]:
        return self._thread.submit(sql.select_counts)

    def trained_ages(self) -> asyncio.Future[dict[int, int]]:
        return self._thread.submit(sql.select_trained_ages)

    def mixture_position(self) -> asyncio.Future[str | None]:
        return self._thread.submit(sql.select_mixture_position)

    def high_water(self) -> asyncio.Future[HighWater]:
        return self._thread.submit(sql.select_high_water)

    def compact(self, horizon: Step, *, groups_max: int, steps_kept: int) -> asyncio.Future[Compacted]:
        return self._thread.submit(lambda connection: compaction.compact(connection, horizon, groups_max, steps_kept))

    def oldest_events(self, count: int, *, kept: int) -> asyncio.Future[list[StoryEntry]]:
        return self._thread.submit(lambda connection: compaction.oldest_events(connection, count, kept))

    def newest_event_unix_s(self) -> asyncio.Future[float | None]:
        return self._thread.submit(facts.newest_event_unix_s)

    def delete_events(self, up_to: int) -> asyncio.Future[None]:
        return self._thread.submit(lambda connection: compaction.delete_events(connection, up_to))
