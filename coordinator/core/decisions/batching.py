"""Forming, recording and serving batches, and dropping what is too old for any batch to come.

Online selection: groups that teach nothing make room for others (dynamic sampling, DAPO, arXiv 2503.14476, 3.2).

A group whose rewards are all the same has no advantage, so its gradient is zero. Where the run wants it, such a group
is dropped as soon as it is scored, and prompts are drawn until the batch is full of groups that differ. How many are
dropped for one batch is bounded, so that a policy that is right (or wrong) everywhere still makes steps.
"""

from __future__ import annotations

from coordinator.core.decisions.state import CoreState
from coordinator.core.events.actions import Action, Note, RecordBatch, ServeBatch
from coordinator.core.events.events import BatchRecorded, BatchRequested
from coordinator.core.leases.batches import too_old
from coordinator.core.leases.drop_counts import DropReason
from coordinator.core.leases.groups import Group
from coordinator.core.staleness.age import age_at
from rollcast.wire.ids import RolloutId, Step


def batch_requested(state: CoreState, event: BatchRequested, now: float) -> list[Action]:
    """Serve a recorded batch again, or form this one as soon as there is enough."""
    batches = state.batches
    if batches.is_recorded(event.step):
        return [ServeBatch(event.step, replayed=True)]
    if batches.recording is not None and batches.recording.step == event.step:
        return []  # served when it is recorded
    if event.step != batches.next_step or event.step >= state.settings.steps:
        expected = f"the next batch is that of step {batches.next_step} of {state.settings.steps}"
        return [Note("batch_out_of_order", f"step {event.step}", expected)]
    batches.wanted = event.step
    return drop_stale(state) + form_batch(state, now)


def form_batch(state: CoreState, now: float) -> list[Action]:
    """Form the batch that the learner waits for, if enough groups are ready and young enough."""
    if state.batches.wanted is None:
        state.late_wait.cancel(now)
        return []
    if state.book.ready_count < state.settings.groups_per_step:
        return []
    age_max = state.rules.age_max
    groups = state.batches.choose(state.book.ready_groups(), age_max)
    if not groups or _held_back(state, groups, now):
        return []
    batch = state.batches.form(groups, age_max)
    for group in batch.groups:
        state.book.remove(group)
    return [RecordBatch(batch.step, batch.rollout_ids)]


def batch_recorded(state: CoreState, event: BatchRecorded, now: float) -> list[Action]:
    """The batch is durable: count it as trained, serve it, and drop what the next step is too late for."""
    batch = state.batches.record()
    if batch.step != event.step:
        raise ValueError(f"batch {event.step} was recorded while batch {batch.step} was formed")
    for age in batch.ages:
        state.staleness.trained(age, batch.age_max)
        state.late.corrected += age > state.rules.limit
    state.accounts.trained += len(batch.rollout_ids)
    state.usefulness.batch_recorded()
    state.group_yield.ended(len(batch.groups), in_time=True)
    if state.rules.follows_broadcasts:
        state.rules.follow(
            t_bcast_p95_s=state.dissemination.seconds.percentile(95),
            t_gen_p90_s=state.generate_s.percentile(90),
            step_period_s=state.forecast.step_period_s,
        )
    return [ServeBatch(event.step, replayed=False), *drop_stale(state), *form_batch(state, now)]


def drop_stale(state: CoreState) -> list[Action]:
    """Drop every group that holds a rollout too old for the next batch, and so for every later one.

    Needed only when the next step changes: intake refuses what is too old already.
    """
    step, age_max = state.batches.next_step, state.rules.age_max
    actions: list[Action] = []
    for group in [group for group in state.book if too_old(group, step, age_max)]:
        if not group.ready:
            state.group_yield.ended(1, in_time=False)
        actions += state.drop_group(group, _reasons(group, step, age_max), "group_stale")
    return actions


def _reasons(group: Group, step: Step, age_max: int) -> list[DropReason]:
    return [
        "stale" if age_at(step, filling.oldest_version) > age_max else "group_stale" for filling in group.fillings()
    ]


def _held_back(state: CoreState, chosen: tuple[Group, ...], now: float) -> bool:
    """Whether the batch waits for a group under way that is young enough for it and not for the next one."""
    rules = state.rules.rules
    if rules.late_policy != "wait":
        return False
    return state.late_wait.hold(now, rules.late_wait_s, for_somebody=_somebody_is_late(state, chosen))


def _somebody_is_late(state: CoreState, chosen: tuple[Group, ...]) -> bool:
    age_max, following = state.rules.age_max, Step(state.batches.next_step + 1)
    if all(too_old(group, following, age_max) for group in chosen):
        return False  # there is no room for it: whoever is left out is too old
    return any(not group.ready and too_old(group, following, age_max) for group in state.book)


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
