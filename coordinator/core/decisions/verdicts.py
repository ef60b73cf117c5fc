"""Decide what follows from a verdict: a reward is kept; a failure is retried, and in the end drops the group.

Failed is not 0. A group is trained as a whole, because advantages are relative to its rewards, so that a rollout
without a reward drops its group as ``unscorable``: the prompts of other groups take its place.
"""

from __future__ import annotations

import math

from coordinator.core.decisions.issuing import issue
from coordinator.core.decisions.rollouts import form_batch, review
from coordinator.core.decisions.state import CoreState
from coordinator.core.events.actions import Action, Note
from coordinator.core.events.events import RolloutScored, ScoringFailed
from coordinator.core.leases.scoring_book import ATTEMPTS_MAX
from rollcast.wire.ids import RolloutId


def scored(state: CoreState, event: RolloutScored, now: float) -> list[Action]:
    """Keep a reward. If it completes its group, the group is reviewed, and a batch formed if one is wanted."""
    if not math.isfinite(event.reward):
        return failed(state, ScoringFailed(event.rollout_id, "exception", "the reward is not a number", False), now)
    pending = state.scoring.scored(event.rollout_id)
    if pending is not None:
        state.forecast.scored(now - pending.since)
    resumed = _recover(state, now) if state.scoring.pause is not None else []
    if not state.book.mark_scored(event.rollout_id, event.reward):
        return resumed
    group = state.book.ready_group_of(event.rollout_id)
    changed = resumed + ([] if group is None else review(state, group))
    changed += form_batch(state, now)
    return changed + issue(state, now) if changed else []


def failed(state: CoreState, event: ScoringFailed, now: float) -> list[Action]:
    """Have a rollout scored again that the verifier failed on; at last drop its group."""
    book = state.scoring
    pending = book.get(event.rollout_id)
    if pending is None:
        return []
    if state.ended or not state.book.holds(event.rollout_id):
        book.discard(event.rollout_id)
        return []
    book.failed(pending, event.reason, event.detail)
    actions: list[Action] = [Note("scoring_failed", f"rollout {event.rollout_id}", book.last_failure)]
    if event.retryable and book.must_pause():
        share = f"{book.failed_share:.0%} of the newest verdicts are failures"
        actions.append(Note("scoring_paused", "run", f"{share}, the last one {book.begin_pause(now).reason}"))
    if not event.retryable:
        return actions + _drop(state, event.rollout_id, now)
    if book.pause is not None:
        book.set_aside(pending)
        return actions
    if pending.failures < ATTEMPTS_MAX:
        return [*actions, pending.action]
    return actions + _drop(state, event.rollout_id, now)


def tick(state: CoreState, now: float) -> list[Action]:
    """Try one rollout while scoring is paused; without any that still counts, resume."""
    book = state.scoring
    if book.pause is None or state.ended:
        return []
    while (found := book.probe(now)) is not None:
        if state.book.holds(found.action.rollout_id):
            return [found.action]
        book.discard(found.action.rollout_id)
    return [] if len(book) else _resume(state, now)


def _recover(state: CoreState, now: float) -> list[Action]:
    return _resume(state, now) if state.scoring.recovers(now) else tick(state, now)


def _resume(state: CoreState, now: float) -> list[Action]:
    pause, waiting = state.scoring.pause, state.scoring.end_pause()
    lasted_s = 0.0 if pause is None else now - pause.since
    return [Note("scoring_resumed", "run", f"after {lasted_s:.0f} s"), *waiting]


def _drop(state: CoreState, rollout_id: RolloutId, now: float) -> list[Action]:
    """Drop the group of a rollout that cannot be scored."""
    state.scoring.discard(rollout_id)
    group = state.book.group_of(rollout_id)
    if group is None:
        return []
    fillings = group.fillings()
    for filling in fillings:
        state.scoring.discard(filling.rollout_id)
    state.scoring.unscorable_groups += 1
    note = Note("unscorable", f"group {group.group_id}", state.scoring.last_failure)
    return [note, *state.drop_group(group, ["unscorable"] * len(fillings), "unscorable"), *issue(state, now)]
