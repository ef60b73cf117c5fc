"""Judge the core's decisions independently: from events and actions alone, with records of its own."""

from __future__ import annotations

from collections import Counter

from coordinator.core.events.actions import (
    Action,
    AnswerUpload,
    CloseAttempt,
    RecordAttempt,
    RecordBatch,
    RecordEpoch,
    RevokeLeases,
    SendLeases,
    SendPlan,
    ServeBatch,
    StoreRollout,
    SupplyPrompts,
)
from coordinator.core.events.events import BatchRecorded, Event, PromptsSupplied, RolloutStored
from rollcast.wire.ids import PeerId
from rollcast.wire.rollouts import Rollout

Key = tuple[int, int]


class History:
    """Records the attempts that were issued, stored, dropped and trained, and checks every rule with each event."""

    def __init__(self, *, age_max: int, groups_per_step: int, samples_per_group: int) -> None:
        self.age_max = age_max
        self.orphans: set[int] = set()
        self.epoch = 0
        self.batch_size = groups_per_step * samples_per_group
        self.issued: dict[Key, RecordAttempt] = {}
        self.live: set[Key] = set()
        self.dropped: dict[Key, str] = {}
        self.trained: set[Key] = set()
        self.storing: dict[int, Key] = {}
        self.stored: set[Key] = set()
        self.rollouts: dict[int, Rollout] = {}
        self.seeds: dict[Key, int] = {}  # by group and sample
        self.tokens: dict[Key, int] = {}
        self.filled: dict[Key, int] = {}  # slots that hold a rollout, stored or on its way
        self.batches: dict[int, tuple[int, ...]] = {}
        self.recorded: set[int] = set()
        self.prompts_asked = 0
        self.plan_id = 0
        self.sent: dict[Key, PeerId] = {}

    def see(self, event: Event, actions: list[Action]) -> None:
        """Check one event and the actions that it led to."""
        match event:
            case RolloutStored(rollout_id):
                self.stored.add(self.storing.pop(rollout_id))
            case BatchRecorded(step):
                self.recorded.add(step)
                self._count_trained(step)
            case PromptsSupplied():
                self.prompts_asked -= 1
            case _:
                pass
        for action in actions:
            self._action(action)
        plan_ids = {action.plan_id for action in actions if isinstance(action, SendPlan)}
        assert len(plan_ids) <= 1
        assert all(plan_id > self.plan_id for plan_id in plan_ids), "plan ids rise"
        self.plan_id = max(plan_ids, default=self.plan_id)

    def _action(self, action: Action) -> None:
        match action:
            case RecordAttempt():
                self._issue(action)
            case SendLeases(peer_id, leases):
                for lease in leases:
                    for slot in lease.slots:
                        key = (lease.lease_id, slot.sample_index)
                        assert self.issued[key].peer_id == peer_id, "recorded before it is sent"
                        assert self.issued[key].seed == slot.seed
                        assert key not in self.sent
                        self.sent[key] = peer_id
            case RevokeLeases(peer_id, lease_ids):
                for lease_id in lease_ids:
                    assert any(key[0] == lease_id and owner == peer_id for key, owner in self.sent.items())
            case CloseAttempt(lease_id, sample_index, reason):
                self._drop((lease_id, sample_index), reason)
            case StoreRollout(rollout_id, peer_id, rollout):
                self._store(rollout_id, peer_id, rollout)
            case AnswerUpload(_, lease_id, sample_index, True, _):
                assert (lease_id, sample_index) in self.stored, "I1: acknowledged before it was stored"
            case RecordBatch(step, rollout_ids):
                self._batch(step, rollout_ids)
            case RecordEpoch():
                self._open_epoch(action)
            case ServeBatch(step, _):
                assert step in self.recorded, "served before it was recorded"
            case SupplyPrompts(count):
                assert count > 0
                self.prompts_asked += 1
                assert self.prompts_asked == 1, "one request for prompts at a time"
            case _:
                pass

    def _issue(self, action: RecordAttempt) -> None:
        key, slot = (action.lease_id, action.sample_index), (action.group_id, action.sample_index)
        assert key not in self.issued, "I6: an attempt has a lease of its own"
        assert self.seeds.setdefault(slot, action.seed) == action.seed, "a slot keeps its seed"
        assert action.fencing_token > self.tokens.get(slot, 0), "I6: fencing tokens rise"
        assert slot not in self.filled, "a filled slot is not issued again"
        others = [one for one in self.live if self._slot(one) == slot]
        assert len(others) <= 1, "I6: at most two live attempts"
        self.tokens[slot] = action.fencing_token
        self.issued[key] = action
        self.live.add(key)

    def _slot(self, key: Key) -> Key:
        return (self.issued[key].group_id, self.issued[key].sample_index)

    def _drop(self, key: Key, reason: str) -> None:
        assert key in self.issued
        assert key not in self.dropped, "dropped once"
        assert key not in self.trained, "trained or dropped, not both"
        self.dropped[key] = reason
        self.live.discard(key)
        held = self.rollouts.get(self.filled.get(self._slot(key), 0))
        if held is not None and (held.lease_id, held.sample_index) == key:
            del self.filled[self._slot(key)]  # given out again, unless its group is dropped too

    def _store(self, rollout_id: int, peer_id: PeerId, rollout: Rollout) -> None:
        key = (rollout.lease_id, rollout.sample_index)
        assert key in self.live, "I6: only a live attempt is stored"
        assert self.issued[key].peer_id == peer_id
        assert self.issued[key].fencing_token == rollout.fencing_token
        assert self._slot(key) not in self.filled, "I6: a late result counts only if the slot is empty"
        assert rollout_id not in self.rollouts
        self.filled[self._slot(key)] = rollout_id
        self.rollouts[rollout_id] = rollout
        self.storing[rollout_id] = key
        self.live.discard(key)

    def _batch(self, step: int, rollout_ids: tuple[int, ...]) -> None:
        assert step == len(self.batches), "batches in order, each once"
        assert len(rollout_ids) == len(set(rollout_ids)) == self.batch_size
        for rollout_id in rollout_ids:
            rollout = self.rollouts[rollout_id]
            key = (rollout.lease_id, rollout.sample_index)
            assert key in self.stored
            assert key not in self.dropped
            assert step - rollout.oldest_version <= self.age_max, "I3"
            assert not any(segment.version in self.orphans for segment in rollout.segments), "rolled back, and trained"
            assert all(rollout_id not in batch for batch in self.batches.values()), "I2"
        self.batches[step] = rollout_ids

    def _open_epoch(self, action: RecordEpoch) -> None:
        assert action.epoch == self.epoch + 1
        assert action.step_from == len(self.batches), "recorded batches stay recorded"
        for step in range(action.step_from, action.step_to):
            self.batches[step] = ()
            self.recorded.add(step)
        common = -1 if action.common_version is None else action.common_version
        self.epoch = action.epoch
        self.orphans.update(range(common + 1, action.step_to))

    def _count_trained(self, step: int) -> None:
        for rollout_id in self.batches[step]:
            rollout = self.rollouts[rollout_id]
            self.trained.add((rollout.lease_id, rollout.sample_index))

    def counts(self) -> dict[str, object]:
        """Return the counts in the form of the status."""
        return {
            "issued": len(self.issued),
            "accepted": len(self.stored),
            "trained": len(self.trained),
            "turns": 0,  # its prompts have no environment
            "open": len(self.issued) - len(self.trained) - len(self.dropped),
            "dropped": dict(sorted(Counter(self.dropped.values()).items())),
        }
