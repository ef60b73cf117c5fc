"""Prompt groups, their slots, and the attempts at them.

A group is one prompt with a fixed number of slots; a slot becomes one rollout. A lease gives slots of one group to one
peer; each slot of a lease is an attempt. A slot has at most two live attempts (I6); the first one received fills it.

    attempt: live ──► filled (stored, then scored) ──► trained or dropped with its group
              └────► closed with a reason; the slot is vacant again and issued before any new group
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from blake3 import blake3

from coordinator.events import Prompt
from coordinator.restored import RestoredAttempt, RestoredGroup
from rollcast.wire.ids import FencingToken, GroupId, LeaseId, PeerId, RolloutId, Version
from rollcast.wire.rollouts import Slot

LIVE_ATTEMPTS_MAX = 2  # I6 of the threat model

AttemptKey = tuple[LeaseId, int]  # lease and sample index: unique for ever


def slot_seed(run_seed: int, group_id: GroupId, sample_index: int) -> int:
    """Sampling seed of a slot, 64 bits; the same for every attempt at it."""
    text = b"rollcast/slot-seed/1" + b"".join(n.to_bytes(8, "little") for n in (run_seed, group_id, sample_index))
    return int.from_bytes(blake3(text).digest(length=8), "little")


@dataclass(frozen=True, slots=True)
class Attempt:
    """One slot issued to one peer. ``deadline`` is on the core's clock."""

    lease_id: LeaseId
    fencing_token: FencingToken
    group_id: GroupId
    sample_index: int
    peer_id: PeerId
    deadline: float

    @property
    def key(self) -> AttemptKey:
        return (self.lease_id, self.sample_index)


@dataclass(slots=True)
class Filling:
    """The rollout that a slot became."""

    rollout_id: RolloutId
    attempt: Attempt
    oldest_version: Version
    stored: bool = False
    scored: bool = False


@dataclass(slots=True)
class SlotState:
    seed: int
    last_token: int = 0  # fencing token of the newest attempt
    live: list[Attempt] = field(default_factory=list)
    filling: Filling | None = None

    @property
    def vacant(self) -> bool:
        return not self.live and self.filling is None


@dataclass(slots=True)
class Group:
    """One prompt's slots, in order of their sample index."""

    group_id: GroupId
    prompt: Prompt
    slots: list[SlotState]
    scored: int = 0
    oldest_version: Version | None = None  # of its rollouts so far

    @property
    def ready(self) -> bool:
        return self.scored == len(self.slots)

    def fillings(self) -> list[Filling]:
        return [slot.filling for slot in self.slots if slot.filling is not None]

    def live(self) -> list[Attempt]:
        return [attempt for slot in self.slots for attempt in slot.live]

    def vacant(self) -> list[int]:
        """Sample indices that nobody works at."""
        return [index for index, slot in enumerate(self.slots) if slot.vacant]


@dataclass(frozen=True, slots=True)
class Finished:
    """What became of an attempt that is over."""

    peer_id: PeerId
    group_id: GroupId
    stored: bool


