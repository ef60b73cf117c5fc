"""Define prompt groups, their slots, and the attempts at them, as plain data; index the groups that need attempts.

A group is one prompt with a fixed number of slots; a slot becomes one rollout. A lease gives slots of one group to one
peer; each slot of a lease is an attempt. A slot has at most two live attempts (I6); the first one received fills it.

    attempt: live ──► filled (stored, then scored) ──► trained or dropped with its group
              └────► closed with a reason; the slot is vacant again and issued before any new group

A slot whose problem has an environment has an episode (coordinator/core/leases/episodes.py): each of its turns is an
attempt, and only the last one fills the slot. The agents of one game have the slots of consecutive sample indices.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, insort
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from blake3 import blake3

from coordinator.core.events.events import Prompt
from coordinator.core.leases.attempts import Attempt, AttemptKey
from coordinator.core.leases.episodes import Episode, Game
from coordinator.core.lent.lent import Lent
from rollcast.wire.ids import GroupId, PeerId, RolloutId, Version

LIVE_ATTEMPTS_MAX = 2  # I6 of the threat model
_SEED_OF = struct.Struct("<QQQ")


def slot_seed(run_seed: int, group_id: GroupId, sample_index: int) -> int:
    """Return the sampling seed of a slot, 64 bits; it is the same for every attempt at the slot."""
    text = b"rollcast/slot-seed/1" + _SEED_OF.pack(run_seed, group_id, sample_index)
    return int.from_bytes(blake3(text).digest(length=8), "little")


def environment_seed(run_seed: int, group_id: GroupId) -> int:
    """Return the seed with which the environments of a group are reset, 63 bits; it is the same after a restart."""
    text = b"rollcast/environment-seed/1" + struct.pack("<QQ", run_seed, group_id)
    return int.from_bytes(blake3(text).digest(length=8), "little") >> 1


@dataclass(slots=True)
class Filling:
    """The rollout that a slot became. ``authors``: the peers that generated tokens of it."""

    rollout_id: RolloutId
    attempt: Attempt
    oldest_version: Version  # oldest version of its segments
    newest_version: Version
    authors: frozenset[PeerId]
    stored: bool = False
    scored: bool = False
    reward: float | None = None  # once scored


@dataclass(slots=True)
class SlotState:
    """One slot: its attempts in flight, then its rollout."""

    seed: int
    last_token: int = 0  # fencing token of the newest attempt
    live: list[Attempt] = field(default_factory=list)
    filling: Filling | None = None
    episode: Episode | None = None  # while it goes on, if the problem has an environment

    def open(self, lost: Container[AttemptKey]) -> bool:
        """Whether the slot needs an attempt: none is in flight, or only one of a peer that was away for too long."""
        if self.filling is not None or (self.episode is not None and not self.episode.may_be_leased):
            return False
        return not self.live or (len(self.live) == 1 and self.live[0].key in lost)


@dataclass(slots=True)
class Group:
    """One prompt's slots, in order of their sample index."""

    group_id: GroupId
    prompt: Prompt
    slots: list[SlotState]
    unfilled: int  # slots without a rollout
    scored: int = 0
    oldest_version: Version | None = None  # oldest version of its rollouts so far; None without one
    lent: Lent | None = None  # in a cell: the slot of the head that it stands for

    @property
    def ready(self) -> bool:
        """Whether every slot is scored."""
        return self.scored == len(self.slots)

    @property
    def oldest_begun(self) -> Version | None:
        """Oldest version of its rollouts so far and of the turns of its episodes; None without any."""
        if not self.prompt.environment:
            return self.oldest_version
        begun = [one.oldest_version for one in self.episodes() if one.oldest_version is not None]
        return min([*begun, *([] if self.oldest_version is None else [self.oldest_version])], default=None)

    def episodes(self) -> list[Episode]:
        """Return the episodes that go on, in order of their sample index."""
        return [slot.episode for slot in self.slots if slot.episode is not None]

    def games(self) -> list[tuple[int, Game]]:
        """Return the games that go on, each with the sample index of its first agent's slot."""
        firsts = ((index, self.slots[index].episode) for index in self.firsts)
        return [(index, episode.game) for index, episode in firsts if episode is not None]

    @property
    def firsts(self) -> range:
        """The sample indices of the first agents of all games; each slot if games have one agent."""
        return range(0, len(self.slots), self.prompt.agents)

    def game_slots(self, index: int) -> range:
        """Return the sample indices of the game that this slot is of."""
        first = index - index % self.prompt.agents
        return range(first, first + self.prompt.agents)

    def fillings(self) -> list[Filling]:
        """Return the rollouts so far, in order of their sample index."""
        return [slot.filling for slot in self.slots if slot.filling is not None]

    def live(self) -> list[Attempt]:
        """Return the attempts in flight."""
        return [attempt for slot in self.slots for attempt in slot.live]

    @property
    def need(self) -> Need:
        """What the group needs at present."""
        turns = [game.turn_count for _, game in self.games()] if self.prompt.environment else []
        lent = Version(0) if self.lent is None else self.lent.oldest_useful_version
        return Need(self.oldest_begun, self.unfilled, min(turns, default=None), lent)


