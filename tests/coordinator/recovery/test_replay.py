from __future__ import annotations

import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from coordinator.core.events.actions import Action, StoreRollout
from coordinator.core.events.events import Event, Tick
from coordinator.core.events.reach_events import DialBackEnded, PunchEnded, PunchRequested, ReachabilityTold
from coordinator.core.flight_format import FORMAT, Entry, EventEntry, Gap, Head, event_entry, frame, pack
from coordinator.recovery.replay import incarnations, replay
from coordinator.shell.flight_recorder import segment_path
from rollcast.runtime.errors import RunFolderError, StoreError
from rollcast.runtime.run_folder import RunFolder
from rollcast.wire.ids import PeerId
from rollcast.wire.rollout_messages import rollout_to_pb
from tests.coordinator import core_world as build


def a_recorded_run(folder: RunFolder, *, forget_rollouts: bool = False) -> tuple[list[Entry], dict[str, object]]:
    """Record a small run with its rollouts in the ledger; return its entries and its final status."""
    folder.record.mkdir(parents=True)
    world = build.World()
    entries: list[Entry] = [Head(FORMAT, "rollcast", 1.0, 0.0, world.core.settings, None)]
    connection = sqlite3.connect(folder.ledger)
    connection.execute("CREATE TABLE rollouts (rollout_id INTEGER PRIMARY KEY, body BLOB)")
    handle = world.core.handle

    def recording(event: Event, now: float) -> list[Action]:
        actions = handle(event, now)
        entries.append(event_entry(now, event, actions))
        for action in actions:
            if isinstance(action, StoreRollout) and not forget_rollouts:
                body = rollout_to_pb(action.rollout).SerializeToString()
                connection.execute("INSERT INTO rollouts VALUES (?, ?)", (action.rollout_id, body))
        return actions

    world.core.handle = recording  # type: ignore[method-assign]
    for event in (build.joined("o", role="origin"), build.joined("a"), build.announced(0), build.held("a", 0)):
        world.handle(event)
    world.handle(replace(build.joined("b", address=""), host="192.0.2.7"))
    world.handle(replace(build.joined("c", address=""), host="192.0.2.8"))
    for name, host in (("b", "192.0.2.7"), ("c", "192.0.2.8")):
        told_circuits = ("/ip4/192.0.2.1/tcp/4001",)
        world.handle(
            ReachabilityTold(
                PeerId(name),
                "port-restricted",
                f"{host}:7000",
                told_circuits,
                advertise="h:1",
                local_address="192.168.1.2:1",
            )
        )
    world.handle(PunchRequested(PeerId("c"), PeerId("b")))
    world.handle(PunchEnded(PeerId("c"), 1, False, 3.0))
    world.handle(DialBackEnded(PeerId(""), 1, False, "no answer"))
    for _ in range(3):
        world.now += 1.0
        world.handle(Tick())
    world.handle(build.wants("a", 8))
    for number, lease in enumerate(world.grants["a"], start=1):
        world.now += 1.0
        world.handle(build.received("a", number, build.rollout(lease, lease.slots[0].sample_index)))
    connection.commit()
    connection.close()
    return entries, world.core.status(world.now).to_json()


def write(folder: RunFolder, entries: list[Entry], incarnation: int = 1) -> None:
    segment_path(folder.record, incarnation, 0).write_bytes(frame([pack(entry) for entry in entries]))


def test_the_same_events_reach_the_same_state(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    entries, status = a_recorded_run(folder)
    write(folder, entries)
    replayed = replay(folder, 1)
    assert replayed.identical
    assert replayed.events == len(entries) - 1
    assert replayed.status == status
    assert incarnations(folder.record) == [1]


def test_first_different_decision_is_named(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    entries, _ = a_recorded_run(folder)
    third = entries[3]
    assert isinstance(third, EventEntry)
    write(folder, [*entries[:3], replace(third, actions_crc=third.actions_crc ^ 1), *entries[4:]])
    replayed = replay(folder, 1)
    assert not replayed.identical
    assert replayed.difference.startswith("event 3, PromptsSupplied")


def test_gap_ends_the_replay_and_is_reported(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    entries, _ = a_recorded_run(folder)
    write(folder, [*entries[:4], Gap(7), *entries[4:]])
    replayed = replay(folder, 1)
    assert replayed.events == 3
    assert replayed.incomplete == "7 events were left out after event 3: the disk did not keep up"


def test_a_record_without_its_beginning_is_refused(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    entries, _ = a_recorded_run(folder)
    write(folder, entries[1:])
    with pytest.raises(RunFolderError, match="no beginning"):
        replay(folder, 1)
    with pytest.raises(RunFolderError, match="no record of life 2") as absent:
        replay(folder, 2)
    assert absent.value.fix == "pass --life 1, or leave --life out for the newest"


def test_another_format_is_refused(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    entries, _ = a_recorded_run(folder)
    head = entries[0]
    assert isinstance(head, Head)
    write(folder, [replace(head, format=FORMAT + 1), *entries[1:]])
    with pytest.raises(RunFolderError, match="cannot read the record") as refused:
        replay(folder, 1)
    assert refused.value.cause == f"its format is {FORMAT + 1}, and this release reads {FORMAT}"


def test_a_rollout_that_was_compacted_is_an_error(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    entries, _ = a_recorded_run(folder, forget_rollouts=True)
    write(folder, entries)
    with pytest.raises(StoreError, match="no longer in the ledger"):
        replay(folder, 1)
