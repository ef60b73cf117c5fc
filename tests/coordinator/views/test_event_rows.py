"""Test the display of events: rows, phrases, and the history of one worker or rollout."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.ledger.event_archive import write_segment
from coordinator.ledger.store import StoryEntry
from coordinator.stores.sqlite import Ledger
from coordinator.views.event_rows import StoryRows, Wanted
from coordinator.views.explain import explain
from coordinator.views.phrases import duration, members_in_words, sentence
from rollcast.runtime.errors import MalformedMessage, RunFolderError
from rollcast.runtime.run_folder import RunFolder
from tests.coordinator.views.viewed import core


@pytest.fixture
async def rows(tmp_path: Path) -> AsyncIterator[StoryRows]:
    folder = RunFolder(tmp_path)
    ledger = Ledger.open(folder.ledger)
    events = [
        ("peer_joined", "12D3a", "ada as peer", "peer 12D3a"),
        ("peer_joined", "12D3b", "bob as peer", "peer 12D3b"),
        ("standby", "12D3a", "off: too dear", "plan 1"),
        ("penalised", "12D3b", "sent a corrupt CHUNK", "peer 12D3a"),
        ("activation_planned", "plan 2", "1 on", "plan 2"),
    ]
    for kind, subject, detail, cause in events:
        await ledger.record_event(kind, subject, detail, cause=cause)
    yield StoryRows(folder)
    await ledger.close()


async def test_the_newest_come_first_with_the_names_of_peers(rows: StoryRows) -> None:
    page = rows.page(Wanted())
    assert [(one.id, one.kind, one.name) for one in page.events] == [
        (5, "activation_planned", ""),
        (4, "penalised", "bob"),
        (3, "standby", "ada"),
        (2, "peer_joined", "bob"),
        (1, "peer_joined", "ada"),
    ]
    assert page.kinds == ("activation_planned", "peer_joined", "penalised", "standby")
    assert page.next_before is None


async def test_peers_have_the_names_under_which_they_joined(rows: StoryRows) -> None:
    assert rows.names({"12D3b", "12D3x"}) == {"12D3b": "bob"}


async def test_waits_of_every_step_are_left_out_unless_asked_for(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    ledger = Ledger.open(folder.ledger)
    for kind in ("learner_waited", "peer_left", "learner_waited"):
        await ledger.record_event(kind, "step 1", "", cause="step 1")
    rows = StoryRows(folder)
    assert [one.kind for one in rows.page(Wanted(without_routine=True)).events] == ["peer_left"]
    assert len(rows.page(Wanted()).events) == 3
    await ledger.close()


async def test_pages_follow_each_other(rows: StoryRows) -> None:
    first = rows.page(Wanted(limit=2))
    assert ([one.id for one in first.events], first.next_before) == ([5, 4], 4)
    second = rows.page(Wanted(limit=3, before=4))
    assert ([one.id for one in second.events], second.next_before) == ([3, 2, 1], None)


async def test_filters_are_combined(rows: StoryRows) -> None:
    def ids(**wanted: object) -> list[int]:
        return [one.id for one in rows.page(Wanted(**wanted)).events]  # type: ignore[arg-type]

    assert ids(kinds=("standby", "penalised")) == [4, 3]
    assert ids(subject="12D3a") == ids(subject="ada") == [3, 1]
    assert ids(text="corrupt chunk") == [4]
    assert ids(text="12d3a", kinds=("penalised",)) == [4]
    assert ids(subject="nobody") == []
    assert ids(text="%") == []
    assert ids(subject="' OR 1=1 --") == []


async def test_one_event_and_those_after_it(rows: StoryRows) -> None:
    one = rows.one(3)
    assert one is not None
    assert (one.detail, one.cause) == ("off: too dear", "plan 1")
    assert rows.one(99) is None
    assert [after.id for after in rows.after(3, 10)] == [4, 5]
    assert rows.newest_id() == 5


async def test_archived_events_are_found_too(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    ledger = Ledger.open(folder.ledger)
    for number in range(1, 7):
        await ledger.record_event("standby" if number % 2 else "pinned", "x", f"number {number}", cause="test")
    kinds = ("pinned", "standby")
    old = [StoryEntry(one, float(one), kinds[one % 2], "x", f"number {one}", "test") for one in range(1, 5)]
    write_segment(folder.events, old[:2], 1 << 20)
    write_segment(folder.events, old[2:], 1 << 20)
    entries = await ledger.oldest_events(4, kept=2)
    assert [one.order for one in entries] == [1, 2, 3, 4]
    await ledger.delete_events(4)
    rows = StoryRows(folder)
    assert [one.id for one in rows.page(Wanted(limit=4)).events] == [6, 5, 4, 3]
    assert [one.id for one in rows.page(Wanted(kinds=("standby",))).events] == [5, 3, 1]
    assert [one.id for one in rows.page(Wanted(before=4, limit=2)).events] == [3, 2]
    archived = rows.one(2)
    assert archived is not None
    assert archived.detail == "number 2"
    await ledger.close()


def test_without_a_ledger_there_is_nothing_to_read(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="holds no run"):
        StoryRows(RunFolder(tmp_path)).newest_id()


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-1.0, "0.0 s"),
        (0.44, "0.4 s"),
        (9.96, "10 s"),
        (59.4, "59 s"),
        (59.6, "1 min"),
        (200, "3 min 20 s"),
        (3600, "1 h"),
        (7500, "2 h 5 min"),
        (273_600, "3 d 4 h"),
    ],
)
def test_durations_have_a_suitable_unit(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@given(st.floats(0.0, 1e9))
def test_any_duration_is_short(seconds: float) -> None:
    assert len(duration(seconds)) < 20


def test_members_are_the_subject_of_a_sentence() -> None:
    members = list(core("a", "b").state.members)[1:]
    assert members_in_words(members) == "2 workers are"
    assert members_in_words(members[:1]) == "a is"


def test_a_wait_is_one_sentence() -> None:
    text = sentence("the learner (step 3)", 12.0, "it asks for the batch of step 3")
    assert text == "The run has waited 12 s for the learner (step 3). Next: it asks for the batch of step 3."
    assert sentence("", 0.0, "the run is over: finished") == "The run is over: finished."


async def test_an_event_is_explained_with_the_events_before_it(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    ledger = Ledger.open(folder.ledger)
    await ledger.record_version(0, 3, b"announcement")  # type: ignore[arg-type]
    await ledger.record_event("peer_joined", "12D3a", "ada as peer", cause="peer 12D3a")
    await ledger.record_event("other", "12D3b", "nothing to do with it", cause="peer 12D3b")
    await ledger.record_event("standby", "12D3a", "off: too dear", cause="version 3")
    found = explain(folder, "event", "3")
    assert found.title == "event 3: standby"
    assert found.facts["name"] == "ada"
    assert [one.text for one in found.lines] == [
        "announced in epoch 0",
        "joined as peer",
        "standby (ada): off: too dear",
    ]
    peer = explain(folder, "peer", "ada")
    assert peer.title == "peer ada"
    assert "standby (12D3a): off: too dear (because of version 3)" in [one.text for one in peer.lines]
    await ledger.close()


@pytest.mark.parametrize(
    ("of", "words"), [("event", "9"), ("event", "x"), ("event", "9" * 40), ("lease", "1"), ("peer", "a b/c")]
)
async def test_unknown_subjects_are_rejected(tmp_path: Path, of: str, words: str) -> None:
    folder = RunFolder(tmp_path)
    ledger = Ledger.open(folder.ledger)
    with pytest.raises(MalformedMessage):
        explain(folder, of, words)  # type: ignore[arg-type]
    await ledger.close()
