"""Simulate the coordinator's store on a disk: group commit, and a crash that loses what was not committed.

A change that is awaited outside a simulation is committed at once; the conformance tests of stores use it in this way.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
from functools import partial
from random import Random
from typing import Any, Generic, TypeVar, cast

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
from coordinator.ledger.sql_access import AuditRow, StoredToken
from coordinator.ledger.sql_invites import StoredInvite
from coordinator.ledger.store import BatchEntry, HighWater, ProblemReward, StoreCounts, StoredVersion
from coordinator.ledger.thread import COMMIT_MAX
from coordinator.tasks.checks.task import Score
from rollcast.runtime.errors import RollcastError, StoreError
from rollcast.sim.kernel.disk import Disk
from rollcast.sim.kernel.process import Process
from rollcast.sim.store.leadership import Fence
from rollcast.sim.store.tables import Tables
from rollcast.wire.ids import Epoch, PeerId, RolloutId, Step, Version
from rollcast.wire.proto import rollcast_pb2 as pb

T = TypeVar("T")


class Change(Generic[T]):
    """A change on its way to the disk, with the part of a future's interface that callers use."""

    __slots__ = ("_arguments", "_callback", "_change", "_error", "_finished", "_result", "_store")

    def __init__(self, store: MemoryStore, change: Callable[..., T], arguments: tuple[Any, ...]) -> None:
        self._store = store
        self._change = change
        self._arguments = arguments
        self._finished = False
        self._result: Any = None
        self._error: Exception | None = None
        self._callback: Callable[[Change[T]], None] | None = None

    def done(self) -> bool:
        return self._finished

    def cancelled(self) -> bool:
        return False

    def exception(self) -> Exception | None:
        return self._error

    def result(self) -> T:
        if self._error is not None:
            raise self._error
        return cast(T, self._result)

    def add_done_callback(self, callback: Callable[[Change[T]], None]) -> None:
        before = self._callback
        if self._finished:
            callback(self)
        elif before is None:  # most changes have one
            self._callback = callback
        else:
            self._callback = partial(_call_both, before, callback)

    def __await__(self) -> Generator[Any, None, T]:
        if not self._finished:
            self._store.flush()
        yield from ()
        return self.result()

    def make(self) -> None:
        """Apply the change to the tables."""
        try:
            self._result = self._change(*self._arguments)
        except RollcastError as error:
            self._error = error

    def refuse(self, error: Exception) -> None:
        """Refuse the change: it will not be made."""
        self._error = error

    def notify(self) -> None:
        """Call the waiting callbacks, because the change is durable or refused."""
        self._finished = True
        callback, self._callback = self._callback, None
        if callback is not None:
            callback(self)


def _call_both(first: Callable[[Change[T]], None], second: Callable[[Change[T]], None], change: Change[T]) -> None:
    first(change)
    second(change)


