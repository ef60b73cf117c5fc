"""Giving out work: slots that want an attempt first, then new prompt groups, to whoever is next in line."""

from __future__ import annotations

from coordinator.core.decisions import admission
from coordinator.core.decisions.state import CoreState
from coordinator.core.events.actions import Action, RecordAttempt, RecordGroup, SendLeases
from coordinator.core.leases.groups import Group
from coordinator.core.members.membership import Member
from coordinator.core.staleness.age import oldest_useful_version
from rollcast.wire.ids import PeerId, Version
from rollcast.wire.rollouts import LeaseGrant

_GROUPS_TRIED_MAX = 8  # with open slots, oldest first: further ones have their turn later still


def issue(state: CoreState, now: float) -> list[Action]:
    """Leases for those who are next in line, one at a time, as long as there is work for them; and prompts to draw."""
    if state.ended:
        return []
    queue_changed(state, now)
    actions: list[Action] = []
    if len(state.members.shares):
        _give_out(state, actions, now)
    if state.prompts.low and state.members.worker_count:
        actions += state.supply_prompts()
    return actions


def _give_out(state: CoreState, actions: list[Action], now: float) -> None:
    grants: dict[PeerId, list[LeaseGrant]] = {}
    while (member := _next_in_line(state)) is not None:
        grant = _grant_one(state, member, actions, now)
        if grant is None:
            state.members.shares.set_aside(member.peer_id)
        else:
            grants.setdefault(member.peer_id, []).append(grant)
    actions += [SendLeases(peer_id, tuple(given)) for peer_id, given in grants.items()]


def room(state: CoreState, member: Member, now: float) -> int:
    """Slots that the member can be given now.

    What it held before its present session does not count at first: it may have lost it, and knows best what it asks
    for. Twice its capacity is the most that it holds in all.
    """
    free, most = member.free_slots, capacity(state, member, now)
    book, peer_id = state.book, member.peer_id
    return min(free, most - book.held_now(peer_id), 2 * most - book.held_count(peer_id)) if free > 0 else free


def capacity(state: CoreState, member: Member, now: float) -> int:
    """Slots that the member may hold at once: what it works off in the time that fetching ahead is meant for."""
    settings, at_once = state.settings, member.concurrent_rollouts
    most = settings.slot_capacity(at_once)
    per_s = state.forecast.slots_per_s(member.peer_id, now)
    return most if per_s is None else min(most, max(at_once, int(per_s * settings.prefetch_s)))


def queue_changed(state: CoreState, now: float) -> None:
    """Put members in line, or take them out of it, that something changed for since the last time."""
    changed, freed = state.members.take_changed(), state.book.take_freed()
    for peer_id in dict.fromkeys(changed + freed) if freed else changed:
        member = state.members.get(peer_id)
        if member is not None:
            _queue(state, member, now)


def _queue(state: CoreState, member: Member, now: float) -> None:
    shares = state.members.shares
    if member.version is None or member.free_slots <= 0 or not member.may_work or room(state, member, now) <= 0:
        shares.leave(member.peer_id)
        return
    busy = state.book.held_now(member.peer_id) >= member.concurrent_rollouts
    virtual_time = max(member.virtual_time, shares.clock)
    if member.peer_id in shares:
        virtual_time = member.virtual_time
    member.virtual_time = virtual_time
    shares.wait(member.peer_id, member.order, member.version, virtual_time, ahead=busy)


def _next_in_line(state: CoreState) -> Member | None:
    """The next member for which there may be work; cheap where pacing lets nobody begin anything."""
    if state.newest_version is None:
        return None
    open_groups = state.book.open_groups(1)
    if open_groups:  # it has its turn before any new group: older versions will do for it
        groups_ahead, made_with = state.book.position(open_groups[0]), open_groups[0].oldest_version
    elif len(state.prompts) and admission.may_open(state):
        groups_ahead, made_with = len(state.book), None
    else:
        return None
    peer_id = state.members.shares.first(admission.oldest_fresh_version_for(state, groups_ahead, made_with))
    return None if peer_id is None else state.members.get(peer_id)


