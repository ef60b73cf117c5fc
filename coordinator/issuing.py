"""Giving out work: vacant slots first, then new prompt groups, never more than will be young enough at their turn."""

from __future__ import annotations

from coordinator.actions import Action, RecordAttempt, RecordGroup, SendLeases
from coordinator.leases import Group
from coordinator.membership import Member
from coordinator.staleness import oldest_useful_version
from coordinator.state import CoreState
from rollcast.wire.ids import PeerId, Step, Version
from rollcast.wire.rollouts import LeaseGrant


def issue(state: CoreState, now: float) -> list[Action]:
    """Leases for whoever asked, in rounds of one lease each, those who hold least first; and prompts to draw."""
    if state.ended:
        return []
    actions: list[Action] = []
    grants: dict[PeerId, list[LeaseGrant]] = {}
    if _something_to_give(state):
        held = state.book.held_count
        waiting = sorted(state.members.hungry(), key=lambda member: (held(member.peer_id), member.order))
        while waiting:
            served = []
            for member in waiting:
                grant = _grant_one(state, member, actions, now)
                if grant is not None:
                    grants.setdefault(member.peer_id, []).append(grant)
                    served.append(member)
            waiting = served
    actions += [SendLeases(peer_id, tuple(given)) for peer_id, given in grants.items()]
    if state.members.worker_count:
        actions += state.prompts.ask(state.groups_still_needed())
    return actions


def _something_to_give(state: CoreState) -> bool:
    """A cheap answer for the common case that pacing lets nobody start anything."""
    if state.newest_version is None:
        return False
    return state.book.oldest_vacant() is not None or _may_open(state, state.newest_version)


def _may_open(state: CoreState, version: Version) -> bool:
    turn = state.step_of_turn(len(state.book))
    return turn - version <= state.settings.staleness_limit and state.groups_still_needed() > 0


def _grant_one(state: CoreState, member: Member, actions: list[Action], now: float) -> LeaseGrant | None:
    """One lease for this member, or None: it has enough, or nothing is open to the version it holds."""
    capacity = state.settings.slot_capacity(member.concurrent_rollouts)
    room = min(member.free_slots, capacity - state.book.held_count(member.peer_id))
    if room <= 0 or member.version is None:
        return None
    group = _group_for(state, member.version, actions)
    if group is None:
        return None
    deadline = now + state.settings.lease_deadline_s
    attempts = state.book.issue(group, group.vacant()[:room], member.peer_id, deadline)
    slots = state.book.slots_of(attempts)
    state.members.asks(member, member.free_slots - len(attempts))
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
        sampling=state.settings.sampling,
        deadline_s=state.settings.lease_deadline_s,
        epoch=state.epoch,
        oldest_useful_version=oldest_useful_version(_turn(state, group), state.settings.staleness_limit),
    )


def _group_for(state: CoreState, version: Version, actions: list[Action]) -> Group | None:
    """The oldest group with a vacant slot, else a new one, if rollouts of this version will be young enough there.

    Younger groups have their turn later, so if the oldest one is closed to this version all are.
    """
    vacant = state.book.oldest_vacant()
    if vacant is not None:
        young_enough = _turn(state, vacant) - version <= state.settings.staleness_limit
        return vacant if young_enough else None
    if not _may_open(state, version):
        return None
    prompt = state.prompts.take()
    if prompt is None:
        return None
    group = state.book.open_group(prompt)
    actions.append(RecordGroup(group.group_id, prompt.problem_id, prompt.prompt_token_ids, prompt.mixture_position))
    return group


def _turn(state: CoreState, group: Group) -> Step:
    return state.step_of_turn(state.book.position(group))
