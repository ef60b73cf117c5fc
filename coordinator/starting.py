"""The first event of a coordinator: what the one before it had open goes on."""

from __future__ import annotations

from coordinator.actions import Action, ScoreRollout
from coordinator.state import CoreState


def started(state: CoreState, now: float) -> list[Action]:
    """Take over what was restored: every live attempt has a full period from now, and what is unscored is scored."""
    groups, state.restored_groups = state.restored_groups, ()
    state.book.restore(groups, deadline=now + state.settings.lease_deadline_s)
    return [
        ScoreRollout(rollout.rollout_id, group.prompt.problem_id, rollout.completion_token_ids)
        for group in groups
        for rollout in group.rollouts
        if not rollout.scored
    ]