def _grant_one(state: CoreState, member: Member, actions: list[Action], now: float) -> LeaseGrant | None:
    """One lease for this member, or None: nothing is open that it could do in time."""
    free = room(state, member, now)
    if free <= 0 or member.version is None:
        return None
    found = _group_for(state, member, member.version, free, actions, now)
    if found is None:
        return None
    group, oldest = found
    return grant(state, member, group, state.book.open_slots(group)[:free], actions, now, oldest)


def grant(
    state: CoreState,
    member: Member,
    group: Group,
    indices: list[int],
    actions: list[Action],
    now: float,
    oldest_in_time: Version = Version(0),  # noqa: B008
) -> LeaseGrant:
    """A lease of these slots of a group for this member, who is in line; what must be recorded goes to ``actions``.

    It asks for what the member was chosen for: one that still loads the version that it holds would begin with an older
    one. Beginnings that others drew are gone on with as long as they are young enough for their turn.
    """
    settings, book = state.settings, state.book
    turn = state.step_of_turn(book.position(group))
    oldest_useful = oldest_useful_version(turn, state.rules.limit)
    attempts = book.issue(
        group,
        indices,
        member.peer_id,
        now=now,
        deadline=now + settings.lease_deadline_s,
        load=max(member.concurrent_rollouts, book.held_now(member.peer_id) + len(indices)),
        prefixes=state.partials.prefixes(group.group_id, indices, oldest_useful, state.epoch),
    )
    slots = book.slots_of(attempts)
    if not any(slot.prefix for slot in slots):
        oldest_useful = max(oldest_useful, oldest_in_time)
    state.members.asks(member, member.free_slots - len(attempts))
    member.virtual_time = state.members.shares.served(member.peer_id, len(attempts) / _speed(state, member, now))
    _queue(state, member, now)
    state.accounts.issued += len(attempts)
    for attempt, slot in zip(attempts, slots, strict=True):
        actions.append(
            RecordAttempt(
                attempt.lease_id,
                attempt.fencing_token,
                group.group_id,
                slot.sample_index,
                slot.seed,
                member.peer_id,
            )
        )
    return LeaseGrant(
        lease_id=attempts[0].lease_id,
        fencing_token=attempts[0].fencing_token,
        group_id=group.group_id,
        prompt_token_ids=group.prompt.prompt_token_ids,
        slots=slots,
        sampling=settings.sampling,
        deadline_s=settings.lease_deadline_s,
        epoch=state.epoch,
        oldest_useful_version=oldest_useful,
    )


def _speed(state: CoreState, member: Member, now: float) -> float:
    """In slots a second; what is not measured is taken to be as fast as the others."""
    per_s = state.forecast.slots_per_s(member.peer_id, now)
    if per_s:
        return per_s
    typical_s = state.forecast.typical_s(member.peer_id, 1, now)
    return max(1, member.concurrent_rollouts) / (typical_s or 1.0)


def _group_for(
    state: CoreState, member: Member, version: Version, free: int, actions: list[Action], now: float
) -> tuple[Group, Version] | None:
    """The oldest group with an open slot, else a new one, that this member can do in time, and the version it needs."""
    taken = min(free, state.settings.samples_per_group)
    load = max(member.concurrent_rollouts, state.book.held_now(member.peer_id) + taken)
    for group in state.book.open_groups(_GROUPS_TRIED_MAX):
        oldest = admission.oldest_to_begin(state, member, version, group, load, now)
        if oldest is not None:
            return group, oldest
    oldest = admission.oldest_to_begin(state, member, version, None, load, now) if admission.may_open(state) else None
    if oldest is None:
        return None
    prompt = state.prompts.take()
    if prompt is None:
        return None
    group = state.book.open_group(prompt)
    actions.append(RecordGroup(group.group_id, prompt.problem_id, prompt.prompt_token_ids, prompt.mixture_position))
    return group, oldest
