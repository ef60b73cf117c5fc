"""Online selection: groups that teach nothing make room for others (dynamic sampling, DAPO, arXiv 2503.14476, 3.2).

A group whose rewards are all the same has no advantage, so its gradient is zero. Where the run wants it, such a group
is dropped as soon as it is scored, and prompts are drawn until the batch is full of groups that differ. How many are
dropped for one batch is bounded, so that a policy that is right (or wrong) everywhere still makes steps.
"""

from __future__ import annotations

from coordinator.core.decisions.state import CoreState
from coordinator.core.events.actions import Action
from coordinator.core.leases.groups import Group
from rollcast.wire.ids import RolloutId


def scored(state: CoreState, rollout_id: RolloutId) -> list[Action]:
    """Look at the group that this rollout has just completed, if it has."""
    group = state.book.ready_group_of(rollout_id)
    return [] if group is None else _review(state, group)


def started(state: CoreState) -> list[Action]:
    """Look at every group that the coordinator before us had ready: the crash may have come before the drop."""
    actions: list[Action] = []
    for group in state.book.ready_groups():
        actions += _review(state, group)
    return actions


def _review(state: CoreState, group: Group) -> list[Action]:
    settings, usefulness = state.settings, state.usefulness
    if not settings.drop_without_advantage or state.ended:
        return []
    dull = without_advantage(group)
    usefulness.seen(useful=not dull)
    if not dull or usefulness.dropped >= settings.drops_per_step_max:
        return []
    usefulness.dropped += 1
    return state.drop_group(group, ["no_advantage"] * len(group.slots), "no_advantage")


def without_advantage(group: Group) -> bool:
    """Whether every rollout of a ready group has the same reward."""
    return len({filling.reward for filling in group.fillings()}) == 1
