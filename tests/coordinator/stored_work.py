"""Make groups, attempts and rollouts to store in tests; by default one group, one slot and one rollout per id."""

from __future__ import annotations

from coordinator.core.events.actions import (
    CloseAttempt,
    RecordAttempt,
    RecordBatch,
    RecordGroup,
    StoreRollout,
    StoreTurn,
)
from coordinator.ledger.store import RunStore
from coordinator.tasks.checks.task import Score
from rollcast.wire.ids import EpisodeId, Epoch, FencingToken, GroupId, LeaseId, PeerId, RolloutId, Step, Version
from rollcast.wire.rollouts import Rollout, Segment
from rollcast.wire.token_ids import pack_ids

PEER = PeerId("12D3KooWtest")
PROMPT = (7, 8, 65_536)


def rollout(lease_id: int, sample_index: int = 0, *, group_id: int = 1, version: int = 3, tokens: int = 4) -> Rollout:
    """Return a rollout of one segment."""
    segment = Segment(
        "assistant", Epoch(0), Version(version), PEER, pack_ids(tuple(range(2, 2 + tokens))), b"\x01" * tokens
    )
    return Rollout(LeaseId(lease_id), FencingToken(lease_id), GroupId(group_id), sample_index, (segment,), "stop", 0.5)


def group(group_id: int = 1) -> RecordGroup:
    """Return a group with a prompt of three tokens."""
    return RecordGroup(GroupId(group_id), f"sum:{group_id}", PROMPT, f'{{"next":{group_id}}}')


def attempt(lease_id: int, sample_index: int = 0, *, group_id: int = 1, seed: int = 2**64 - 1) -> RecordAttempt:
    """Return one slot of a lease."""
    return RecordAttempt(LeaseId(lease_id), FencingToken(lease_id), GroupId(group_id), sample_index, seed, PEER)


def store_rollout(rollout_id: int, stored: Rollout) -> StoreRollout:
    """Return the action that stores a rollout."""
    return StoreRollout(RolloutId(rollout_id), PEER, stored)


def store_turn(turn: int, lease_id: int, said: Segment | None) -> StoreTurn:
    """Return the action that stores a turn of the first group's first slot."""
    return StoreTurn(EpisodeId(1), turn, PEER, said, rollout(lease_id))


def close(lease_id: int, reason: str = "stale", sample_index: int = 0) -> CloseAttempt:
    """Return the action that drops an attempt."""
    return CloseAttempt(LeaseId(lease_id), sample_index, reason)


def batch(step: int, *rollout_ids: int) -> RecordBatch:
    """Return the batch of a step."""
    return RecordBatch(Step(step), tuple(RolloutId(rollout_id) for rollout_id in rollout_ids))


async def issue(store: RunStore, *ids: int) -> None:
    """Open a group of one slot for each id and issue it under the lease of the same number."""
    for one in ids:
        store.record_group(group(one), f'{{"problem":{one}}}')
        await store.record_attempt(attempt(one, group_id=one))


async def fill(store: RunStore, *ids: int, version: int = 3) -> None:
    """Issue leases and store a rollout for each; rollout ids are the lease ids."""
    await issue(store, *ids)
    await store.store_rollouts([store_rollout(one, rollout(one, group_id=one, version=version)) for one in ids])


async def score(store: RunStore, *ids: int, version: int = 3) -> None:
    """Issue, store and score a rollout for each id; its reward is a tenth of the id, and 10 is exactly right."""
    await fill(store, *ids, version=version)
    for one in ids:
        await store.record_score(RolloutId(one), Score(one / 10, one == 10))
