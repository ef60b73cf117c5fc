from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.core.events.actions import Action, ServeBatch, StoreRollout
from coordinator.core.events.audit_events import Unseen
from coordinator.core.events.events import RolloutReceived, StepFinished
from coordinator.core.flight_format import (
    FORMAT,
    Entry,
    Gap,
    Head,
    checksum,
    entries_of,
    event_entry,
    frame,
    pack,
    whole,
)
from rollcast.wire.ids import PeerId, RolloutId, Step, Version
from tests.coordinator import core_world as build


def recorded_run() -> tuple[list[Entry], dict[int, RolloutReceived]]:
    """Return the entries of a small run, and its uploads as they were received, by rollout id."""
    world = build.World()
    entries: list[Entry] = [Head(FORMAT, "rollcast", 1.0, 0.0, world.core.settings, None)]
    uploads: dict[int, RolloutReceived] = {}
    handle = world.core.handle

    def recording(event: object, now: float) -> list[Action]:
        actions = handle(event, now)  # type: ignore[arg-type]
        entries.append(event_entry(now, event, actions))  # type: ignore[arg-type]
        for action in actions:
            if isinstance(action, StoreRollout) and isinstance(event, RolloutReceived):
                uploads[action.rollout_id] = event
        return actions

    world.core.handle = recording  # type: ignore[method-assign, assignment]
    for event in (build.joined("o", role="origin"), build.joined("a"), build.announced(0), build.held("a", 0)):
        world.handle(event)
    world.handle(build.wants("a", 8))
    world.handle(build.heartbeat("a", active=0))
    world.handle(StepFinished(Step(1), {"reward_mean": 0.5}))
    for number, lease in enumerate(world.grants["a"], start=1):
        world.handle(build.received("a", number, build.rollout(lease, lease.slots[0].sample_index)))
    return entries, uploads


def test_a_run_is_read_as_it_was_recorded() -> None:
    entries, _ = recorded_run()
    assert list(entries_of(frame([pack(entry) for entry in entries]))) == entries
    split = [frame([pack(entry) for entry in part]) for part in (entries[:3], entries[3:], [Gap(2)])]
    assert list(entries_of(b"".join(split))) == [*entries, Gap(2)]


def test_stored_rollouts_are_left_to_the_ledger() -> None:
    entries, uploads = recorded_run()
    bare = [entry for entry in entries if getattr(entry, "rollout_id", None) is not None]
    assert len(bare) == len(uploads) > 0
    for entry in bare:
        assert entry.event.rollout.segments == ()  # type: ignore[union-attr]
        assert whole(entry, lambda rollout_id: uploads[rollout_id].rollout) == uploads[entry.rollout_id]  # type: ignore[union-attr, arg-type, index]


def test_a_refused_upload_is_recorded_whole() -> None:
    event = build.received("a", 1, build.rollout(_lease(), 0))
    entry = event_entry(1.0, event, [])
    assert whole(entry, _no_ledger) == event


@given(cut=st.integers(min_value=0, max_value=10_000))
@settings(deadline=None, max_examples=40)
def test_a_torn_end_costs_the_last_frame_only(cut: int) -> None:
    first, second = frame([pack(Gap(1)), pack(Gap(2))]), frame([pack(Gap(3))])
    read = list(entries_of((first + second)[: len(first) + cut % len(second)]))
    assert read == [Gap(1), Gap(2)]


def test_a_flipped_bit_ends_the_record() -> None:
    first, second = frame([pack(Gap(1))]), bytearray(frame([pack(Gap(2))]))
    second[-1] ^= 1
    assert list(entries_of(first + bytes(second))) == [Gap(1)]


def test_records_of_another_release_are_rejected() -> None:
    from coordinator.core.flight_format import _encoder

    alien = _encoder.encode(["told", 1.0, "NoSuchEvent", {}, 0, None])
    with pytest.raises(ValueError, match="cannot be read"):
        list(entries_of(frame([alien])))


def test_the_checksum_distinguishes_kinds() -> None:
    world = build.World()
    actions = world.handle(build.joined("a"))
    assert checksum(actions) == checksum(list(actions)) != checksum(actions[1:])


def test_the_checksum_leaves_out_the_encoded_form_of_evaluations() -> None:
    """The record keeps the rollouts of evaluations, which are in no ledger, without the bytes that were received."""
    received = replace(build.rollout(_lease(), 0), body=b"as it was received")
    read = event_entry(1.0, build.received("a", 1, received), []).event
    assert isinstance(read, RolloutReceived)
    assert read.rollout.body == b""
    served = [
        [ServeBatch(Step(0), replayed=False, unseen=(Unseen(RolloutId(7), PeerId("a"), Version(0), ((2, 5), 9, one)),))]
        for one in (received, read.rollout)
    ]
    assert checksum(served[0]) == checksum(served[1]) != checksum([ServeBatch(Step(0), replayed=False)])


def _lease() -> object:
    world = build.World()
    for event in (build.joined("o", role="origin"), build.joined("a"), build.announced(0), build.held("a", 0)):
        world.handle(event)
    world.handle(build.wants("a", 8))
    return world.grants["a"][0]


def _no_ledger(rollout_id: RolloutId) -> object:
    raise AssertionError(f"asked for rollout {rollout_id}")
