"""Handle the start of a coordinator, the announcement of versions, and the end of the run."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from coordinator.core.decisions import episodes, epoch_change, evaluating, profiling, rollouts
from coordinator.core.decisions.state import CoreState
from coordinator.core.events.actions import Action, FailRun, Note, ScoreRollout, SendAnnouncement
from coordinator.core.events.events import RunEnded, VersionAnnounced
from rollcast.runtime.errors import NoPeers, ProcessFailed, RollcastError, WaitTimedOut
from rollcast.wire.ids import PeerId, Version

ANNOUNCED_AT_ONCE = 512
"""Members that one event announces a version to: 10,000 at once held the loop for some 0.3 s. Ticks go on with the
others, and so do heartbeats: with ticks alone the last of 10,000 members would hear of it 4 s later."""
ANNOUNCED_WITH_A_HEARTBEAT = 32
"""Members that a heartbeat, of which there may be twenty in one turn of the loop, announces a version to."""


def run_ended(state: CoreState, event: RunEnded) -> list[Action]:
    """Dismiss every member. If the run is over for good, revoke all leases and drop what will not be trained.

    Otherwise nothing is dropped: the next coordinator takes it over.
    """
    if state.ended:
        return []
    state.ended, state.ended_for_good = event.reason or "the run ended", event.final
    state.batches.wanted = None
    dropped = evaluating.give_up_all(state, state.ended, state.now)
    dropped += profiling.run_ended(state)
    dropped += _drop_all(state) if event.final else []
    dismissed = [state.dismiss(member.peer_id) for member in state.members]
    return [*dropped, *dismissed, Note("run_ended", "run", state.ended)]


def _drop_all(state: CoreState) -> list[Action]:
    live = [attempt for group in state.book for attempt in group.live()]
    actions = state.close_attempts(live, "run_ended", notify_peers=True)
    for group in list(state.book):
        actions += state.drop_group(group, ["run_ended"] * len(group.fillings()), "run_ended")
    return actions


def failure_of(action: FailRun) -> RollcastError:
    """Return the error that explains to people why the run cannot continue."""
    if action.code == NoPeers.code:
        return NoPeers(action.reason, fix=action.fix)
    if action.code == WaitTimedOut.code:
        return WaitTimedOut(action.reason, fix=action.fix)
    return ProcessFailed(f"the run cannot continue: {action.reason}", fix=action.fix)


def announced(state: CoreState, event: VersionAnnounced, now: float) -> list[Action]:
    """Announce a version that is newer than all before to every member; its record is already stored."""
    if not state.epochs.may_announce(event.epoch, event.version):
        # It was in flight when an epoch was opened, so it would be an orphan from the start.
        return [Note("announced_in_vain", f"version {event.version}", f"epoch {event.epoch} is over")]
    if state.newest_version is not None and event.version <= state.newest_version:
        return [Note("announced_again", f"version {event.version}", "ignored: it is not a newer version")]
    state.newest_version = event.version
    # A cell does not know the learner's step, which is that of the newest version at least.
    step = event.version if state.settings.is_cell else state.batches.next_step
    oldest_useful = Version(max(0, step - state.rules.kept.age_max))
    state.announced.add(event.version, event.chunk_count, oldest_useful=oldest_useful)
    receivers = [member for member in state.members if member.receives]
    state.dissemination.announced(
        event.version,
        [member.peer_id for member in receivers if member.takes_work],
        now,
        plan_id=state.relay.plan_id,
        encodings=event.encodings,
    )
    state.to_announce.append((event.version, deque(member.peer_id for member in receivers)))
    return announce_on(state, ANNOUNCED_AT_ONCE)


def announce_on(state: CoreState, most: int) -> list[Action]:
    """Announce versions to the next members that have not been told; those that joined since were told then."""
    actions = list[Action]()
    while state.to_announce and most:
        version, waiting = state.to_announce[0]
        next_ones = [waiting.popleft() for _ in range(min(most, len(waiting)))]
        most -= len(next_ones)
        if not waiting:
            state.to_announce.popleft()
        told = _receivers(state, next_ones)
        if told and not state.ended and not state.epochs.is_orphan(version):
            actions.append(SendAnnouncement(told, version))
    return actions


def _receivers(state: CoreState, peer_ids: Iterable[PeerId]) -> tuple[PeerId, ...]:
    """Return those that are still members, and receive versions."""
    members = map(state.members.get, peer_ids)
    return tuple(member.peer_id for member in members if member is not None and member.receives)


def started(state: CoreState, now: float) -> list[Action]:
    """Take over what was restored: every live attempt gets a full lease period, and unscored rollouts are scored."""
    groups, state.restored_groups = state.restored_groups, ()
    settings = state.settings
    # No speed is known any more.
    deadline = state.lease_clock.at(now) + max(settings.lease_deadline_s, settings.lease_deadline_most_s)
    state.book.restore(groups, deadline, lost_at=now + settings.reconnect_grace_s)
    opened = episodes.started(state)
    # An epoch may have been recorded without what it drops: the crash came in between.
    dropped = epoch_change.drop_orphans(state)
    waiting = [
        ScoreRollout(rollout.rollout_id, group.prompt.problem_id, rollout.packed_completion)
        for group in groups
        for rollout in group.rollouts
        if not rollout.scored and not state.epochs.is_orphan(rollout.newest_version) and not state.settings.is_cell
    ]
    unscored = [one for one in waiting if state.scoring.begin(one, now)]
    return [*opened, *dropped, *rollouts.started(state), *unscored]
