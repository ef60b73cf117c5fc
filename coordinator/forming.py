"""Forming, recording and serving batches, and dropping what is too old for any batch to come."""

from __future__ import annotations

from coordinator.accounting import DropReason
from coordinator.actions import Action, Note, RecordBatch, ServeBatch
from coordinator.events import BatchRecorded, BatchRequested
from coordinator.leases import Group
from coordinator.staleness import age_at
from coordinator.state import CoreState
from rollcast.wire.ids import Step


def batch_requested(state: CoreState, event: BatchRequested) -> list[Action]:
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
    return drop_stale(state) + form_batch(state)


def form_batch(state: CoreState) -> list[Action]:
    """Form the batch that the learner waits for, if enough groups are ready and young enough."""
    if state.batches.wanted is None or state.book.ready_count < state.settings.groups_per_step:
        return []
    batch = state.batches.form(state.book.ready_groups())
    if batch is None:
        return []
    for group in batch.groups:
        state.book.remove(group)
    return [RecordBatch(batch.step, batch.rollout_ids)]


def batch_recorded(state: CoreState, event: BatchRecorded) -> list[Action]:
    """The batch is durable: count it as trained, serve it, and drop what the next step is too late for."""
    batch = state.batches.record()
    if batch.step != event.step:
        raise ValueError(f"batch {event.step} was recorded while batch {batch.step} was formed")
    for age in batch.ages:
        state.staleness.trained(age)
    state.accounts.trained += len(batch.rollout_ids)
    return [ServeBatch(event.step, replayed=False), *drop_stale(state), *form_batch(state)]


def drop_stale(state: CoreState) -> list[Action]:
    """Drop every group that holds a rollout too old for the next batch, and so for every later one.

    Needed only when the next step changes: intake refuses what is too old already.
    """
    step = state.batches.next_step
    actions: list[Action] = []
    for group in [group for group in state.book if state.batches.too_old(group, step)]:
        actions += state.drop_group(group, _reasons(state, group, step), "group_stale")
    return actions


def _reasons(state: CoreState, group: Group, step: Step) -> list[DropReason]:
    limit = state.settings.staleness_limit
    return ["stale" if age_at(step, filling.oldest_version) > limit else "group_stale" for filling in group.fillings()]
