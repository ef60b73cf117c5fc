"""The run is over, for now or for good."""

from __future__ import annotations

from coordinator.core.decisions.state import CoreState
from coordinator.core.events.actions import Action, FailRun, Note
from coordinator.core.events.events import RunEnded
from rollcast.runtime.errors import NoPeers, ProcessFailed, RollcastError, WaitTimedOut


def run_ended(state: CoreState, event: RunEnded) -> list[Action]:
    """Let everybody go. If it is for good, what is under way is revoked and what will not be trained is dropped.

    Else nothing is: the next coordinator takes it over.
    """
    if state.ended:
        return []
    state.ended, state.ended_for_good = event.reason or "the run ended", event.final
    state.batches.wanted = None
    dropped = _drop_all(state) if event.final else []
    dismissed = [state.dismiss(member.peer_id) for member in state.members]
    return [*dropped, *dismissed, Note("run_ended", "run", state.ended)]


def _drop_all(state: CoreState) -> list[Action]:
    live = [attempt for group in state.book for attempt in group.live()]
    actions = state.close_attempts(live, "run_ended", tell_peers=True)
    for group in list(state.book):
        actions += state.drop_group(group, ["run_ended"] * len(group.fillings()), "run_ended")
    return actions


def failure_of(action: FailRun) -> RollcastError:
    """Why the run cannot go on, for people."""
    if action.code == NoPeers.code:
        return NoPeers(action.reason, fix=action.fix)
    if action.code == WaitTimedOut.code:
        return WaitTimedOut(action.reason, fix=action.fix)
    return ProcessFailed(f"the run cannot go on: {action.reason}", fix=action.fix)
