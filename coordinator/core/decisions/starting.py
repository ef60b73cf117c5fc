"""The first event of a coordinator: what the one before it had open goes on."""

from __future__ import annotations

from coordinator.core.decisions import epoch_change, selection
from coordinator.core.decisions.state import CoreState
from coordinator.core.events.actions import Action, ScoreRollout


def started(state: CoreState, now: float) -> list[Action]:
    """Take over what was restored: every live attempt has a full period from now, and what is unscored is scored."""
    groups, state.restored_groups = state.restored_groups, ()
    settings = state.settings
    state.book.restore(groups, now + settings.lease_deadline_s, lost_at=now + settings.reconnect_grace_s)
    # An epoch may have been recorded without what it drops: the crash came in between.
    dropped = epoch_change.drop_orphans(state)
    unscored = [
        ScoreRollout(rollout.rollout_id, group.prompt.problem_id, rollout.completion_token_ids)
        for group in groups
        for rollout in group.rollouts
        if not rollout.scored and not state.epochs.is_orphan(rollout.newest_version)
    ]
    return [*dropped, *selection.started(state), *unscored]
