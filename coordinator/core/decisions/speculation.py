"""Give second attempts at slow peers' slots, so that no straggler delays a batch or makes its group too old.

Where the next batch lacks groups, or a group would become too old, and every slot is in flight, an idle peer is given a
slot that it should finish well before its holder. Every attempt at a slot has the same seed and so about the same
length: a slow peer justifies a second attempt, a long rollout does not. An attempt that takes longer than any seen so
far is assumed to be stuck.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from coordinator.core.decisions.issuing import Round
from coordinator.core.decisions.state import CoreState
from coordinator.core.events.actions import Action, SendLeases
from coordinator.core.leases.attempts import Attempt
from coordinator.core.leases.groups import Group
from coordinator.core.members.membership import Member
from rollcast.wire.ids import PeerId, Version
from rollcast.wire.rollouts import LeaseGrant

_CHECK_EVERY_S = 1.0
_GROUPS_CHECKED = 256  # oldest first, at one time
_SLOTS_CHECKED = 64
_PEERS_COMPARED = 32
_SOONER = 0.7  # share of the time its holder still needs, within which a second peer must be done


class Speculation:
    """Looks for stragglers once a second."""

    def __init__(self, state: CoreState) -> None:
        self._state = state
        self._checked_at = 0.0

    def tick(self, now: float) -> list[Action]:
        """Give idle peers second attempts; called when all other work was given out."""
        if (
            self._state.ended
            or self._state.holds_work
            or now - self._checked_at < _CHECK_EVERY_S
            or not _may_duplicate(self._state)
        ):
            return []
        self._checked_at = now
        return _second_attempts(self._state, now)


def _second_attempts(state: CoreState, now: float) -> list[Action]:
    round_ = Round(state, now)
    grants: dict[PeerId, list[LeaseGrant]] = {}
    for group, attempt, remaining_s, factor in islice(_stragglers(state, now), _SLOTS_CHECKED):
        if not _may_duplicate(state):
            break
        groups_ahead = state.book.position(group)
        member = _fastest_idle(state, round_.pacing.oldest_version(groups_ahead, group.oldest_begun), attempt, now)
        if member is None:
            break
        if _takes_s(state, member, factor, now) > _SOONER * remaining_s:
            continue
        grant = round_.grant(member, group, [attempt.sample_index], groups_ahead)
        state.accounts.second_attempts += 1
        grants.setdefault(member.peer_id, []).append(grant)
    return round_.actions + [SendLeases(peer_id, tuple(given)) for peer_id, given in grants.items()]


def _may_duplicate(state: CoreState) -> bool:
    if state.scoring.pause is not None:
        return False
    return state.accounts.second_attempts + 1 <= state.settings.duplicate_share * state.accounts.issued


def _stragglers(state: CoreState, now: float) -> Iterator[tuple[Group, Attempt, float, float]]:
    """Yield the slots in flight that will be late, with the seconds that their holders still need, and their lengths.

    A length is a factor of the usual one.
    """
    if not state.members.shares.places or state.forecast.spread(0.5) is None:
        return
    lacking = state.settings.groups_per_step - state.book.ready_count
    next_in_s = state.forecast.next_in_s(now)
    for group in [group for group in islice(state.book, _GROUPS_CHECKED) if not group.ready]:
        lacking -= 1
        if lacking < 0 and group.oldest_version is None:  # nothing waits for it, and nothing in it grows older
            continue
        for slot in group.slots:
            if slot.filling is not None or len(slot.live) != 1:
                continue
            attempt = slot.live[0]
            remaining_s, factor = _remaining(state, attempt, now)
            if (lacking >= 0 and remaining_s > next_in_s) or _ages(state, group, remaining_s, now):
                yield group, attempt, remaining_s, factor


def _remaining(state: CoreState, attempt: Attempt, now: float) -> tuple[float, float]:
    """Return the seconds that its holder is expected to need still, and the slot's length in usual lengths."""
    typical_s = state.forecast.typical_s(attempt.peer_id, max(1, attempt.load), now)
    if not typical_s or not attempt.load:
        return 0.0, 1.0
    so_far = (now - attempt.issued_at) / typical_s
    factor = state.forecast.spread_beyond(so_far)
    return (float("inf"), 1.0) if factor is None else ((factor - so_far) * typical_s, factor)


def _ages(state: CoreState, group: Group, remaining_s: float, now: float) -> bool:
    """Whether the group will be too old when this slot is done."""
    if group.oldest_version is None or remaining_s == float("inf"):
        return group.oldest_version is not None
    step = state.batches.next_step + state.forecast.steps_within(remaining_s, now)
    return step - group.oldest_version > state.rules.limit


def _fastest_idle(state: CoreState, oldest_version: Version, attempt: Attempt, now: float) -> Member | None:
    idle = state.members.shares.idle(oldest_version, _PEERS_COMPARED)
    members = [one for peer_id in idle if peer_id != attempt.peer_id and (one := state.members.get(peer_id))]
    return min(members, key=lambda one: (_takes_s(state, one, 1.0, now), one.order), default=None)


def _takes_s(state: CoreState, member: Member, factor: float, now: float) -> float:
    load = max(member.concurrent_rollouts, state.book.held(member.peer_id)[0] + 1)
    typical_s = state.forecast.typical_s(member.peer_id, load, now)
    return float("inf") if typical_s is None else factor * typical_s