class LeaseBook:
    """Every open or ready group, oldest first, with the indices that make each question cheap."""

    def __init__(
        self,
        *,
        run_seed: int,
        samples_per_group: int,
        finished_kept: int,
        last_group: int = 0,
        last_lease: int = 0,
    ) -> None:
        self._run_seed = run_seed
        self._samples_per_group = samples_per_group
        self._finished_kept = finished_kept
        self._groups: dict[GroupId, Group] = {}
        self._order: list[GroupId] = []
        self._vacant: list[GroupId] = []  # groups with a vacant slot, oldest first
        self._ready: list[GroupId] = []  # groups with every slot scored, oldest first
        self._live: dict[AttemptKey, Attempt] = {}  # in order of issue, which is the order of deadlines
        self._live_by_peer: dict[PeerId, dict[AttemptKey, Attempt]] = {}
        self._filled: dict[AttemptKey, Filling] = {}
        self._slot_of_rollout: dict[RolloutId, tuple[GroupId, int]] = {}
        self._finished: OrderedDict[AttemptKey, Finished] = OrderedDict()
        self._last_group = last_group
        self._last_lease = last_lease
        self.unscored = 0  # rollouts received and not scored

    # ---------------------------------------------------------------- questions

    def __len__(self) -> int:
        """Open and ready groups."""
        return len(self._order)

    def __iter__(self) -> Iterator[Group]:
        return (self._groups[group_id] for group_id in self._order)

    def position(self, group: Group) -> int:
        """How many open or ready groups are older."""
        return bisect_left(self._order, group.group_id)

    def oldest_vacant(self) -> Group | None:
        return self._groups[self._vacant[0]] if self._vacant else None

    def ready_groups(self) -> list[Group]:
        return [self._groups[group_id] for group_id in self._ready]

    @property
    def ready_count(self) -> int:
        return len(self._ready)

    @property
    def live_count(self) -> int:
        """Attempts that a peer is expected to answer."""
        return len(self._live)

    def live_attempt(self, key: AttemptKey) -> Attempt | None:
        return self._live.get(key)

    def filling_of(self, key: AttemptKey) -> Filling | None:
        """The rollout that this attempt became, while its group is open or ready."""
        return self._filled.get(key)

    def finished(self, key: AttemptKey) -> Finished | None:
        """What became of an attempt that is over, while it is remembered."""
        return self._finished.get(key)

    def slot_is_filled(self, group_id: GroupId, sample_index: int) -> bool:
        """Whether this slot needs nothing more: it has a rollout, or its group is gone."""
        group = self._groups.get(group_id)
        return group is None or group.slots[sample_index].filling is not None

    def held_by(self, peer_id: PeerId) -> list[Attempt]:
        return list(self._live_by_peer.get(peer_id, {}).values())

    def held_count(self, peer_id: PeerId) -> int:
        return len(self._live_by_peer.get(peer_id, ()))

    def expired(self, now: float) -> list[Attempt]:
        """Live attempts whose deadline has passed, oldest first."""
        late: list[Attempt] = []
        for attempt in self._live.values():
            if attempt.deadline > now:
                break
            late.append(attempt)
        return late

    # ---------------------------------------------------------------- changes

    def restore(self, groups: Sequence[RestoredGroup], deadline: float) -> None:
        """Take over what the coordinator before us had open, oldest group first; the book must be empty.

        ``deadline`` is that of every live attempt, on the core's clock: a full period from our start, because what
        passed of its first one while nobody could answer its peer is not the peer's fault. So this is called when the
        event Started says what the time is, not when the book is made.
        """
        for restored in groups:
            group = self._new_group(restored.group_id, restored.prompt)
            for attempt in restored.live:
                self._make_live(group, _restored_attempt(restored.group_id, attempt, deadline))
            for rollout in restored.rollouts:
                came_from = _restored_attempt(restored.group_id, rollout.attempt, deadline)
                self._set_filling(group, Filling(rollout.rollout_id, came_from, rollout.oldest_version, stored=True))
                if rollout.scored:
                    self.mark_scored(rollout.rollout_id)
            self._index_vacancy(group)

    def open_group(self, prompt: Prompt) -> Group:
        self._last_group += 1
        return self._new_group(GroupId(self._last_group), prompt)

    def _new_group(self, group_id: GroupId, prompt: Prompt) -> Group:
        seeds = [slot_seed(self._run_seed, group_id, index) for index in range(self._samples_per_group)]
        group = self._groups[group_id] = Group(group_id, prompt, [SlotState(seed) for seed in seeds])
        self._order.append(group_id)
        self._vacant.append(group_id)
        return group

    def issue(self, group: Group, indices: list[int], peer_id: PeerId, deadline: float) -> list[Attempt]:
        """One lease for these slots; each may have room for one more live attempt at most."""
        self._last_lease += 1
        lease_id, token = LeaseId(self._last_lease), FencingToken(self._last_lease)
        attempts = [Attempt(lease_id, token, group.group_id, index, peer_id, deadline) for index in indices]
        for attempt in attempts:
            slot = group.slots[attempt.sample_index]
            if slot.filling is not None or len(slot.live) >= LIVE_ATTEMPTS_MAX:
                raise ValueError(f"slot {attempt.sample_index} of group {group.group_id} cannot be issued")
            self._make_live(group, attempt)
        self._index_vacancy(group)
        return attempts

    def _make_live(self, group: Group, attempt: Attempt) -> None:
        slot = group.slots[attempt.sample_index]
        slot.live.append(attempt)
        slot.last_token = attempt.fencing_token
        self._live[attempt.key] = attempt
        self._live_by_peer.setdefault(attempt.peer_id, {})[attempt.key] = attempt

    def slots_of(self, attempts: list[Attempt]) -> tuple[Slot, ...]:
        """The wire form of a lease's slots."""
        return tuple(Slot(a.sample_index, self._groups[a.group_id].slots[a.sample_index].seed) for a in attempts)

    def close(self, attempt: Attempt) -> None:
        """A live attempt is over without a rollout; its slot is vacant again unless another attempt has it."""
        group = self._groups[attempt.group_id]
        self._unlive(attempt)
        group.slots[attempt.sample_index].live.remove(attempt)
        self._remember(attempt, stored=False)
        self._index_vacancy(group)

    def fill(self, attempt: Attempt, rollout_id: RolloutId, oldest_version: Version) -> list[Attempt]:
        """A live attempt's rollout was received. Returns the other live attempts at its slot: they lost the race."""
        group = self._groups[attempt.group_id]
        slot = group.slots[attempt.sample_index]
        self._unlive(attempt)
        slot.live.remove(attempt)
        self._set_filling(group, Filling(rollout_id, attempt, oldest_version))
        return list(slot.live)

    def _set_filling(self, group: Group, filling: Filling) -> None:
        attempt = filling.attempt
        if group.oldest_version is None or filling.oldest_version < group.oldest_version:
            group.oldest_version = filling.oldest_version
        group.slots[attempt.sample_index].filling = self._filled[attempt.key] = filling
        self._slot_of_rollout[filling.rollout_id] = (attempt.group_id, attempt.sample_index)
        self.unscored += 1

    def mark_stored(self, rollout_id: RolloutId) -> Group | None:
        """The rollout is durable; None if its group is gone meanwhile."""
        found = self._find(rollout_id)
        if found is None:
            return None
        group, filling = found
        filling.stored = True
        return group

    def mark_scored(self, rollout_id: RolloutId) -> bool:
        """The rollout has its reward; False if its group is gone meanwhile or it was scored before."""
        found = self._find(rollout_id)
        if found is None:
            return False
        group, filling = found
        if not filling.stored or filling.scored:
            return False
        filling.scored = True
        group.scored += 1
        self.unscored -= 1
        if group.ready:
            insort(self._ready, group.group_id)
        return True

    def remove(self, group: Group) -> None:
        """Forget a group that has no live attempt: it goes into a batch, or is dropped."""
        if group.live():
            raise ValueError(f"group {group.group_id} still has live attempts")
        for filling in group.fillings():
            del self._filled[filling.attempt.key]
            del self._slot_of_rollout[filling.rollout_id]
            self.unscored -= not filling.scored
            self._remember(filling.attempt, stored=True)
        del self._groups[group.group_id]
        for index in (self._order, self._vacant, self._ready):
            _discard(index, group.group_id)

    def _find(self, rollout_id: RolloutId) -> tuple[Group, Filling] | None:
        place = self._slot_of_rollout.get(rollout_id)
        if place is None:
            return None
        group = self._groups[place[0]]
        filling = group.slots[place[1]].filling
        return None if filling is None else (group, filling)

    def _unlive(self, attempt: Attempt) -> None:
        del self._live[attempt.key]
        held = self._live_by_peer[attempt.peer_id]
        del held[attempt.key]
        if not held:
            del self._live_by_peer[attempt.peer_id]

    def _index_vacancy(self, group: Group) -> None:
        if not any(slot.vacant for slot in group.slots):
            _discard(self._vacant, group.group_id)
        elif not _contains(self._vacant, group.group_id):
            insort(self._vacant, group.group_id)

    def _remember(self, attempt: Attempt, *, stored: bool) -> None:
        self._finished[attempt.key] = Finished(attempt.peer_id, attempt.group_id, stored)
        while len(self._finished) > self._finished_kept:
            self._finished.popitem(last=False)

    # ---------------------------------------------------------------- invariants

    def validate(self) -> None:
        """Raise AssertionError when an index disagrees with the groups, or I6 is broken."""
        live = [attempt for group in self for attempt in group.live()]
        assert self._order == sorted(self._groups), "groups are not in order"
        assert {attempt.key for attempt in live} == self._live.keys(), "live attempts"
        assert sum(len(held) for held in self._live_by_peer.values()) == len(live), "attempts by peer"
        assert self._vacant == [group.group_id for group in self if group.vacant()], "vacant groups"
        assert self._ready == [group.group_id for group in self if group.ready], "ready groups"
        fillings = [filling for group in self for filling in group.fillings()]
        assert {filling.attempt.key for filling in fillings} == self._filled.keys(), "filled slots"
        assert {filling.rollout_id for filling in fillings} == self._slot_of_rollout.keys(), "rollouts"
        assert self.unscored == sum(not filling.scored for filling in fillings), "unscored rollouts"
        assert len(self._finished) <= self._finished_kept, "finished attempts are not bounded"
        for group in self:
            assert group.scored == sum(filling.scored for filling in group.fillings()), "scored count"
            oldest = min((filling.oldest_version for filling in group.fillings()), default=None)
            assert group.oldest_version == oldest, "oldest version"
            for slot in group.slots:
                _validate_slot(slot)


def _restored_attempt(group_id: GroupId, restored: RestoredAttempt, deadline: float) -> Attempt:
    return Attempt(
        restored.lease_id, restored.fencing_token, group_id, restored.sample_index, restored.peer_id, deadline
    )


def _validate_slot(slot: SlotState) -> None:
    tokens = [attempt.fencing_token for attempt in slot.live]
    assert len(tokens) <= LIVE_ATTEMPTS_MAX, "I6: too many live attempts"
    assert tokens == sorted(set(tokens)), "I6: fencing tokens do not rise"
    assert not tokens or tokens[-1] == slot.last_token, "I6: a live attempt is not the newest"
    assert not (slot.live and slot.filling is not None), "I6: a filled slot has live attempts"


def _contains(ordered: list[GroupId], group_id: GroupId) -> bool:
    index = bisect_left(ordered, group_id)
    return index < len(ordered) and ordered[index] == group_id


def _discard(ordered: list[GroupId], group_id: GroupId) -> None:
    if _contains(ordered, group_id):
        del ordered[bisect_left(ordered, group_id)]
