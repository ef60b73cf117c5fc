"""Give out work: open slots first, then new prompt groups, to the member that is next in line.

Only work is begun that will still be young enough when its batch is formed, and no more of it than is of use
(``Pacing``). The counting rule is AReaL's (arXiv 2505.24298, section 5.1): a group enters the batch that the groups
before it leave room for. Once attempts were timed, time counts too: a group that is ready late enters a later batch,
because groups begun after it overtake it. Where fewer groups are ahead than a batch has, the next batch cannot be
formed without this one, however long it takes: there the counting rule stands alone, so that no prediction ever stops
the run.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heapreplace

from capacity.model.pacing_rules import CHANCE_ONCE_BEGUN
from coordinator.core.decisions.state import CoreState
from coordinator.core.events.actions import Action, RecordAttempt, RecordGroup, SendLeases, SupplyPrompts
from coordinator.core.leases.attempts import Attempt, Prefix
from coordinator.core.leases.episodes import Episode
from coordinator.core.leases.forecast import Outlook
from coordinator.core.leases.groups import Group, Need
from coordinator.core.leases.lease_book import NO_PREFIXES
from coordinator.core.lent.lent import Lent
from coordinator.core.members.fair_share import ABOVE_SHARE, IDLE, PREFETCHES, Rank
from coordinator.core.members.membership import Member
from rollcast.wire.ids import GroupId, PeerId, Step, Version
from rollcast.wire.rollouts import LeaseGrant, Slot

_PEERS_ASKED = 8  # idle ones that are considered for a slot of a group that would be all one peer's
_NEWCOMERS_TRIED = 32  # that wait for what newcomers may hold, after each event that may make room
_BATCHES_ASKED = 2  # batches of environments that may be asked before no further one is opened
LEASES_AT_ONCE = 64
"""Leases that one event gives out, of which 240 held the loop for 44 ms. The next event, or tick, goes on."""
PASSED_OVER_AT_ONCE = 1_000
"""Members for which one event finds no work in time, of which 5,000 held the loop for 25 ms."""
_GROUPS_KEPT_FOR_OTHERS_MAX = 256  # that a member would complete in time, and that are passed over for one event


class Pacing:
    """Decides with which versions work may be begun, by its place among the open and ready groups.

    Everything here stays the same while one event's leases are given out, so it is computed once for each event. No
    dataclass, because a frozen one of so many fields takes several times as long to make.
    """

    def __init__(self, state: CoreState, now: float) -> None:
        """Compute the pacing of this moment."""
        settings, forecast, rules = state.settings, state.forecast, state.rules
        under_way, lag_steps = forecast.steps_under_way(settings.samples_per_group), forecast.version_lag_steps()
        self.rule = settings.pacing
        self.next_step = state.batches.next_step  # of the next batch to be formed
        self.limit = rules.limit  # S, for what is begun now
        # For what was begun: the age up to which it can be trained, which a late policy may put above S.
        self.age_max = rules.age_max
        self.oldest_kept = rules.kept.oldest  # by the learner
        self.groups_per_step = settings.groups_per_step
        # By all batches that are not formed yet.
        self.groups_needed = (settings.steps - state.batches.next_step) * settings.groups_per_step
        # For each batch, with those that come too late in the end, or lack advantage.
        self.groups_to_begin = (
            settings.groups_per_step / state.group_yield.share * state.usefulness.groups_per_useful_one
        )
        # Open and ready ones that keep the learner busy: a batch, the groups in flight while the learner trains on it,
        # and a margin; infinite before enough is measured.
        batches_of_use = math.inf if under_way is None else 1.0 + under_way + settings.lead_margin_steps
        self.groups_of_use = self.groups_to_begin * batches_of_use
        # Kappa and how old versions usually are when a peer holds them; None: not measured.
        self.fresh_age = None if lag_steps is None else rules.publish_every_steps + lag_steps
        self.learner_starves = forecast.learner_starves(now)
        self.ready = state.book.ready_count  # groups that are ready
        # Counts only places of groups that will be trained; None: every place counts. Wasted work costs less than a
        # learner that waits, so some is risked only after the learner had to wait.
        self.group_yield = state.group_yield if forecast.caution.learner_waited else None

    def may_open(self, groups: int) -> bool:
        """Whether one more group besides so many open and ready ones would be useful."""
        return groups < self.groups_needed and (self.rule != "predict" or groups < self.groups_of_use)

    def step_of_turn(self, groups_ahead: int) -> Step:
        """Return the step whose batch a group with so many before it is expected to enter."""
        if self.group_yield is not None:
            groups_ahead = self.group_yield.expected(groups_ahead, self.ready)
        return Step(self.next_step + groups_ahead // self.groups_per_step)

    def limit_of(self, made_with: Version | None) -> int:
        """Return the age that a group may reach; ``made_with`` is the oldest version in it, None if it is to be begun.

        One that was begun is completed as long as a batch takes it: it would hold its place and never be ready.
        """
        return self.limit if made_with is None else self.age_max

    def oldest_useful_version(self, groups_ahead: int, made_with: Version | None) -> Version:
        """Return the oldest version that is young enough when a group with so many before it has its turn."""
        return Version(max(self.oldest_kept, self.step_of_turn(groups_ahead) - self.limit_of(made_with)))

    def oldest_version(self, groups_ahead: int, made_with: Version | None) -> Version:
        """Return the oldest version that a group in this place may be made with, counting groups only."""
        return Version(0) if self.rule == "none" else self.oldest_useful_version(groups_ahead, made_with)

    def oldest_fresh_version(self, groups_ahead: int, made_with: Version | None) -> Version:
        """Return the oldest version with which a group should be begun, if waiting for a newer one is better.

        ``made_with`` is the oldest version of rollouts that the group has already; None without any.

        When the next version arrives, the one before it is kappa steps plus the arrival time old. In the last batch of
        the useful groups, the later a group has its turn, the less older than that its version may be: peers wait for
        the next version instead, and their rollouts are younger when they are trained.
        """
        counted = self.oldest_version(groups_ahead, made_with)
        if self.rule != "predict" or self.fresh_age is None or groups_ahead < self.groups_per_step:
            return counted
        spare_steps = max(0.0, (self.groups_of_use - groups_ahead) / self.groups_to_begin)
        if spare_steps > 1.0:
            return counted
        fresh = math.ceil(self.next_step - (self.fresh_age + spare_steps))
        # A newer version makes a group no younger than the rollouts that it has.
        return Version(max(counted, fresh if made_with is None else min(fresh, made_with)))


@dataclass(slots=True)
class _Load:
    """Slots that a member holds, and may hold; ``on_trial``: see Round._is_on_trial."""

    held_now: int  # given in its present session
    held: int
    at_once: int  # slots that it generates at once, as far as it may hold them
    capacity: int
    slots_per_s: float | None  # None: not measured lately
    on_trial: bool


class Round:
    """One round of giving out work. Nothing else changes meanwhile what members hold, so each load is computed once."""

    def __init__(self, state: CoreState, now: float) -> None:
        self._state = state
        self._now = now
        self._loads: dict[PeerId, _Load] = {}
        self._pacing: Pacing | None = None
        self._turns: dict[tuple[int, Version | None], tuple[Version, Version]] = {}
        self._outlooks: dict[tuple[int, bool, float], Outlook] = {}
        self._too_slow: dict[Version, float] = {}  # by version: seconds of an attempt with which no work is in time
        self._late: dict[Need, float] = {}  # by need: seconds of an attempt with which no such group is in time
        self._allowances = state.allowances
        self.actions: list[Action] = []
        """Records of the leases that were given."""

    @property
    def pacing(self) -> Pacing:
        """The pacing of this moment, computed when first needed: most events change what no member can be given."""
        if self._pacing is None:
            self._pacing = Pacing(self._state, self._now)
        return self._pacing

    def _turn(self, groups_ahead: int, made_with: Version | None) -> tuple[Version, Version]:
        """Return the oldest version by counting, and the oldest fresh one, of a group in this place; see Pacing."""
        turn = self._turns.get((groups_ahead, made_with))
        if turn is None:
            counted = self.pacing.oldest_version(groups_ahead, made_with)
            turn = counted, self.pacing.oldest_fresh_version(groups_ahead, made_with)
            self._turns[(groups_ahead, made_with)] = turn
        return turn

    def _outlook(self, group: Group | None) -> Outlook:
        """Return how long the slots take that this group, or a new one, still needs."""
        forecast = self._state.forecast
        slots = self._state.settings.samples_per_group if group is None else group.unfilled
        if group is None or not group.prompt.environment:
            turns = forecast.turns if group is None else 1.0
        else:
            turns = forecast.turns_left([game for _, game in group.games()])
        key = (slots, group is None, turns)
        outlook = self._outlooks.get(key)
        if outlook is None:
            chance = forecast.caution.chance  # of one that was begun less is left, for which a smaller chance suffices
            chance = chance if group is None else min(chance, CHANCE_ONCE_BEGUN)
            outlook = self._outlooks[key] = forecast.outlook(slots, chance, turns, self._now)
        return outlook

    # ---------------------------------------------------------------- the line

    def queue_changed(self) -> None:
        """Put members in line, or take them out of it, for which something changed since the last call."""
        members = self._state.members
        changed, freed = members.take_changed(), self._state.book.take_freed()
        if freed:
            changed += members.take_trial_line(_NEWCOMERS_TRIED)
        for peer_id in dict.fromkeys(changed + freed) if freed else changed:
            member = members.get(peer_id)
            if member is not None:
                self._queue(member)

    def _queue(self, member: Member) -> None:
        shares, version = self._state.members.shares, member.version
        may_work = version is not None and member.free_slots > 0 and member.may_work
        may_work = may_work and not self._state.evaluations.occupies(member.peer_id)
        load = self._load(member) if may_work else None
        if version is None or load is None or self._room(member, load) <= 0:
            shares.leave(member.peer_id)
            return
        rank = self._rank(member, load)
        member.virtual_time = shares.wait(member.peer_id, member.order, version, member.virtual_time, rank=rank)

    def _rank(self, member: Member, load: _Load) -> Rank:
        if load.held_now >= load.at_once:
            return PREFETCHES
        allowances, book = self._allowances, self._state.book
        if not allowances.are_shared or member.is_cell:
            return IDLE
        slots = book.shares.by_peer.get(member.peer_id, 0)
        if self._state.members.has_several_invites:
            slots = max(slots, book.shares.by_invite.get(member.invite, 0))
        slots_in_all = len(book) * self._state.settings.samples_per_group
        return ABOVE_SHARE if allowances.is_above_share(slots, slots_in_all) else IDLE

    def _room(self, member: Member, load: _Load) -> int:
        """Return how many slots the member can be given now.

        Slots that it held before its present session do not count at first: it may have lost them, and its own request
        is more reliable. Twice its capacity is the most that it holds in all.
        """
        room = min(member.free_slots, load.capacity - load.held_now, 2 * load.capacity - load.held)
        if room <= 0 or not load.on_trial:
            return room
        members, invite = self._state.members, member.invite
        on_trial = self._state.book.shares.on_trial.get(invite, 0)
        left = self._allowances.most_on_trial(members.newcomers(invite)) - on_trial
        if left < 1:
            members.trial_line[member.peer_id] = None
        return int(min(room, left))

    def _is_on_trial(self, member: Member) -> bool:
        """Whether a member shares its invite's small allowance: it has delivered nothing, or few were judged yet.

        An operator makes the invites for cells one by one, and their members are judged on their own.
        """
        if member.is_cell:
            return False
        audit = self._state.audit
        new = not member.reputation.earned.has_delivered or audit.on_appeal(member.peer_id)
        return new or audit.on_probation(member.invite)

    def _load(self, member: Member) -> _Load:
        load = self._loads.get(member.peer_id)
        if load is None:
            held_now, held = self._state.book.held(member.peer_id)
            slots_per_s = self._state.forecast.slots_per_s(member.peer_id, self._now)
            most = self._allowances.most_of(member.reputation.earned)
            at_once = min(member.concurrent_rollouts, most)
            capacity = min(self._capacity(member.concurrent_rollouts, slots_per_s), most)
            load = _Load(held_now, held, at_once, capacity, slots_per_s, self._is_on_trial(member))
            self._loads[member.peer_id] = load
        return load

    def _capacity(self, at_once: int, slots_per_s: float | None) -> int:
        """Return the slots that a member may hold: a batch, and those that it completes in the time of prefetching.

        Without a slot that waits, each one that becomes free would stay empty for a round trip and up to two slices.
        """
        settings = self._state.settings
        most = self._state.most_held(at_once)
        return most if slots_per_s is None else min(most, at_once + math.ceil(slots_per_s * settings.prefetch_s))

    # ---------------------------------------------------------------- leases

    def give_out(self) -> None:
        """Give leases to the members that are next in line, one at a time, as long as there is work for them.

        After LEASES_AT_ONCE of them, or PASSED_OVER_AT_ONCE members without one, those that are still in line wait for
        the next event.
        """
        members, book = self._state.members, self._state.book
        grants: dict[PeerId, list[LeaseGrant]] = {}
        left, passed_over_left = LEASES_AT_ONCE, PASSED_OVER_AT_ONCE
        groups, oldest = len(book), self._oldest_for_next()
        while (
            left and passed_over_left and oldest is not None and (peer_id := members.shares.first(oldest)) is not None
        ):
            member = members.get(peer_id)
            grant = None if member is None else self._grant_one(member)
            if grant is None:
                members.shares.set_aside(peer_id)
                passed_over_left -= 1
            else:
                grants.setdefault(peer_id, []).append(grant)
                left -= 1
            if grant is not None or len(book) != groups:
                groups, oldest = len(book), self._oldest_for_next()
                self._too_slow.clear()
        self.actions += [SendLeases(peer_id, tuple(given)) for peer_id, given in grants.items()]

    def _oldest_for_next(self) -> Version | None:
        """Return the oldest version with which the next work may be begun; None while there is none for any member.

        This is cheap while pacing admits no work at all.
        """
        state = self._state
        if state.newest_version is None or state.scoring.pause is not None:
            return None
        book = state.book
        first = book.open_groups.oldest
        if first is not None:  # it has its turn before any new group: older versions will do for it
            group = book.group(first)
            return self._turn(book.position(group), group.oldest_begun)[1]
        if state.prompts.stock and self.pacing.may_open(len(book)):
            return self._turn(len(book), None)[1]
        return None

    def _grant_one(self, member: Member) -> LeaseGrant | None:
        """Return one lease for this member; None if no open group could be completed in time."""
        held = self._load(member)
        free = self._room(member, held)
        if free <= 0 or member.version is None:
            return None
        load = max(held.at_once, held.held_now + min(free, self._state.settings.samples_per_group))
        per_s, usual_s = held.slots_per_s, self._state.forecast.typical_s_of_all
        attempt_s = load / per_s if per_s else usual_s or 0.0
        if attempt_s >= self._too_slow.get(member.version, math.inf):
            return None
        in_time = 0
        for groups_ahead, group, oldest_in_time in self._groups_in_time(member, member.version, attempt_s, load):
            indices = self._slots_for(member, group, free, groups_ahead)
            if indices:
                return self.grant(member, group, indices, groups_ahead, oldest_in_time)
            in_time += 1
            if in_time == _GROUPS_KEPT_FOR_OTHERS_MAX:
                break
        groups_ahead, stock = len(self._state.book), self._state.prompts.stock
        may_open = not stock or _is_new_enough(member.version, Lent.of(stock[0]))
        oldest = None
        if may_open and self.pacing.may_open(groups_ahead):
            oldest = self.oldest_to_begin(member, member.version, None, groups_ahead, load)
        if oldest is None and not in_time:
            self._too_slow[member.version] = attempt_s
        opened = None if oldest is None else self._open_group()
        if oldest is None or opened is None or opened.prompt.environment:  # its environments have to be reset first
            return None
        return self.grant(member, opened, self._slots_for(member, opened, free, groups_ahead), groups_ahead, oldest)

    def _groups_in_time(
        self, member: Member, version: Version, attempt_s: float, load: int
    ) -> Iterator[tuple[int, Group, Version]]:
        """Yield the open groups that the member would complete in time, oldest first.

        Each comes with the number of groups before it, and the oldest version with which it would be in time. Of those
        that it would complete too late, only the oldest one of each need is looked at: see OpenGroups.
        """
        book = self._state.book
        first: list[tuple[GroupId, int, Need]] = [
            (ids[0], 0, need)
            for need, ids in book.open_groups.by_need.items()
            if attempt_s < self._late.get(need, math.inf) and version >= need.lent
        ]
        heapify(first)
        while first:
            group_id, place, need = first[0]
            group = book.group(group_id)
            groups_ahead = book.position(group)
            oldest = self.oldest_to_begin(member, version, group, groups_ahead, load)
            if oldest is None:
                heappop(first)
                if place == 0 and need.oldest_begun is not None and need.oldest_begun <= version:
                    self._late[need] = attempt_s  # a newer version makes no such group younger
                continue
            yield groups_ahead, group, oldest
            ids, place = book.open_groups.by_need[need], place + 1
            if place == len(ids):
                heappop(first)
            else:
                heapreplace(first, (ids[place], place, need))

    def _slots_for(self, member: Member, group: Group, free: int, groups_ahead: int) -> list[int]:
        """Return the slots of a group that the member may be given: not the whole group if another peer is idle.

        A group all of whose rollouts come from one identity, or invite, has the advantages that this one chooses.
        """
        state = self._state
        indices = open_slots = state.book.open_slots(group)
        if group.prompt.environment:
            indices = [index for index in indices if not self._waits_for_other(member, group.slots[index].episode)]
        indices = indices[:free]
        if group.prompt.environment and member.is_cell:
            return []  # a cell passes on whole completions only
        if not indices or not self._allowances.are_shared or len(group.slots) == 1:
            return indices
        same_invite = state.members.has_several_invites

        def is_other(peer_id: PeerId, invite: str) -> bool:
            return peer_id != member.peer_id and not (same_invite and invite == member.invite)

        made = (one for slot in group.slots for one in (*slot.live, *([slot.filling.attempt] if slot.filling else [])))
        if len(open_slots) > len(indices) or any(is_other(one.peer_id, one.invite) for one in made):
            return indices
        idle = state.members.shares.idle(self._turn(groups_ahead, group.oldest_begun)[0], _PEERS_ASKED)
        others = (state.members.get(peer_id) for peer_id in idle)
        return indices[:-1] if any(one and is_other(one.peer_id, one.invite) for one in others) else indices

    def _waits_for_other(self, member: Member, episode: Episode | None) -> bool:
        """Whether the next turn should wait for the peer that made the last one, which may have it in its cache."""
        if episode is None or episode.last_peer in (None, member.peer_id):
            return False
        if self._now - episode.game.ready_at >= self._state.settings.episodes.sticky_s:
            return False
        other = self._state.members.get(episode.last_peer)
        return other is not None and other.may_work

    def _open_group(self) -> Group | None:
        """Open a group for the next prompt; None if there is no prompt, or many environments are being reset."""
        state = self._state
        slots = state.settings.groups_per_step * state.settings.samples_per_group
        if len(state.episodes.unanswered) >= _BATCHES_ASKED * slots:
            return None
        prompt = state.prompts.take()
        if prompt is None:
            return None
        group = state.book.open_group(prompt)
        if group.lent is not None:
            state.lent.opened(group.lent.key, group.group_id)
        self.actions.append(
            RecordGroup(
                *(group.group_id, prompt.problem_id, prompt.prompt_token_ids, prompt.mixture_position),
                *(prompt.environment, prompt.agents),
            )
        )
        for first in group.firsts:
            self.actions += state.open_game(group, first)
        return group

    def oldest_to_begin(
        self, member: Member, version: Version, group: Group | None, groups_ahead: int, load: int
    ) -> Version | None:
        """Return the oldest version with which the group, or a new one, is in time if this member begins it now.

        It is None if the member's version is older than that, at this load.
        """
        pacing = self.pacing
        if pacing.rule == "none":
            return Version(0)
        made_with = None if group is None else group.oldest_begun
        oldest = version if made_with is None or version < made_with else made_with
        needed, fresh = self._turn(groups_ahead, made_with)
        if oldest < needed:
            return None
        if pacing.rule == "count" or (groups_ahead < pacing.groups_per_step and pacing.learner_starves):
            return needed
        if version < fresh:
            return None
        later = self._outlook(group).steps(load, self._load(member).slots_per_s)
        in_time = pacing.next_step + later - pacing.limit_of(made_with)
        return Version(max(needed, in_time, fresh)) if oldest >= in_time else None

    def grant(
        self,
        member: Member,
        group: Group,
        indices: list[int],
        groups_ahead: int,
        oldest_in_time: Version = Version(0),  # noqa: B008
    ) -> LeaseGrant:
        """Lease these slots of a group to this member, which is in line.

        The lease names the version that the member was chosen for: one that still loads the version that it holds
        would begin with an older one. Beginnings that other peers made are continued as long as they are young enough
        for their turn.
        """
        state = self._state
        oldest_useful = self.pacing.oldest_useful_version(groups_ahead, group.oldest_begun)
        sampling = state.sampling_now
        if group.lent is not None:  # the head has decided both
            oldest_useful = group.lent.oldest_useful_version
            sampling = replace(sampling, max_new_tokens=group.lent.max_new_tokens)
        epoch = state.epochs.current
        prefixes = NO_PREFIXES
        if state.partials.slots and not member.is_cell:
            prefixes = state.partials.prefixes(group.group_id, indices, oldest_useful, epoch)
        if group.prompt.environment:
            episodes = {index: group.slots[index].episode for index in indices}
            turns = {index: episode.prefix for index, episode in episodes.items() if episode is not None}
            prefixes = {**turns, **prefixes}  # what a lost attempt left begins with the turns before it
        load = self._load_with(member, len(indices))
        deadline_s = state.lease_deadline_s(member.peer_id, load, sampling.max_new_tokens)
        attempts = self._issue(member, group, indices, prefixes, sampling.max_new_tokens, deadline_s)
        slots = [Slot(one.sample_index, group.slots[one.sample_index].seed, one.prefix or ()) for one in attempts]
        if not any(slot.prefix for slot in slots):
            oldest_useful = max(oldest_useful, oldest_in_time)
        lease_id, token = attempts[0].lease_id, attempts[0].fencing_token
        self.actions += [
            RecordAttempt(lease_id, token, group.group_id, slot.sample_index, slot.seed, member.peer_id)
            for slot in slots
        ]
        return LeaseGrant(
            lease_id=lease_id,
            fencing_token=token,
            group_id=group.group_id,
            prompt_token_ids=group.prompt.prompt_token_ids,
            slots=tuple(slots),
            sampling=sampling,
            deadline_s=deadline_s,
            epoch=epoch,
            oldest_useful_version=oldest_useful,
            oldest_own_version=attempts[0].oldest_own_version,
        )

    def _issue(
        self,
        member: Member,
        group: Group,
        indices: list[int],
        prefixes: Mapping[int, Prefix],
        new_tokens_max: int,
        deadline_s: float,
    ) -> list[Attempt]:
        """Issue these slots, and put the member back in line behind what it was given."""
        state, load = self._state, self._load(member)
        attempts = state.book.issue(
            group,
            indices,
            member.peer_id,
            now=self._now,
            deadline=state.lease_clock.at(self._now) + deadline_s,
            load=self._load_with(member, len(indices)),
            prefixes=prefixes,
            invite=member.invite,
            on_trial=load.on_trial,
            oldest_own_version=Version(0) if member.is_cell else member.reputation.oldest_own_version,
            new_tokens_max=new_tokens_max,
        )
        load.held_now += len(attempts)
        load.held += len(attempts)
        state.accounts.issued += len(attempts)
        state.members.set_free_slots(member, member.free_slots - len(attempts))
        member.virtual_time = state.members.shares.served(member.peer_id, len(attempts) / self._speed(member))
        self._queue(member)
        return attempts

    def _load_with(self, member: Member, slots: int) -> int:
        """Return the slots that the member holds with these, or those that it generates at once if they are more."""
        load = self._load(member)
        return max(load.at_once, load.held_now + slots)

    def _speed(self, member: Member) -> float:
        """Return the member's slots per second; one that was not measured is taken to be as fast as the others."""
        per_s = self._load(member).slots_per_s
        if per_s:
            return per_s
        typical_s = self._state.forecast.typical_s(member.peer_id, 1, self._now)
        return max(1, self._load(member).at_once) / (typical_s or 1.0)

    # ---------------------------------------------------------------- prompts

    def supply_prompts(self) -> None:
        """Request prompts if the stock is low, with the steps that they are for where that matters."""
        state, groups = self._state, len(self._state.book)
        asked = state.prompts.ask(max(0, self.pacing.groups_needed - groups))
        if state.settings.staged_prompts:
            ahead = groups + len(state.prompts.stock)
            asked = [
                SupplyPrompts(one.count, tuple(self.pacing.step_of_turn(ahead + number) for number in range(one.count)))
                for one in asked
            ]
        self.actions += asked


def _is_new_enough(version: Version, lent: Lent | None) -> bool:
    """Whether a version is as new as a slot of the head needs; slots of the run's own problems need none here."""
    return lent is None or version >= lent.oldest_useful_version


def issue(state: CoreState, now: float) -> list[Action]:
    """Give leases to the members next in line, as long as there is work for them, and request prompts.

    Of events that arrived together only the last one does so.
    """
    if state.ended or state.holds_work or state.arrivals_go_on:
        return []
    members = state.members
    if not (members.shares.places or members.has_changed or state.book.has_freed or _lacks_prompts(state)):
        return []  # nothing changed that gives any member work
    round_ = Round(state, now)
    round_.queue_changed()
    if members.shares.places:
        round_.give_out()
    if _lacks_prompts(state):
        round_.supply_prompts()
    return round_.actions


def _lacks_prompts(state: CoreState) -> bool:
    return bool(state.prompts.low and state.members.worker_count and not state.settings.is_cell)
