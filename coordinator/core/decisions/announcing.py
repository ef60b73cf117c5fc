"""A version of the learner becomes known to everybody."""

from __future__ import annotations

from coordinator.core.decisions.state import CoreState
from coordinator.core.events.actions import Action, Note, SendAnnouncement
from coordinator.core.events.events import VersionAnnounced
from coordinator.core.staleness.age import oldest_useful_version


def announced(state: CoreState, event: VersionAnnounced, now: float) -> list[Action]:
    """Spread the word of a version that is newer than all before; its record is already stored."""
    if not state.epochs.may_announce(event.epoch, event.version):
        # It was on its way when an epoch was opened: an orphan from its first moment.
        return [Note("announced_in_vain", f"version {event.version}", f"epoch {event.epoch} is over")]
    if state.newest_version is not None and event.version <= state.newest_version:
        return [Note("announced_again", f"version {event.version}", "nothing to do: it is not newer")]
    state.newest_version = event.version
    oldest_useful = oldest_useful_version(state.batches.next_step, state.rules.age_max)
    state.announced.add(event.version, event.chunk_count, oldest_useful=oldest_useful)
    receivers = [member for member in state.members if member.is_waited_for]
    state.dissemination.announced(
        event.version,
        [member.peer_id for member in receivers],
        now,
        plan_id=state.relay.plan_id,
        encodings=event.encodings,
    )
    return [SendAnnouncement(one.peer_id, event.version) for one in state.members if one.receives]
