"""Decide for a cell: take the head's slots, report what is generated, and let go of what is over (docs/scale.md).

    uplink ─ SlotsLent ─► prompts ─► leases ─► members ─ rollouts ─► stored ─► delivered to the head ─ SlotsOver ─► over

A cell forms no batches and drops nothing for its age: the head does both. So each rollout waits here, durable, until
the head has stored it or does not want it any more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

from coordinator.core.decisions.issuing import issue
from coordinator.core.decisions.state import CoreState
from coordinator.core.events.actions import Action, DeliverRollout
from coordinator.core.events.cell_events import LentKey, SlotsOver
from coordinator.core.events.events import SlotsLent
from coordinator.core.leases.drop_counts import DropReason
from coordinator.core.leases.groups import Filling
from coordinator.core.lent.lent import Lent
from rollcast.wire.ids import Epoch, Version

_REASONS: frozenset[str] = frozenset(get_args(DropReason))


@dataclass(frozen=True, slots=True)
class CellFacts:
    """What a cell reports to its uplink. ``version``: see _version_of_most."""

    workers: int  # connected
    slots: int  # rollouts that they generate at once
    slots_wanted: int  # that they can use in all
    version: Version | None
    epoch: Epoch
    slots_lent: int  # of the head, that are not over
    tokens_generated: int
    tokens_per_s: float


def started(state: CoreState) -> list[Action]:
    """Take over the lent slots that were restored; what is stored and not over is delivered again."""
    actions: list[Action] = []
    for group in state.book:
        if group.lent is None:
            continue
        state.lent.add(group.lent.key)
        state.lent.opened(group.lent.key, group.group_id)
        for filling in group.fillings():
            state.book.mark_scored(filling.rollout_id)
            actions.append(DeliverRollout(filling.rollout_id))
    return actions


def lent(state: CoreState, event: SlotsLent, now: float) -> list[Action]:
    """Take slots of the head that are not known, and lease them to members."""
    if state.ended:
        return []
    found = ((one, Lent.of(one)) for one in event.prompts)
    new = tuple(prompt for prompt, slot in found if slot is not None and state.lent.add(slot.key))
    state.prompts.supplied(new)
    return issue(state, now)


def over(state: CoreState, event: SlotsOver, now: float) -> list[Action]:
    """Let go of slots: their rollouts are at the head, or of no use to it."""
    actions: list[Action] = []
    if state.ended:  # every group was dropped, if for good, or stays for the next coordinator
        return actions
    ended = [(said, key) for said, keys in event.reasons.items() for key in keys]
    for said, leases in event.leases.items():
        ended += [(said, key) for lease_id in leases for key in state.lent.slots_of(lease_id)]
    for said, key in ended:
        actions += _end(state, key, _reason_of(said))
    return actions + issue(state, now) if actions else []


def _reason_of(said: str) -> DropReason:
    if not said:
        return "delivered"
    return said if said in _REASONS else "revoked"  # type: ignore[return-value]


def _end(state: CoreState, key: LentKey, reason: DropReason) -> list[Action]:
    known, group_id = state.lent.end(key)
    if not known:
        return []
    if group_id is None:
        state.prompts.remove(Lent.problem_id(key))
        return []
    group = state.book.group(group_id)
    return state.drop_group(group, [reason] * len(group.fillings()), reason)


def undelivered(state: CoreState) -> list[tuple[Lent, Filling]]:
    """Return the stored rollouts that the uplink must deliver, with their slots at the head, oldest first."""
    ready = state.book.ready_groups()
    return [(group.lent, filling) for group in ready if group.lent is not None for filling in group.fillings()]


def facts_of(state: CoreState) -> CellFacts:
    """Return what the uplink reports to the head about this cell."""
    workers = [one for one in state.members if one.role == "peer" and one.may_work]
    return CellFacts(
        workers=len(workers),
        slots=sum(one.concurrent_rollouts for one in workers),
        slots_wanted=sum(state.most_held(one.concurrent_rollouts) for one in workers),
        version=_version_of_most(state),
        epoch=state.epochs.current,
        slots_lent=len(state.lent),
        tokens_generated=sum(one.facts.tokens_generated for one in workers if one.facts is not None),
        tokens_per_s=sum(one.facts.tokens_per_second for one in workers if one.facts is not None),
    )


def _version_of_most(state: CoreState) -> Version | None:
    """Return the newest version that members with at least half of all slots hold; None if there is none.

    The head leases work for it: slots for which a member is too far behind are leased to another one.
    """
    held = sorted(
        ((one.version, one.concurrent_rollouts) for one in state.members if one.may_work and one.version is not None),
        reverse=True,
    )
    half, so_far = sum(slots for _, slots in held) / 2.0, 0
    for version, slots in held:
        so_far += slots
        if so_far >= half:
            return version
    return None
