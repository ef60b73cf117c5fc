"""Hold the tables of a run's store as dictionaries with the rules of the real tables; store.py adds durability."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import assert_never

from coordinator.core.events.actions import (
    CloseAttempt,
    CloseGroup,
    CommitTogether,
    DropTurns,
    RecordAttempt,
    RecordBatch,
    RecordEpoch,
    RecordGroup,
    RecordQuarantine,
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
from coordinator.ledger.store import BatchEntry, HighWater, ProblemReward, StoreCounts, StoredVersion
from coordinator.tasks.checks.task import Score
from rollcast.runtime.errors import StoreError
from rollcast.sim.store.access import AccessTable, InviteTable, contradicted
from rollcast.wire.ids import Epoch, GroupId, PeerId, RolloutId, Step, Version
from rollcast.wire.proto import rollcast_pb2 as pb
from rollcast.wire.rollout_messages import body_of, rollout_to_pb
from rollcast.wire.rollouts import Rollout, authors_of

Key = tuple[int, int]  # lease and sample index


@dataclass(slots=True)
class Attempt:
    action: RecordAttempt
    state: str = "open"  # open, filled, trained, dropped
    rollout_id: RolloutId | None = None
    closed: str = ""  # why, once it is dropped


@dataclass(slots=True)
class Group:
    prompt: Prompt
    problem_json: str
    over: bool = False
    attempts: dict[Key, Attempt] = field(default_factory=dict)
    by_slot: dict[int, list[Attempt]] = field(default_factory=dict)
    turns: dict[int, list[StoreTurn]] = field(default_factory=dict)


@dataclass(slots=True)
class Stored:
    action: StoreRollout
    group_id: GroupId
    reward: float | None = None
    exact: bool = False
    parts: Mapping[str, float] = field(default_factory=dict)

    @property
    def key(self) -> Key:
        return (self.action.rollout.lease_id, self.action.rollout.sample_index)


class Tables:
    """The tables of one run. Each method makes one change or answers one question.

    A change that contradicts the tables raises StoreError and changes nothing.

    Args:
        steps_kept: steps after which a finished group is deleted; 0 keeps all groups.
    """

    def __init__(self, *, steps_kept: int = 0) -> None:
        self._steps_kept = steps_kept
        self._groups: dict[GroupId, Group] = {}
        self._attempts: dict[Key, tuple[GroupId, Attempt]] = {}
        self._rollouts: dict[RolloutId, Stored] = {}
        self._batches: dict[Step, tuple[RolloutId, ...]] = {}
        self._epochs: list[RecordEpoch] = []
        self._quarantines: dict[PeerId, RecordQuarantine] = {}
        self._versions: dict[tuple[Epoch, Version], bytes] = {}
        self._newest_epochs: dict[Version, Epoch] = {}  # epoch in which each version was announced
        self.invites = InviteTable()
        self.access = AccessTable()
        self._steps: dict[Step, dict[str, float]] = {}
        self._meta: dict[str, str] = {}
        self._over: deque[tuple[Step, GroupId]] = deque()
        self._mixture: str | None = None
        self._problem_rewards: dict[str, ProblemReward] = {}
        self._recorded = 0
        self._last_group = GroupId(0)
        self._last_rollout = RolloutId(0)
        self._leases_deleted = 0
        self._issued = self._accepted = self._trained = 0
        self._dropped: Counter[str] = Counter()
        self._ages: Counter[int] = Counter()
        self.events = 0

    # ---------------------------------------------------------------- groups, attempts, rollouts

    def record_group(self, action: RecordGroup, problem_json: str) -> None:
        if action.group_id in self._groups:
            raise contradicted(f"group {action.group_id} exists already")
        prompt = Prompt(
            *(action.problem_id, action.prompt_token_ids, action.mixture_position),
            *(action.environment, action.agents),
        )
        self._groups[action.group_id] = Group(prompt, problem_json)
        self._last_group = max(self._last_group, action.group_id)
        if action.group_id == self._last_group:
            self._mixture = action.mixture_position

    def close_group(self, action: CloseGroup) -> None:
        group = self._groups.get(action.group_id)
        if group is None:
            raise StoreError(f"group {action.group_id} was never opened")
        if group.over:
            raise contradicted(f"group {action.group_id} is over")
        self._end(action.group_id, group)

    def record_attempt(self, action: RecordAttempt) -> None:
        key = (action.lease_id, action.sample_index)
        group = self._groups.get(action.group_id)
        if key in self._attempts or action.lease_id <= self._leases_deleted:
            raise contradicted(f"lease {action.lease_id} was issued before")
        if group is None or group.over:
            raise contradicted(f"group {action.group_id} is not open")
        slot = group.by_slot.setdefault(action.sample_index, [])
        if len(slot) >= 2 and sum(one.state == "open" for one in slot) >= 2:
            raise contradicted(f"two attempts at slot {action.sample_index} of group {action.group_id} are in progress")
        attempt = group.attempts[key] = Attempt(action)
        slot.append(attempt)
        self._attempts[key] = (action.group_id, attempt)
        self._issued += 1

    def close_attempt(self, action: CloseAttempt) -> None:
        attempt = self._closable(action)
        if attempt is not None:
            self._drop(attempt, action.reason)

    def _closable(self, action: CloseAttempt) -> Attempt | None:
        """Return the attempt to be closed; None if another attempt's rollout has closed it already."""
        found = self._attempts.get((action.lease_id, action.sample_index))
        attempt = None if found is None else found[1]
        if attempt is not None and action.reason == "late_duplicate" == attempt.closed:
            return None  # the other rollout's own transaction did it
        if attempt is None or attempt.state not in ("open", "filled"):
            raise StoreError(f"sample {action.sample_index} of lease {action.lease_id} is not open")
        return attempt

    def store_rollouts(self, actions: Sequence[StoreRollout]) -> None:
        self._check_storable(actions)
        for action in actions:
            self._store(action)

    def _check_storable(self, actions: Sequence[StoreRollout]) -> None:
        for action in actions:
            found = self._attempts.get((action.rollout.lease_id, action.rollout.sample_index))
            if found is None or found[1].state != "open" or action.rollout_id in self._rollouts:
                raise contradicted(
                    f"sample {action.rollout.sample_index} of lease {action.rollout.lease_id} is not open"
                )
            rivals = self._rivals(found)
            if any(one.state in ("filled", "trained") for one in rivals):
                raise contradicted(f"slot {action.rollout.sample_index} of group {found[0]} has a rollout")

    def store_turn(self, action: StoreTurn) -> None:
        rollout = action.rollout
        found = self._attempts.get((rollout.lease_id, rollout.sample_index))
        group = self._groups.get(rollout.group_id)
        if group is None or found is None or found[1].state != "open":
            raise contradicted(f"the attempt of a turn of group {rollout.group_id} is not open")
        turns = group.turns.setdefault(rollout.sample_index, [])
        if action.turn != len(turns):
            raise contradicted(f"turn {action.turn} of group {rollout.group_id} is not the next one")
        turns.append(action)

    def drop_turns(self, action: DropTurns) -> None:
        group = self._groups.get(action.group_id)
        if group is not None:
            group.turns.pop(action.sample_index, None)

    def commit_together(self, action: CommitTogether, problem: ProblemReward | None) -> None:
        for change in action.changes:  # all of them can be made, or none is
            if isinstance(change, CloseAttempt):
                self._closable(change)
            elif isinstance(change, StoreEpisode):
                self._check_storable([StoreRollout(change.rollout_id, change.peer_id, change.rollout)])
        for change in action.changes:
            match change:
                case CloseAttempt():
                    self.close_attempt(change)
                case DropTurns():
                    self.drop_turns(change)
                case CloseGroup():
                    self.close_group(change)
                case StoreEpisode():
                    self.store_episode(change, change.reward >= 1.0, problem)
                case _:
                    assert_never(change)

    def store_episode(self, action: StoreEpisode, exact: bool, problem: ProblemReward | None) -> None:
        self.store_rollouts([StoreRollout(action.rollout_id, action.peer_id, action.rollout)])
        self.record_score(action.rollout_id, Score(action.reward, exact), problem)

    def record_score(self, rollout_id: RolloutId, score: Score, problem: ProblemReward | None) -> None:
        stored = self._rollouts.get(rollout_id)
        if stored is None or stored.reward is not None:
            raise contradicted(f"rollout {rollout_id} is unknown or scored")
        stored.reward, stored.exact, stored.parts = score.reward, score.exact, score.parts
        if problem is not None:
            self._problem_rewards[problem.problem_id] = problem

    def problem_rewards(self) -> list[ProblemReward]:
        return [self._problem_rewards[name] for name in sorted(self._problem_rewards)]

    def rollout(self, rollout_id: RolloutId) -> pb.Rollout | None:
        stored = self._rollouts.get(rollout_id)
        return None if stored is None else rollout_to_pb(stored.action.rollout)

    def open_groups(self) -> list[RestoredGroup]:
        return [self._restored(group_id, group) for group_id, group in sorted(self._open().items())]

    def finished_attempts(self, count: int) -> list[RestoredFinished]:
        over = [(key, one) for key, one in sorted(self._attempts.items()) if one[1].state in ("trained", "dropped")]
        accepted = {stored.key for stored in self._rollouts.values()}
        accepted |= {key for key, (_, attempt) in over if attempt.closed == NEXT_TURN}
        return [
            RestoredFinished(action.lease_id, action.sample_index, action.peer_id, group_id, key in accepted)
            for key, (group_id, attempt) in over[-count:]
            for action in [attempt.action]
        ]

    def open_problems(self) -> list[str]:
        return [group.problem_json for _, group in sorted(self._open().items())]

    # ---------------------------------------------------------------- batches, epochs, versions

    def record_batch(self, action: RecordBatch) -> None:
        if action.step < self._recorded:
            raise StoreError(f"the batch of step {action.step} is already recorded")
        groups: dict[GroupId, Group] = {}
        keys = set()
        for rollout_id in action.rollout_ids:
            stored = self._rollouts.get(rollout_id)
            if stored is None or stored.reward is None or self._attempts[stored.key][1].state != "filled":
                raise contradicted(f"rollout {rollout_id} is trained, dropped or not scored")
            keys.add(stored.key)
            groups[stored.group_id] = self._groups[stored.group_id]
        for group_id, group in groups.items():
            if any(one.state in ("open", "filled") and key not in keys for key, one in group.attempts.items()):
                raise contradicted(f"a part of group {group_id} stays open")
        self._batches[action.step] = action.rollout_ids
        self._recorded = max(self._recorded, action.step + 1)
        for rollout_id in action.rollout_ids:
            stored = self._rollouts[rollout_id]
            self._attempts[stored.key][1].state = "trained"
            self._trained += 1
            self._ages[action.step - stored.action.rollout.oldest_version] += 1
        for group_id, group in groups.items():
            self._end(group_id, group)
        self._forget()

    def record_epoch(self, action: RecordEpoch) -> None:
        if self._epochs and action.epoch <= self._epochs[-1].epoch:
            raise contradicted(f"epoch {action.epoch} is not newer than all others")
        if any(step in self._batches for step in range(action.step_from, action.step_to)):
            raise contradicted("one of the steps has a batch")
        self._epochs.append(action)
        for step in range(action.step_from, action.step_to):
            self._batches[Step(step)] = ()
        self._recorded = max(self._recorded, action.step_to)

    def epochs(self) -> list[RecordEpoch]:
        """Return every epoch that was opened, oldest first."""
        return list(self._epochs)

    def record_quarantine(self, action: RecordQuarantine) -> None:
        self._quarantines.setdefault(action.peer_id, action)

    def lift_quarantine(self, peer_id: PeerId) -> None:
        self._quarantines.pop(peer_id, None)

    def quarantines(self) -> list[RecordQuarantine]:
        """Return every recorded quarantine, in the order of the identities."""
        return [action for _, action in sorted(self._quarantines.items())]

    def trained_in(self, step: Step) -> list[tuple[RolloutId, Stored]]:
        """Return the rollouts of a recorded batch, in its order."""
        return [(rollout_id, self._rollouts[rollout_id]) for rollout_id in self._batches.get(step, ())]

    def stored_rollout(self, rollout_id: RolloutId) -> Rollout:
        """Return a rollout that is not compacted."""
        return self._rollouts[rollout_id].action.rollout

    def batch_parts(self, step: Step) -> dict[str, float]:
        found: dict[str, list[float]] = {}
        for _, stored in self.trained_in(step):
            for name, value in stored.parts.items():
                found.setdefault(name, []).append(value)
        return {name: sum(found[name]) / len(found[name]) for name in sorted(found)}

    def batch_size(self, step: Step) -> int:
        return len(self._batches.get(step, ()))

    def batch(self, step: Step, first: int = 0, count: int | None = None) -> list[BatchEntry]:
        last = None if count is None else first + count
        return [self._entry(rollout_id) for rollout_id in self._batches.get(step, ())[first:last]]

    def recorded_batches(self) -> int:
        return self._recorded

    def record_version(self, epoch: Epoch, version: Version, announcement: bytes) -> bool:
        known = self._versions.get((epoch, version))
        if known is not None and known != announcement:
            raise StoreError(f"version {version} of epoch {epoch} was announced before with other content")
        self._versions[(epoch, version)] = announcement
        self._newest_epochs[version] = max(epoch, self._newest_epochs.get(version, epoch))
        return known is None

    def version(self, version: Version) -> StoredVersion | None:
        epoch = self._newest_epochs.get(version)
        return None if epoch is None else StoredVersion(epoch, version, self._versions[(epoch, version)])

    def newest_version(self) -> StoredVersion | None:
        newest = self.newest_versions(1)
        return newest[0] if newest else None

    def newest_versions(self, count: int) -> list[StoredVersion]:
        keys = sorted(self._versions, reverse=True)[:count]
        return [StoredVersion(*key, self._versions[key]) for key in keys]

    # ---------------------------------------------------------------- figures, facts

    def record_step(self, step: Step, figures: Mapping[str, float]) -> None:
        self._steps.setdefault(step, dict(figures))

    def steps(self) -> list[tuple[Step, dict[str, float]]]:
        return sorted(self._steps.items())

    def record_event(self, kind: str, subject: str, detail: str, cause: str) -> None:
        if not cause:
            raise contradicted(f"an event {kind} without a cause")
        self.events += 1

    def set_meta(self, key: str, value: str) -> None:
        self._meta[key] = value

    def get_meta(self, key: str) -> str | None:
        return self._meta.get(key)

    def counts(self) -> StoreCounts:
        dropped = self._dropped.total()
        still_open = self._issued - self._trained - dropped
        return StoreCounts(self._issued, self._accepted, self._trained, still_open, dict(self._dropped))

    def trained_ages(self) -> dict[int, int]:
        return dict(self._ages)

    def mixture_position(self) -> str | None:
        return self._mixture

    def high_water(self) -> HighWater:
        return HighWater(self._last_group, self._last_rollout)

    # ---------------------------------------------------------------- parts of the above

    def _open(self) -> dict[GroupId, Group]:
        return {group_id: group for group_id, group in self._groups.items() if not group.over}

    def _rivals(self, found: tuple[GroupId, Attempt]) -> list[Attempt]:
        group_id, attempt = found
        slot = self._groups[group_id].by_slot[attempt.action.sample_index]
        return [one for one in slot if one is not attempt] if len(slot) > 1 else []

    def _store(self, action: StoreRollout) -> None:
        group_id, attempt = found = self._attempts[(action.rollout.lease_id, action.rollout.sample_index)]
        attempt.state, attempt.rollout_id = "filled", action.rollout_id
        for rival in self._rivals(found):
            if rival.state == "open":
                self._drop(rival, "late_duplicate")
        self._groups[group_id].turns.pop(action.rollout.sample_index, None)
        self._rollouts[action.rollout_id] = Stored(action, group_id)
        self._last_rollout = max(self._last_rollout, action.rollout_id)
        self._accepted += 1

    def _drop(self, attempt: Attempt, reason: str) -> None:
        attempt.state, attempt.closed = "dropped", reason
        self._dropped[reason] += 1

    def _end(self, group_id: GroupId, group: Group) -> None:
        if any(one.state in ("open", "filled") for one in group.attempts.values()):
            raise contradicted(f"a part of group {group_id} is still open")
        group.over = True
        group.turns.clear()
        self._over.append((Step(self._recorded), group_id))

    def _forget(self) -> None:
        horizon = self._recorded - self._steps_kept
        if not self._steps_kept or horizon <= 0:
            return
        while self._over and self._over[0][0] < horizon:
            for (lease_id, _), attempt in self._forget_group(self._over.popleft()[1]):
                self._leases_deleted = max(self._leases_deleted, lease_id)
                if attempt.rollout_id is not None:
                    del self._rollouts[attempt.rollout_id]
        for step in [step for step in self._batches if step < horizon]:
            del self._batches[step]
        for key in [key for key in self._versions if key[1] < horizon]:
            del self._versions[key]
            self._newest_epochs.pop(key[1], None)

    def _forget_group(self, group_id: GroupId) -> list[tuple[Key, Attempt]]:
        attempts = list(self._groups.pop(group_id).attempts.items())
        for key, _ in attempts:
            del self._attempts[key]
        return attempts

    def _restored(self, group_id: GroupId, group: Group) -> RestoredGroup:
        live, rollouts = [], []
        for _, attempt in sorted(group.attempts.items()):
            action = attempt.action
            restored = RestoredAttempt(action.lease_id, action.fencing_token, action.sample_index, action.peer_id)
            if attempt.state == "open":
                live.append(restored)
            elif attempt.state == "filled" and attempt.rollout_id is not None:
                stored = self._rollouts[attempt.rollout_id]
                tokens = stored.action.rollout.packed_completion if stored.reward is None else b""
                rollout = stored.action.rollout
                made_with, scored = (rollout.oldest_version, rollout.newest_version), stored.reward is not None
                authors = authors_of(rollout.segments)
                rollouts.append(
                    RestoredRollout(
                        attempt.rollout_id, restored, *made_with, scored, tokens, stored.reward or 0.0, authors
                    )
                )
        turns = {index: tuple(map(_restored_turn, stored)) for index, stored in group.turns.items()}
        return RestoredGroup(group_id, group.prompt, tuple(live), tuple(rollouts), turns)

    def _scored(self, rollout_id: RolloutId) -> bool:
        return self._rollouts[rollout_id].reward is not None

    def rollouts(self, rollout_ids: tuple[RolloutId, ...]) -> list[BatchEntry]:
        return [self._entry(one) for one in sorted(rollout_ids) if one in self._rollouts]

    def _entry(self, rollout_id: RolloutId) -> BatchEntry:
        stored = self._rollouts[rollout_id]
        prompt = self._groups[stored.group_id].prompt
        body = rollout_to_pb(stored.action.rollout)
        seed = self._attempts[stored.key][1].action.seed
        return BatchEntry(
            *(rollout_id, stored.group_id, prompt.prompt_token_ids, body),
            *(stored.reward or 0.0, stored.exact, seed, prompt.agents),
        )


def _restored_turn(stored: StoreTurn) -> RestoredTurn:
    rollout = stored.rollout
    return RestoredTurn(*(rollout.lease_id, stored.peer_id, stored.observation, rollout.segments), body_of(rollout))
