"""Keep the open and ready prompt groups, and the leases that peers hold on their slots."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import takewhile

from coordinator.core.events.events import Prompt
from coordinator.core.events.restored import RestoredAttempt, RestoredFinished, RestoredGroup, RestoredTurn
from coordinator.core.leases.attempts import Attempt, AttemptKey, Prefix
from coordinator.core.leases.episodes import Episode, Game, Turn
from coordinator.core.leases.groups import (
    LIVE_ATTEMPTS_MAX,
    Filling,
    Finished,
    Group,
    OpenGroups,
    SlotState,
    slot_seed,
    validate_slot,
)
from coordinator.core.leases.in_flight import InFlight
from coordinator.core.leases.reconnect_grace import ReconnectGrace
from coordinator.core.leases.slot_shares import SlotShares
from coordinator.core.lent.lent import Lent
from rollcast.wire.ids import EpisodeId, FencingToken, GroupId, LeaseId, PeerId, RolloutId, Version
from rollcast.wire.rollouts import authors_of

NO_PREFIXES: Mapping[int, Prefix] = {}
_REMOVED_ONE_BY_ONE = 16  # groups; for more of them, lists of all groups are made anew instead of moved for each


class LeaseBook(InFlight[Attempt]):
    """Keeps every open or ready group, oldest first.

    Each query has an index of its own, so that no query costs more with more groups; ``validate`` compares them.
    """

    def __init__(
        self,
        *,
        run_seed: int,
        samples_per_group: int,
        finished_kept: int,
        last_group: int = 0,
        ids_before: int = 0,
        finished: Iterable[RestoredFinished] = (),
    ) -> None:
        super().__init__()
        self._run_seed = run_seed
        self._samples_per_group = samples_per_group
        self._finished_kept = finished_kept
        self._groups: dict[GroupId, Group] = {}
        self._order: list[GroupId] = []
        self.open_groups = OpenGroups()
        self._ready: list[GroupId] = []  # groups with every slot scored, oldest first
        self._filled: dict[AttemptKey, Filling] = {}
        self._pending: dict[AttemptKey, Attempt] = {}  # made a turn that its environment has not answered
        self._slot_of_rollout: dict[RolloutId, tuple[GroupId, int]] = {}
        self._finished: OrderedDict[AttemptKey, Finished] = OrderedDict(
            ((one.lease_id, one.sample_index), Finished(one.peer_id, one.group_id, one.stored)) for one in finished
        )
        self._grace = ReconnectGrace()
        self._last_group = last_group
        self._ids_before = self._last_lease = ids_before
        self.unscored = 0  # rollouts received and not scored
        self._freed: dict[PeerId, None] = {}
        self.shares = SlotShares()

    # ---------------------------------------------------------------- questions

    def __len__(self) -> int:
        """Return the number of open and ready groups."""
        return len(self._order)

    def __iter__(self) -> Iterator[Group]:
        return (self._groups[group_id] for group_id in self._order)

    def prompt_length(self, group_id: GroupId) -> int:
        """Return the tokens of an open or ready group's prompt."""
        return len(self._groups[group_id].prompt.prompt_token_ids)

    def position(self, group: Group) -> int:
        """Return how many open or ready groups are older."""
        return bisect_left(self._order, group.group_id)

    def open_slots(self, group: Group) -> list[int]:
        """Return the sample indices whose slots need an attempt: see SlotState.open."""
        lost = self._grace.lost
        if lost:
            return [index for index, slot in enumerate(group.slots) if slot.open(lost)]
        vacant = (index for index, slot in enumerate(group.slots) if slot.filling is None and not slot.live)
        if not group.prompt.environment:
            return list(vacant)
        return [index for index in vacant if group.slots[index].open(())]

    def _has_open_slot(self, group: Group) -> bool:
        if self._grace.lost or group.prompt.environment:
            return bool(self.open_slots(group))
        return any(slot.filling is None and not slot.live for slot in group.slots)

    def ready_groups(self) -> list[Group]:
        """Return the groups with every slot scored, oldest first."""
        return [self._groups[group_id] for group_id in self._ready]

    @property
    def ready_count(self) -> int:
        """Number of groups with every slot scored."""
        return len(self._ready)

    def filling_of(self, key: AttemptKey) -> Filling | None:
        """Return the rollout that this attempt became, while its group is open or ready."""
        return self._filled.get(key)

    @property
    def pending_count(self) -> int:
        """Number of attempts that made a turn which its environment has not answered."""
        return len(self._pending)

    def pending(self, key: AttemptKey) -> Attempt | None:
        """Return the attempt if it made a turn which its environment has not answered."""
        return self._pending.get(key)

    def group(self, group_id: GroupId) -> Group:
        """Return an open or ready group.

        Raises:
            KeyError: there is none of this id.
        """
        return self._groups[group_id]

    def finished(self, key: AttemptKey) -> Finished | None:
        """Return what became of an attempt that is over; None if it is not over, or is not remembered any more."""
        return self._finished.get(key)

    def slot_is_filled(self, group_id: GroupId, sample_index: int) -> bool:
        """Whether this slot needs no attempt any more: it has a rollout, or its group was removed."""
        group = self._groups.get(group_id)
        return group is None or group.slots[sample_index].filling is not None

    def oldest_live(self, group_count: int) -> Attempt | None:
        """Return the attempt that has been in flight for longest among the first groups; None if they have none.

        Of attempts that were issued together it is the one of the oldest group. All slots of these groups may be
        thousands, so they are not searched.
        """
        last = self._order[:group_count][-1:]
        found = (one for one in self._live.values() if last and one.group_id <= last[0])
        first = next(found, None)
        if first is None:
            return None
        together = takewhile(lambda one: one.issued_at == first.issued_at, found)
        return min((first, *together), key=lambda one: (one.group_id, one.sample_index))

    def held_count(self, peer_id: PeerId) -> int:
        """Return how many slots the peer holds."""
        return len(self._live_by_peer.get(peer_id, ()))

    def held(self, peer_id: PeerId) -> tuple[int, int]:
        """Return how many slots the peer holds: those given in its present session, and all."""
        count = len(self._live_by_peer.get(peer_id, ()))
        return count - len(self._grace.earlier.get(peer_id, ())), count

    def is_forgotten(self, lease_id: LeaseId) -> bool:
        """Whether an earlier coordinator issued this lease and nothing of it was recorded, as of an evaluation's."""
        if lease_id > self._ids_before:
            return False
        keys = [(lease_id, index) for index in range(self._samples_per_group)]
        books = (self._live, self._filled, self._pending, self._finished)
        return not any(key in known for known in books for key in keys)

    # ---------------------------------------------------------------- changes

    def restore(self, groups: Sequence[RestoredGroup], deadline: float, *, lost_at: float) -> None:
        """Take over the groups that were open before a restart, oldest first; the book must be empty.

        ``deadline`` is that of every live attempt, on the clock of leases: a full period from our start, because time
        in which no coordinator could answer a peer is not the peer's fault. It is known only from the event Started on,
        so this is called then and not when the book is made. At ``lost_at`` the slots of peers that have not
        reconnected are opened to others.
        """
        for restored in groups:
            group = self._new_group(restored.group_id, restored.prompt)
            for first in {group.game_slots(index)[0] for index in restored.turns}:
                game = restored_game([restored.turns.get(index, ()) for index in group.game_slots(first)])
                for index, episode in zip(group.game_slots(first), game.players, strict=True):
                    group.slots[index].episode = episode
            for attempt in sorted(restored.live, key=lambda one: one.fencing_token):
                self._restore_live(group, _restored_attempt(restored.group_id, attempt, deadline), restored)
            for rollout in restored.rollouts:
                came_from = _restored_attempt(restored.group_id, rollout.attempt, deadline)
                versions = (rollout.oldest_version, rollout.newest_version)
                authors = rollout.authors | {came_from.peer_id}
                self._set_filling(group, Filling(rollout.rollout_id, came_from, *versions, authors, stored=True))
                if rollout.scored:
                    self.mark_scored(rollout.rollout_id, rollout.reward)
            self._index(group)
        for peer_id, held in self._live_by_peer.items():
            self._grace.left(peer_id, held, lost_at)

    def _restore_live(self, group: Group, attempt: Attempt, restored: RestoredGroup) -> None:
        """Take over an open attempt: it is in flight, or its turn was stored and its environment has to answer."""
        index = attempt.sample_index
        turns, episode = restored.turns.get(index, ()), group.slots[index].episode
        if episode is None or not turns or (turns[-1].lease_id, index) != attempt.key:
            self._make_live(group, attempt)
            return
        episode.pending = self._pending[attempt.key] = attempt
        self.shares.add(attempt, live=False)

    def left(self, peer_id: PeerId, lost_at: float) -> None:
        """Keep the attempts of a peer that disconnected; their slots open at ``lost_at`` unless it reconnects."""
        self._grace.left(peer_id, self._live_by_peer.get(peer_id, ()), lost_at)

    def reconnected(self, peer_id: PeerId) -> None:
        """Return the attempts of a peer that reconnected to it."""
        found = self._grace.reconnected(peer_id, self._live_by_peer.get(peer_id, ()))
        self._index_all(found)

    def lose(self, now: float) -> None:
        """Open the slots of attempts whose peers have been away for longer than the reconnect grace."""
        self._index_all(self._grace.due(now))

    def _index_all(self, keys: Iterable[AttemptKey]) -> None:
        for group_id in {self._live[key].group_id for key in keys}:
            self._index(self._groups[group_id])

    def open_group(self, prompt: Prompt) -> Group:
        """Open a group for a prompt, with every slot vacant."""
        self._last_group += 1
        return self._new_group(GroupId(self._last_group), prompt)

    def _new_group(self, group_id: GroupId, prompt: Prompt) -> Group:
        lent = Lent.of(prompt)
        if lent is None:
            seeds = [slot_seed(self._run_seed, group_id, index) for index in range(self._samples_per_group)]
        else:  # the head's seed: its learner audits the tokens by it
            seeds = [lent.seed]
        slots = [SlotState(seed) for seed in seeds]
        group = self._groups[group_id] = Group(group_id, prompt, slots, len(slots), lent=lent)
        self._order.append(group_id)
        self.open_groups.put(group)
        return group

    def issue(
        self,
        group: Group,
        indices: list[int],
        peer_id: PeerId,
        *,
        deadline: float,
        now: float = 0.0,
        load: int = 0,
        prefixes: Mapping[int, Prefix] = NO_PREFIXES,
        invite: str = "",
        on_trial: bool = False,
        oldest_own_version: Version = Version(0),  # noqa: B008
        new_tokens_max: int = 0,
    ) -> list[Attempt]:
        """Issue one lease for these slots of a group and return its attempts.

        Args:
            indices: sample indices of the slots.
            load: slots that the peer holds or generates at once, see Attempt.
            prefixes: tokens that earlier attempts generated, by sample index.
            invite, on_trial, oldest_own_version, new_tokens_max: see Attempt.

        Raises:
            ValueError: a slot is filled, or has the most live attempts that it may have.
        """
        lease_id, token = self.next_lease()
        attempts = [
            Attempt(
                *(lease_id, token, group.group_id, index, peer_id, deadline),
                issued_at=now,
                load=load,
                prefix=prefixes.get(index, ()),
                invite=invite,
                on_trial=on_trial,
                oldest_own_version=oldest_own_version,
                new_tokens_max=new_tokens_max,
            )
            for index in indices
        ]
        for attempt in attempts:
            slot = group.slots[attempt.sample_index]
            if slot.filling is not None or len(slot.live) >= LIVE_ATTEMPTS_MAX:
                raise ValueError(f"slot {attempt.sample_index} of group {group.group_id} cannot be issued")
            self._make_live(group, attempt)
        self._index(group)
        return attempts

    def next_lease(self) -> tuple[LeaseId, FencingToken]:
        """Return the id and the fencing token of a new lease; both are above all that this run ever used."""
        self._last_lease += 1
        return LeaseId(self._last_lease), FencingToken(self._last_lease)

    def _make_live(self, group: Group, attempt: Attempt) -> None:
        slot = group.slots[attempt.sample_index]
        slot.live.append(attempt)
        slot.last_token = attempt.fencing_token
        self._begin_live(attempt)
        self.shares.add(attempt, live=True)

    @property
    def has_freed(self) -> bool:
        """Whether attempts of any peer ended since the last call of ``take_freed``."""
        return bool(self._freed)

    def take_freed(self) -> list[PeerId]:
        """Return the peers whose attempts ended since the last call, and clear that set."""
        freed = list(self._freed)
        self._freed.clear()
        return freed

    def close(self, attempt: Attempt) -> None:
        """End a live attempt without a rollout; its slot is vacant again unless another attempt at it is live."""
        group = self._groups[attempt.group_id]
        self._end_live(attempt)
        group.slots[attempt.sample_index].live.remove(attempt)
        self._remember(attempt, stored=False)
        self._index(group)

    def take_turn(self, attempt: Attempt, episode: Episode) -> list[Attempt]:
        """End a live attempt that made a turn of its slot's episode, which its environment has to answer.

        Returns the other live attempts at the slot, which came too late.
        """
        group = self._groups[attempt.group_id]
        self._end_live(attempt)
        live = group.slots[attempt.sample_index].live
        live.remove(attempt)
        episode.pending = self._pending[attempt.key] = attempt
        self.shares.add(attempt, live=False)
        self._index(group)
        return list(live)

    def end_turn(self, episode: Episode) -> Attempt:
        """End the pending attempt of an episode, which goes on, begins anew, or ends with its group.

        Raises:
            ValueError: there is none.
        """
        attempt, episode.pending = episode.pending, None
        if attempt is None:
            raise ValueError(f"episode {episode.game.episode} has no turn that waits for an answer")
        del self._pending[attempt.key]
        self.shares.remove(attempt, live=False)
        self._remember(attempt, stored=True)
        return attempt

    def fill_pending(self, episode: Episode, rollout_id: RolloutId, oldest: Version, newest: Version) -> Attempt:
        """Fill the slot of an episode that has ended with its rollout; return the attempt that made its last turn."""
        attempt = self.end_turn(episode)
        self._finished.pop(attempt.key, None)
        group = self._groups[attempt.group_id]
        group.slots[attempt.sample_index].episode = None
        authors = authors_of(segment for turn in episode.turns for segment in turn.generated)
        self._set_filling(group, Filling(rollout_id, attempt, oldest, newest, authors))
        self._index(group)
        return attempt

    def set_game(self, group: Group, first: int, game: Game | None) -> None:
        """Give the empty slots of a game their episodes, or take them away; none must have a pending attempt."""
        for number, index in enumerate(group.game_slots(first)):
            group.slots[index].episode = None if game is None else game.players[number]
        self._index(group)

    def episode_changed(self, group: Group) -> None:
        """Look again whether the slots of a group may be leased, after the stage of an episode changed."""
        self._index(group)

    def fill(
        self,
        attempt: Attempt,
        rollout_id: RolloutId,
        oldest_version: Version,
        newest_version: Version,
        generated_by: frozenset[PeerId] = frozenset(),
    ) -> list[Attempt]:
        """Fill the slot of a live attempt with the rollout that was received; versions and peers are its segments'.

        Returns the other live attempts at the slot, which came too late.
        """
        group = self._groups[attempt.group_id]
        slot = group.slots[attempt.sample_index]
        self._end_live(attempt)
        slot.live.remove(attempt)
        # A peer that continues a rollout of before a restart, whose beginning is unknown, cannot fill the slot.
        authors = authors_of(attempt.prefix or ()) | generated_by | {attempt.peer_id}
        self._set_filling(group, Filling(rollout_id, attempt, oldest_version, newest_version, authors))
        if self._grace.lost or group.group_id in self.open_groups:  # filling a slot opens none
            self._index(group)
        return list(slot.live)

    def _set_filling(self, group: Group, filling: Filling) -> None:
        attempt = filling.attempt
        if group.oldest_version is None or filling.oldest_version < group.oldest_version:
            group.oldest_version = filling.oldest_version
        group.slots[attempt.sample_index].filling = self._filled[attempt.key] = filling
        self._slot_of_rollout[filling.rollout_id] = (attempt.group_id, attempt.sample_index)
        group.unfilled -= 1
        self.unscored += 1
        self.shares.add(attempt, live=False)

    def reopen(self, group: Group, index: int) -> Filling:
        """Empty a filled slot, whose rollout does not count any more, and return what it held; the slot is open again.

        Raises:
            ValueError: the slot is not filled.
        """
        slot = group.slots[index]
        filling, slot.filling = slot.filling, None
        if filling is None:
            raise ValueError(f"slot {index} of group {group.group_id} holds nothing")
        _discard(self._ready, group.group_id)
        group.scored -= filling.scored
        group.unfilled += 1
        group.oldest_version = min((one.oldest_version for one in group.fillings()), default=None)
        self.unscored -= not filling.scored
        del self._filled[filling.attempt.key]
        del self._slot_of_rollout[filling.rollout_id]
        self.shares.remove(filling.attempt, live=False)
        self._remember(filling.attempt, stored=True)
        self._index(group)
        return filling

    def mark_stored(self, rollout_id: RolloutId) -> Group | None:
        """Mark a rollout as durable and return its group; None if the group was removed meanwhile."""
        found = self._find(rollout_id)
        if found is None:
            return None
        group, filling = found
        filling.stored = True
        return group

    def mark_scored(self, rollout_id: RolloutId, reward: float = 0.0) -> bool:
        """Give a rollout its reward. Returns False if its group was removed meanwhile, or it was scored before."""
        found = self._find(rollout_id)
        if found is None:
            return False
        group, filling = found
        if not filling.stored or filling.scored:
            return False
        filling.scored, filling.reward = True, reward
        group.scored += 1
        self.unscored -= 1
        if group.ready:
            insort(self._ready, group.group_id)
        return True

    def ready_group_of(self, rollout_id: RolloutId) -> Group | None:
        """Return the group of this rollout if every slot of it is scored, else None."""
        found = self._find(rollout_id)
        return None if found is None or not found[0].ready else found[0]

    def holds(self, rollout_id: RolloutId) -> bool:
        """Whether this rollout is of an open or ready group."""
        return self._find(rollout_id) is not None

    def group_of(self, rollout_id: RolloutId) -> Group | None:
        """Return the open or ready group of this rollout; None if it has none any more."""
        found = self._find(rollout_id)
        return None if found is None else found[0]

    def remove(self, groups: Sequence[Group]) -> None:
        """Remove groups that go into a batch, or are dropped.

        Raises:
            ValueError: one of them still has live attempts.
        """
        for group in groups:
            self._remove(group)
        if len(groups) > _REMOVED_ONE_BY_ONE:
            self._order, self._ready = (
                [group_id for group_id in index if group_id in self._groups] for index in (self._order, self._ready)
            )
            return
        for group in groups:
            _discard(self._order, group.group_id)
            _discard(self._ready, group.group_id)

    def _remove(self, group: Group) -> None:
        if group.live() or group.episodes():
            raise ValueError(f"group {group.group_id} still has live attempts, or episodes")
        for filling in group.fillings():
            del self._filled[filling.attempt.key]
            del self._slot_of_rollout[filling.rollout_id]
            self.unscored -= not filling.scored
            self.shares.remove(filling.attempt, live=False)
            self._remember(filling.attempt, stored=True)
        del self._groups[group.group_id]
        self.open_groups.discard(group.group_id)

    def _find(self, rollout_id: RolloutId) -> tuple[Group, Filling] | None:
        place = self._slot_of_rollout.get(rollout_id)
        if place is None:
            return None
        group = self._groups[place[0]]
        filling = group.slots[place[1]].filling
        return None if filling is None else (group, filling)

    def _end_live(self, attempt: Attempt) -> None:
        super()._end_live(attempt)
        self.shares.remove(attempt, live=True)
        if attempt.key in self._grace.attempts:
            self._grace.ended(attempt.peer_id, attempt.key)
        self._freed[attempt.peer_id] = None

    def _index(self, group: Group) -> None:
        if self._has_open_slot(group):
            self.open_groups.put(group)
        else:
            self.open_groups.discard(group.group_id)

    def _remember(self, attempt: Attempt, *, stored: bool) -> None:
        self._finished[attempt.key] = Finished(attempt.peer_id, attempt.group_id, stored)
        while len(self._finished) > self._finished_kept:
            self._finished.popitem(last=False)

    # ---------------------------------------------------------------- invariants

    def validate(self) -> None:
        """Raise AssertionError when an index disagrees with the groups, or I6 is broken."""
        assert self._order == sorted(self._groups), "groups are not in order"
        self._validate_live({attempt.key for group in self for attempt in group.live()})
        self.open_groups.validate([group for group in self if self.open_slots(group)])
        self._grace.validate(self._live_by_peer)
        assert self._ready == [group.group_id for group in self if group.ready], "ready groups"
        fillings = [filling for group in self for filling in group.fillings()]
        assert {filling.attempt.key for filling in fillings} == self._filled.keys(), "filled slots"
        assert {filling.rollout_id for filling in fillings} == self._slot_of_rollout.keys(), "rollouts"
        pending = {one.pending.key: one.pending for group in self for one in group.episodes() if one.pending}
        assert pending == self._pending, "pending turns"
        made = [*(filling.attempt for filling in fillings), *pending.values()]
        self.shares.validate(self._live.values(), made)
        assert self.unscored == sum(not filling.scored for filling in fillings), "unscored rollouts"
        assert len(self._finished) <= self._finished_kept, "finished attempts are not bounded"
        for group in self:
            assert group.scored == sum(filling.scored for filling in group.fillings()), "scored count"
            assert group.unfilled == sum(slot.filling is None for slot in group.slots), "unfilled count"
            oldest = min((filling.oldest_version for filling in group.fillings()), default=None)
            assert group.oldest_version == oldest, "oldest version"
            for slot in group.slots:
                validate_slot(slot)


def _restored_attempt(group_id: GroupId, restored: RestoredAttempt, deadline: float) -> Attempt:
    """Return a restored attempt. The prefix that its peer was given is not recorded, so it is unknown."""
    return Attempt(
        *(restored.lease_id, restored.fencing_token, group_id, restored.sample_index, restored.peer_id, deadline),
        prefix=None,
    )


def restored_game(recorded: Sequence[Sequence[RestoredTurn]]) -> Game:
    """Return a game with the recorded turns of each agent, whose environment has to be opened again."""
    game = Game.of(EpisodeId(0), len(recorded))
    for episode, turns in zip(game.players, recorded, strict=True):
        episode.turns = [Turn(one.observation, one.generated, one.body) for one in turns]
        episode.last_peer = turns[-1].peer_id if turns else None
    return game


def _discard(ordered: list[GroupId], group_id: GroupId) -> None:
    index = bisect_left(ordered, group_id)
    if index < len(ordered) and ordered[index] == group_id:
        del ordered[index]
