"""Change a ledger, record the acknowledged changes, and check that a ledger still has them. Every id is used once."""

from __future__ import annotations

import asyncio
import random
import sqlite3
from dataclasses import dataclass, field

from coordinator.core.events.actions import (
    CloseAttempt,
    RecordAttempt,
    RecordBatch,
    RecordEpoch,
    RecordGroup,
    StoreRollout,
)
from coordinator.ledger.store import RunStore
from coordinator.tasks.checks.task import Score
from rollcast.wire.ids import Epoch, FencingToken, GroupId, LeaseId, PeerId, RolloutId, Step, Version
from rollcast.wire.rollout_messages import rollout_to_pb
from rollcast.wire.rollouts import Rollout, Segment
from rollcast.wire.token_ids import pack_ids

SLOTS = 4
TOKENS_MAX = 2_000  # bodies of up to about ten pages of the database
DROP_SHARE = 0.15
EPOCH_SHARE = 0.05


@dataclass(slots=True)
class LedgerLoad:
    """Groups that are issued, filled, scored, and trained or dropped, a few at a time."""

    rng: random.Random
    rollouts: dict[int, bytes] = field(default_factory=dict)  # acknowledged rollouts: body
    scores: dict[int, float] = field(default_factory=dict)
    batches: dict[int, tuple[int, ...]] = field(default_factory=dict)
    dropped: dict[int, str] = field(default_factory=dict)  # reason by lease
    asked_batches: dict[int, tuple[int, ...]] = field(default_factory=dict)  # requested changes, acknowledged or not
    _next: int = 0
    _step: int = 0
    _epoch: int = 0

    @property
    def acked(self) -> int:
        """Return the number of acknowledged changes."""
        return len(self.rollouts) + len(self.scores) + len(self.batches) + len(self.dropped)

    async def run(self, store: RunStore, at_once: int) -> None:
        """Make changes, ``at_once`` at a time, until the store fails.

        Raises:
            StoreError: the store failed.
        """
        await asyncio.gather(*(self._groups(store) for _ in range(at_once)))

    async def _groups(self, store: RunStore) -> None:
        while True:
            await self._group(store)

    async def _group(self, store: RunStore) -> None:
        self._next += 1
        number = self._next
        store.record_group(RecordGroup(GroupId(number), f"p:{number}", (5, 6), f'{{"next":{number}}}'), "{}")
        for index in range(SLOTS):
            key = LeaseId(number), FencingToken(number), GroupId(number), index
            store.record_attempt(RecordAttempt(*key, seed=7, peer_id=PeerId("peer")))
        ids = [number * SLOTS + index for index in range(SLOTS)]
        await asyncio.gather(*(self._rollout(store, number, index, one) for index, one in enumerate(ids)))
        if self.rng.random() < DROP_SHARE:
            for index in range(SLOTS):
                await store.close_attempt(CloseAttempt(LeaseId(number), index, "stale"))
            self.dropped[number] = "stale"
        else:
            await self._batch(store, tuple(ids))
        if self.rng.random() < EPOCH_SHARE:
            await self._open_epoch(store)

    async def _rollout(self, store: RunStore, number: int, index: int, rollout_id: int) -> None:
        tokens = self.rng.randrange(1, TOKENS_MAX)
        token_ids = tuple(self.rng.randrange(2**16) for _ in range(tokens))
        segment = Segment("assistant", Epoch(0), Version(0), PeerId("peer"), pack_ids(token_ids), b"\x01" * tokens)
        rollout = Rollout(LeaseId(number), FencingToken(number), GroupId(number), index, (segment,), "stop", 0.5)
        await store.store_rollouts([StoreRollout(RolloutId(rollout_id), PeerId("peer"), rollout)])
        self.rollouts[rollout_id] = rollout_to_pb(rollout).SerializeToString()
        reward = self.rng.random()
        await store.record_score(RolloutId(rollout_id), Score(reward, False))
        self.scores[rollout_id] = reward

    async def _batch(self, store: RunStore, ids: tuple[int, ...]) -> None:
        step = self._step
        self._step += 1
        self.asked_batches[step] = ids
        await store.record_batch(RecordBatch(Step(step), tuple(RolloutId(one) for one in ids)))
        self.batches[step] = ids

    async def _open_epoch(self, store: RunStore) -> None:
        self._epoch += 1
        first, self._step = self._step, self._step + 3
        for step in range(first, self._step):
            self.asked_batches[step] = ()
        await store.record_epoch(RecordEpoch(Epoch(self._epoch), Step(first), Step(self._step), None))
        self.batches |= dict.fromkeys(range(first, self._step), ())


@dataclass(frozen=True, slots=True)
class Found:
    """The result of comparing the rows with the acknowledged changes."""

    lost: int  # acknowledged changes that the rows lack
    torn: int  # batches that are incomplete, or were never requested
    damage: str  # the finding of SQLite's own check; empty if there is none


def check_rows(load: LedgerLoad, connection: sqlite3.Connection) -> Found:
    """Compare the rows with the acknowledged changes."""
    bodies = dict(connection.execute("SELECT rollout_id, body FROM rollouts"))
    scores = dict(connection.execute("SELECT rollout_id, reward FROM scores"))
    dropped = dict(connection.execute("SELECT lease_id, min(closed_reason) FROM attempts GROUP BY lease_id"))
    batches: dict[int, tuple[int, ...]] = {step: () for (step,) in connection.execute("SELECT step FROM batches")}
    for step, rollout_id in connection.execute("SELECT step, rollout_id FROM batch_rollouts ORDER BY step, position"):
        batches[step] = (*batches.get(step, ()), rollout_id)
    lost = sum(bodies.get(one) != body for one, body in load.rollouts.items())
    lost += sum(scores.get(one) != reward for one, reward in load.scores.items())
    lost += sum(dropped.get(one) != reason for one, reason in load.dropped.items())
    lost += sum(batches.get(step) != ids for step, ids in load.batches.items())
    torn = sum(load.asked_batches.get(step) != ids for step, ids in batches.items())
    (verdict,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    return Found(lost, torn, "" if verdict == "ok" else str(verdict))
