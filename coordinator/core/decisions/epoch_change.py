"""Open an epoch: the learner continues from another state than the one that it had published.

Everything changes at the request, in one event; only the answer waits until the epoch is durable. A crash in between is
repaired at the next start: rollouts of orphaned versions that the ledger still holds are dropped then.
"""

from __future__ import annotations

from coordinator.core.decisions import episodes, evaluating
from coordinator.core.decisions.state import CoreState
from coordinator.core.events.actions import Action, AnswerEpoch, Note, RecordEpoch
from coordinator.core.events.events import EpochRecorded, EpochRequested
from coordinator.core.leases.episodes import Game
from coordinator.core.leases.groups import Group
from coordinator.core.staleness.epochs import EpochBook
from rollcast.wire.ids import Epoch, Step, Version


def requested(state: CoreState, event: EpochRequested) -> list[Action]:
    """Open an epoch for a learner that has trained on every recorded batch; a repeated request gets the same answer."""
    newest = state.epochs.newest
    if newest is not None and _is_same_request(state, event, newest):
        if newest.epoch not in state.epoch_requests:  # it is durable
            return [AnswerEpoch(event.request_id, newest.epoch, newest.step_to)]
        state.epoch_requests[newest.epoch].append(event.request_id)
        return []
    step = state.epochs.after_empty(event.step)
    next_step = state.batches.next_step
    if step < next_step or state.batches.recording is not None:
        # Recorded batches stay recorded: the learner replays them first, then repeats the request.
        text = f"the learner must first train on the batches before step {next_step + 1}"
        return [
            Note("epoch_too_early", f"step {event.step + 1}", text),
            AnswerEpoch(event.request_id, state.epochs.current, next_step),
        ]
    opened = RecordEpoch(
        Epoch(state.epochs.current + 1), next_step, Step(max(step, _above(state.newest_version))), event.common_version
    )
    state.epoch_requests[opened.epoch] = [event.request_id]
    return [opened, Note("epoch_opened", f"epoch {opened.epoch}", _words(opened)), *_open(state, opened)]


def recorded(state: CoreState, event: EpochRecorded) -> list[Action]:
    """Answer the requests for an epoch that is durable now."""
    opened = next(one for one in state.epochs.opened if one.epoch == event.epoch)
    return [AnswerEpoch(asked, opened.epoch, opened.step_to) for asked in state.epoch_requests.pop(event.epoch)]


def drop_orphans(state: CoreState) -> list[Action]:
    """Drop every rollout that has a segment of an orphaned version; its slot will be issued again."""
    actions: list[Action] = []
    for group in list(state.book):
        actions += _drop_orphans_of(state, group)
    return actions


def _open(state: CoreState, opened: RecordEpoch) -> list[Action]:
    state.epochs.open(opened)
    state.announced.withdraw_orphans()
    state.newest_version = max(state.announced.latest(1), default=None)
    state.batches.skip_to(opened.step_to)
    for member in state.members:
        if member.version is not None and state.epochs.is_orphan(member.version):
            member.version = None  # until it reports one that counts
            state.members.changed([member.peer_id])
    state.dissemination.withdrawn(state.epochs.is_orphan)
    # Every attempt in flight may be generating with an orphan, and its lease names the epoch before.
    evaluations = evaluating.give_up_all(state, f"epoch {opened.epoch} was opened", state.now)
    live = [attempt for group in state.book for attempt in group.live()]
    closed = state.close_attempts(live, "rolled_back", notify_peers=True)
    return [*evaluations, *closed, *drop_orphans(state)]


def _drop_orphans_of(state: CoreState, group: Group) -> list[Action]:
    def is_over(game: Game) -> bool:  # epochs never mix in a rollout
        turns = (turn for episode in game.players for turn in episode.turns)
        return any(segment.epoch != state.epochs.current for turn in turns for segment in turn.generated)

    actions: list[Action] = []
    for index, slot in enumerate(group.slots):
        if slot.filling is not None and state.epochs.is_orphan(slot.filling.newest_version):
            actions += state.drop_rollout(group, index, "rolled_back")
    return actions + episodes.begin_anew_if(state, group, "rolled_back", is_over)


def _is_same_request(state: CoreState, event: EpochRequested, newest: RecordEpoch) -> bool:
    """Whether the newest epoch was opened by this request, or by one for the same steps and common version."""
    step = EpochBook(state.epochs.opened[:-1]).after_empty(event.step)
    return newest.step_from <= step <= newest.step_to and newest.common_version == event.common_version


def _above(newest: Version | None) -> int:
    """Return the smallest number above every published version of the epoch."""
    return 0 if newest is None else newest + 1


def _words(opened: RecordEpoch) -> str:
    kept = "no versions" if opened.common_version is None else f"versions up to {opened.common_version}"
    return f"{kept} of earlier epochs stay valid; the learner continues at step {opened.step_to + 1}"