class MemoryStore:
    """One process's connection to the tables; the tables are on the machine's disk and outlive it.

    Args:
        process, disk: its process and the disk of its machine; None: an awaited change is made at once, without a disk.
        fence: the leadership under which changes are committed; None if no other coordinator can take it over.
    """

    def __init__(
        self,
        tables: Tables,
        process: Process | None = None,
        disk: Disk | None = None,
        fence: Fence | None = None,
    ) -> None:
        self.tables = tables
        self._process = process
        self._disk = disk
        self._fence = fence
        self._queue: deque[Change[Any]] = deque()
        self._committing: list[Change[Any]] = []
        self._failure: StoreError | None = None
        self._closed = False

    @property
    def waiting(self) -> int:
        """Return how many changes are not durable yet."""
        return len(self._queue) + len(self._committing)

    def crash(self, random: Random) -> None:
        """Crash: the transaction in progress becomes durable or not by chance, and all later changes are lost."""
        fenced = self._fence is not None and self._fence.refusal() is not None
        if self._committing and random.random() < 0.5 and not fenced:
            self._make(self._committing)
        self._committing = []
        self._queue.clear()

    def flush(self) -> None:
        """Make every waiting change durable now."""
        while self._queue or self._committing:
            self._committing += self._queue
            self._queue.clear()
            self._committed()

    def submit(self, change: Callable[..., T], *arguments: Any) -> asyncio.Future[T]:
        """Queue a change; changes are applied in the order of calls."""
        waiting = Change(self, change, arguments)
        if self._failure is not None or self._closed:
            waiting.refuse(self._failure or StoreError("the store is closed"))
            waiting.notify()
        else:
            self._queue.append(waiting)
            if not self._committing:
                self._commit()
        return cast("asyncio.Future[T]", waiting)

    def _commit(self) -> None:
        if self._process is None or self._disk is None:
            return
        queue = self._queue
        self._committing = [queue.popleft() for _ in range(min(COMMIT_MAX, len(queue)))]
        self._process.later(self._disk.sync_s(), self._committed)

    def _committed(self) -> None:
        changes, refusal = self._committing, self._refusal()
        if refusal is None:
            self._make(changes)
        else:
            self._failure = refusal
            changes = [*changes, *self._queue]
            self._queue.clear()
            for change in changes:
                change.refuse(refusal)
        self._committing = []
        if self._queue:
            self._commit()
        for change in changes:
            change.notify()

    def _refusal(self) -> StoreError | None:
        """Return why the transaction in progress cannot commit; None if it can."""
        if self._disk is not None and self._disk.state.full:
            return StoreError("the disk is full")
        return None if self._fence is None else self._fence.refusal()

    def _make(self, changes: Sequence[Change[Any]]) -> None:
        if self._fence is not None:
            self._fence.committed()
        for change in changes:
            change.make()

    # ---------------------------------------------------------------- RunStore

    async def close(self) -> None:
        self.flush()
        self._closed = True

    async def failed(self) -> StoreError:
        if self._failure is None:
            await asyncio.get_running_loop().create_future()
        assert self._failure is not None
        return self._failure

    def record_group(self, action: RecordGroup, problem_json: str) -> asyncio.Future[None]:
        return self.submit(self.tables.record_group, action, problem_json)

    def close_group(self, action: CloseGroup) -> asyncio.Future[None]:
        return self.submit(self.tables.close_group, action)

    def record_attempt(self, action: RecordAttempt) -> asyncio.Future[None]:
        return self.submit(self.tables.record_attempt, action)

    def close_attempt(self, action: CloseAttempt) -> asyncio.Future[None]:
        return self.submit(self.tables.close_attempt, action)

    def store_rollouts(self, actions: Sequence[StoreRollout]) -> asyncio.Future[None]:
        return self.submit(self.tables.store_rollouts, actions)

    def store_turn(self, action: StoreTurn) -> asyncio.Future[None]:
        return self.submit(self.tables.store_turn, action)

    def drop_turns(self, action: DropTurns) -> asyncio.Future[None]:
        return self.submit(self.tables.drop_turns, action)

    def commit_together(self, action: CommitTogether, *, problem: ProblemReward | None = None) -> asyncio.Future[None]:
        return self.submit(self.tables.commit_together, action, problem)

    def store_episode(
        self, action: StoreEpisode, *, exact: bool, problem: ProblemReward | None = None
    ) -> asyncio.Future[None]:
        return self.submit(self.tables.store_episode, action, exact, problem)

    def record_score(
        self, rollout_id: RolloutId, score: Score, problem: ProblemReward | None = None
    ) -> asyncio.Future[None]:
        return self.submit(self.tables.record_score, rollout_id, score, problem)

    def problem_rewards(self) -> asyncio.Future[list[ProblemReward]]:
        return self.submit(self.tables.problem_rewards)

    def rollout(self, rollout_id: RolloutId) -> asyncio.Future[pb.Rollout | None]:
        return self.submit(self.tables.rollout, rollout_id)

    def finished_attempts(self, count: int) -> asyncio.Future[list[RestoredFinished]]:
        return self.submit(self.tables.finished_attempts, count)

    def open_groups(self) -> asyncio.Future[list[RestoredGroup]]:
        return self.submit(self.tables.open_groups)

    def open_problems(self) -> asyncio.Future[list[str]]:
        return self.submit(self.tables.open_problems)

    def record_batch(self, action: RecordBatch) -> asyncio.Future[None]:
        return self.submit(self.tables.record_batch, action)

    def record_epoch(self, action: RecordEpoch) -> asyncio.Future[None]:
        return self.submit(self.tables.record_epoch, action)

    def epochs(self) -> asyncio.Future[list[RecordEpoch]]:
        return self.submit(self.tables.epochs)

    def record_quarantine(self, action: RecordQuarantine) -> asyncio.Future[None]:
        return self.submit(self.tables.record_quarantine, action)

    def lift_quarantine(self, peer_id: PeerId) -> asyncio.Future[None]:
        return self.submit(self.tables.lift_quarantine, peer_id)

    def quarantines(self) -> asyncio.Future[list[RecordQuarantine]]:
        return self.submit(self.tables.quarantines)

    def batch_parts(self, step: Step) -> asyncio.Future[dict[str, float]]:
        return self.submit(self.tables.batch_parts, step)

    def batch_size(self, step: Step) -> asyncio.Future[int]:
        return self.submit(self.tables.batch_size, step)

    def batch(self, step: Step, first: int = 0, count: int | None = None) -> asyncio.Future[list[BatchEntry]]:
        return self.submit(self.tables.batch, step, first, count)

    def recorded_batches(self) -> asyncio.Future[int]:
        return self.submit(self.tables.recorded_batches)

    def rollouts(self, rollout_ids: Sequence[RolloutId]) -> asyncio.Future[list[BatchEntry]]:
        return self.submit(self.tables.rollouts, tuple(rollout_ids))

    def record_version(self, epoch: Epoch, version: Version, announcement: bytes) -> asyncio.Future[bool]:
        return self.submit(self.tables.record_version, epoch, version, announcement)

    def version(self, version: Version) -> asyncio.Future[StoredVersion | None]:
        return self.submit(self.tables.version, version)

    def newest_version(self) -> asyncio.Future[StoredVersion | None]:
        return self.submit(self.tables.newest_version)

    def newest_versions(self, count: int) -> asyncio.Future[list[StoredVersion]]:
        return self.submit(self.tables.newest_versions, count)

    def create_invite(
        self, token_hash: bytes, role: str, *, quota: int, expires_unix_s: float, note: str = ""
    ) -> asyncio.Future[None]:
        return self.submit(self.tables.invites.create, StoredInvite(token_hash, role, quota, 0, expires_unix_s, note))

    def invites(self, limit: int) -> asyncio.Future[list[StoredInvite]]:
        return self.submit(self.tables.invites.newest, limit)

    def revoke_invite(self, invite_id: str) -> asyncio.Future[bool]:
        return self.submit(self.tables.invites.revoke, invite_id)

    def claim_invite(self, token_hash: bytes, role: str, peer_id: PeerId, *, now_unix_s: float) -> asyncio.Future[None]:
        return self.submit(self.tables.invites.claim, token_hash, role, peer_id, now_unix_s)

    def invite_of(self, peer_id: PeerId) -> asyncio.Future[str]:
        return self.submit(self.tables.invites.of, peer_id)

    def peers_of_invite(self, invite_id: str) -> asyncio.Future[list[PeerId]]:
        return self.submit(self.tables.invites.peers, invite_id)

    def check_invite(self, token_hash: bytes, *, now_unix_s: float) -> asyncio.Future[None]:
        return self.submit(self.tables.invites.check, token_hash, now_unix_s)

    def create_token(
        self, token_hash: bytes, name: str, access: str, *, made_unix_s: float, expires_unix_s: float | None
    ) -> asyncio.Future[StoredToken]:
        return self.submit(self.tables.access.create, token_hash, name, access, made_unix_s, expires_unix_s)

    def revoke_token(self, token_id: int, revoked_unix_s: float) -> asyncio.Future[bool]:
        return self.submit(self.tables.access.revoke, token_id, revoked_unix_s)

    def tokens(self) -> asyncio.Future[list[StoredToken]]:
        return self.submit(self.tables.access.tokens)

    def record_audit(self, row: AuditRow) -> asyncio.Future[int]:
        return self.submit(self.tables.access.record, row)

    def audit_rows(self, before: int | None, limit: int) -> asyncio.Future[list[tuple[int, AuditRow]]]:
        return self.submit(self.tables.access.rows, before, limit)

    def record_step(self, step: Step, figures: Mapping[str, float]) -> asyncio.Future[None]:
        return self.submit(self.tables.record_step, step, figures)

    def steps(self) -> asyncio.Future[list[tuple[Step, dict[str, float]]]]:
        return self.submit(self.tables.steps)

    def record_event(self, kind: str, subject: str, detail: str, *, cause: str) -> asyncio.Future[None]:
        return self.submit(self.tables.record_event, kind, subject, detail, cause)

    def record_note(self, note: Note, *, cause: str) -> asyncio.Future[None]:
        return self.record_event(note.kind, note.subject, note.detail, cause=cause)

    def set_meta(self, key: str, value: str) -> asyncio.Future[None]:
        return self.submit(self.tables.set_meta, key, value)

    def get_meta(self, key: str) -> asyncio.Future[str | None]:
        return self.submit(self.tables.get_meta, key)

    def counts(self) -> asyncio.Future[StoreCounts]:
        return self.submit(self.tables.counts)

    def trained_ages(self) -> asyncio.Future[dict[int, int]]:
        return self.submit(self.tables.trained_ages)

    def mixture_position(self) -> asyncio.Future[str | None]:
        return self.submit(self.tables.mixture_position)

    def high_water(self) -> asyncio.Future[HighWater]:
        return self.submit(self.tables.high_water)


def run_now(coroutine: Coroutine[Any, Any, T]) -> T:
    """Return the result of a coroutine that waits for nothing except this store."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    raise RuntimeError("the coroutine waits for something else than the store")


def answer_of(change: asyncio.Future[T]) -> T:
    """Return the result of a call that the store has answered already."""

    async def result() -> T:
        return await change

    return run_now(result())
