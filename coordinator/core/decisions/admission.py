"""Which work may be begun: only what will still be young enough when its batch is formed, and no more than is of use.

The counting rule is AReaL's (arXiv 2505.24298, section 5.1): a group enters the batch that the groups before it leave
room for. Time is looked at too, once it was measured: a group that is ready late enters a later batch, because groups
that were begun after it overtake it. Where fewer groups are ahead than a batch has, the next batch cannot be formed
without this one, however long it takes: there the counting rule stands alone, so that the run never stops for what is
predicted.
"""

from __future__ import annotations

import math

from capacity.model.pacing_rules import CHANCE_ONCE_BEGUN
from coordinator.core.decisions.state import CoreState
from coordinator.core.leases.groups import Group
from coordinator.core.members.membership import Member
from rollcast.wire.ids import Step, Version


def may_open(state: CoreState) -> bool:
    """Whether one more group would be of use, for a version that is young enough."""
    if state.groups_still_needed() <= 0:
        return False
    return state.settings.pacing != "predict" or len(state.book) < _groups_of_use(state)


def _groups_of_use(state: CoreState) -> float:
    """Open and ready groups that keep the learner busy: a batch, what is under way meanwhile, a margin, and as many
    more as come too late in the end.
    """
    under_way = state.forecast.steps_under_way()
    if under_way is None:
        return float("inf")
    return _groups_of_steps(state) * (1.0 + under_way + state.settings.lead_margin_steps)


def _groups_of_steps(state: CoreState) -> float:
    """Groups to begin for each batch, with those that come too late in the end, or teach nothing."""
    groups = state.settings.groups_per_step
    return groups / state.group_yield.share * state.usefulness.groups_per_useful_one


def oldest_version_for(state: CoreState, groups_ahead: int) -> Version:
    """Oldest version with which a group in this place can be made, counting groups only."""
    if state.settings.pacing == "none":
        return Version(0)
    return Version(max(0, state.step_of_turn(groups_ahead) - state.rules.limit))


def oldest_fresh_version_for(state: CoreState, groups_ahead: int, made_with: Version | None) -> Version:
    """The same where nobody waits in vain: a newer version may be here before the group need be begun.

    ``made_with``: the oldest version of rollouts that the group has already.

    A version is kappa steps and what it took to come old when the next one is here. Of the last batch's worth of the
    groups of use, the later a group has its turn the less older than that it may be begun with: peers that are free
    wait for the version that is on its way instead, and what they make is younger when it is trained.
    """
    counted = oldest_version_for(state, groups_ahead)
    lag_steps = state.forecast.version_lag_steps()
    if state.settings.pacing != "predict" or lag_steps is None or groups_ahead < state.settings.groups_per_step:
        return counted
    spare_steps = max(0.0, (_groups_of_use(state) - groups_ahead) / _groups_of_steps(state))
    if spare_steps > 1.0:
        return counted
    age_max = state.rules.publish_every_steps + lag_steps + spare_steps
    fresh = math.ceil(state.batches.next_step - age_max)
    return Version(max(counted, fresh if made_with is None else min(fresh, made_with)))  # newer ones make it no younger


def oldest_to_begin(
    state: CoreState, member: Member, version: Version, group: Group | None, load: int, now: float
) -> Version | None:
    """Oldest version with which slots of the group, or of a new one, are in time if this member begins them now.

    None: what it holds, ``version``, is older, at this load.
    """
    settings = state.settings
    if settings.pacing == "none":
        return Version(0)
    ahead = len(state.book) if group is None else state.book.position(group)
    made_with = None if group is None else group.oldest_version
    oldest = version if made_with is None else min(version, made_with)
    needed = oldest_version_for(state, ahead)
    if oldest < needed:
        return None
    if settings.pacing == "count" or (ahead < settings.groups_per_step and state.forecast.learner_starves(now)):
        return needed
    chance, slots = state.forecast.chance_wanted, settings.samples_per_group
    if group is not None:  # it was begun: what is left of it is worth a smaller chance
        chance, slots = min(chance, CHANCE_ONCE_BEGUN), group.unfilled
    needed = Version(max(needed, predicted_step(state, member, slots, load, now, chance) - state.rules.limit))
    fresh = oldest_fresh_version_for(state, ahead, made_with)
    return Version(max(needed, fresh)) if oldest >= needed and version >= fresh else None


def predicted_step(state: CoreState, member: Member, slots: int, load: int, now: float, chance: float) -> Step:
    """Step of the batch that is next when so many slots, begun now by this member, are scored with this chance."""
    ready_in_s = state.forecast.ready_in_s(member.peer_id, load, slots, now, chance)
    later = 0 if ready_in_s is None else state.forecast.steps_within(ready_in_s, now)
    return Step(state.batches.next_step + later)


def steps_too_few(state: CoreState) -> int:
    """By how many steps the staleness limit falls short of what rollouts take; 0 where it is enough or not known.

    As in capacity/model/staleness.py, from times that the coordinator measured itself.
    """
    under_way, learner_s = state.forecast.steps_under_way(), state.forecast.learner_s
    if under_way is None or not learner_s:
        return 0
    t_bcast_s = state.dissemination.seconds.percentile(95) or 0.0
    needed = math.ceil(under_way + t_bcast_s / learner_s + state.rules.publish_every_steps)
    return max(0, needed - state.rules.limit)