class Need(NamedTuple):
    """What decides whether a peer completes a group in time, besides how many groups are older.

    Args:
        oldest_begun: the oldest version in the group so far; None without any.
        unfilled: slots without a rollout.
        turns: turns of the game that has the fewest; None if none goes on.
        lent: the oldest version that the head of a cell takes; 0 for the run's own problems.
    """

    oldest_begun: Version | None
    unfilled: int
    turns: int | None
    lent: Version


class OpenGroups:
    """Keeps the ids of the groups with an open slot by what they need, oldest first.

    A peer that would complete a group too late would complete all later ones of the same need too late. So one look at
    the oldest one passes them over: in a large fleet, hundreds of groups that lost peers leave wait for the step to end
    in which they are dropped.
    """

    def __init__(self) -> None:
        self._needs: dict[GroupId, Need] = {}
        self._by_need: dict[Need, list[GroupId]] = {}

    def __contains__(self, group_id: GroupId) -> bool:
        return group_id in self._needs

    @property
    def by_need(self) -> Mapping[Need, Sequence[GroupId]]:
        """The ids of the groups of each need, oldest first, where there is one."""
        return self._by_need

    @property
    def oldest(self) -> GroupId | None:
        """The id of the oldest group; None if there is none."""
        return min((ids[0] for ids in self._by_need.values()), default=None)

    def put(self, group: Group) -> None:
        """Keep a group that has an open slot, under its present need."""
        need, known = group.need, self._needs.get(group.group_id)
        if need == known:
            return
        if known is not None:
            self.discard(group.group_id)
        self._needs[group.group_id] = need
        insort(self._by_need.setdefault(need, []), group.group_id)

    def discard(self, group_id: GroupId) -> None:
        """Remove a group if it is kept."""
        need = self._needs.pop(group_id, None)
        if need is None:
            return
        ids = self._by_need[need]
        del ids[bisect_left(ids, group_id)]
        if not ids:
            del self._by_need[need]

    def validate(self, groups: Sequence[Group]) -> None:
        """Raise AssertionError unless exactly these groups are kept, which are in order."""
        assert self._needs == {group.group_id: group.need for group in groups}, "open groups"
        by_need: dict[Need, list[GroupId]] = {}
        for group in groups:
            by_need.setdefault(group.need, []).append(group.group_id)
        assert self._by_need == by_need, "open groups by need"


@dataclass(frozen=True, slots=True)
class Finished:
    """The outcome of an attempt that is over."""

    peer_id: PeerId
    group_id: GroupId
    stored: bool


def validate_slot(slot: SlotState) -> None:
    """Raise AssertionError when I6 is broken."""
    tokens = [attempt.fencing_token for attempt in slot.live]
    assert len(tokens) <= LIVE_ATTEMPTS_MAX, "I6: too many live attempts"
    assert tokens == sorted(set(tokens)), "I6: fencing tokens do not rise"
    assert not tokens or tokens[-1] <= slot.last_token, "I6: a live attempt is newer than the newest"
    assert not (slot.live and slot.filling is not None), "I6: a filled slot has live attempts"
    assert not (slot.episode is not None and slot.filling is not None), "a filled slot has an episode"
    pending = None if slot.episode is None else slot.episode.pending
    assert not (slot.live and pending is not None), "I6: a slot has live attempts while its environment answers"
