"""Test reports of what is held here, and what is noted of others'."""

from __future__ import annotations

from peer.relay.core.state.actions import SendAnnouncement, SendChunkList, SendHave
from peer.relay.core.state.events import (
    CancelReceived,
    EncodingKnown,
    HaveReceived,
    LinkId,
    StoreReady,
    VersionFinished,
    WantReceived,
)
from rollcast.wire.ids import Version
from tests.peer.relay.core.linked_relay import CHUNKS, LEFT, ORIGIN, OTHER, RIGHT, have, relay, told
from tests.peer.relay.relay_steps import KEY, Steps, bitmap, key_of, neighbour, plan


def test_a_want_is_answered_now_and_as_the_encoding_grows_at_a_bounded_rate() -> None:
    steps = relay_of_large_chunks()
    steps.chunk(ORIGIN, 0)
    assert steps.tell(WantReceived(LinkId(OTHER), KEY)) == [told(OTHER, 0)]
    assert steps.wait(0.2) == []
    steps.chunk(ORIGIN, 1)
    assert steps.wait(0.05) == [told(OTHER, 0, 1)]
    steps.chunk(ORIGIN, 2)
    assert steps.wait(0.05) == []
    assert steps.wait(0.06) == [told(OTHER, 0, 1, 2)]
    assert steps.tell(CancelReceived(LinkId(OTHER), KEY, "enough")) == []
    steps.chunk(ORIGIN, 3)
    assert not any(isinstance(one, SendHave) for one in steps.wait(0.2))


def relay_of_large_chunks() -> Steps:
    """Return a relay that is linked to others and is receiving chunks beside which a report is small."""
    steps = Steps()
    steps.up(ORIGIN, "origin", "origin")
    for link, name in ((LEFT, "left"), (RIGHT, "right"), (OTHER, "other")):
        steps.up(link, name)
    known = EncodingKnown(KEY, CHUNKS, 32 << 10, announced=True, listed=True)
    steps.tell(known, StoreReady(KEY, bitmap(CHUNKS)))
    return steps


def test_reports_cost_a_small_share_of_what_comes() -> None:
    steps = relay_of_large_chunks()
    for link in (LEFT, RIGHT, OTHER):
        steps.tell(WantReceived(LinkId(link), KEY))
    steps.now += 8.0  # two seconds for each of four chunks
    reports: list[SendHave] = []
    for index in range(4):
        steps.chunk(ORIGIN, index)
        reports += [one for one in steps.ticks(2.0) if isinstance(one, SendHave)]
    # 3 reports each 3 s are 2 for each chunk, of which one comes each 2 s or less often.
    assert [report.link for report in reports[:3]] == [LEFT, RIGHT, OTHER]
    assert 3 <= len(reports) <= 9
    for index in range(4, 60):
        steps.chunk(ORIGIN, index)
    assert len([one for one in steps.ticks(0.5) if isinstance(one, SendHave)]) == 3, "the last chunks are found quickly"


def test_haves_about_nothing_leave_no_trace() -> None:
    steps = relay()
    for version in range(50):
        steps.tell(HaveReceived(LinkId(OTHER), key_of(version + 2), 8, b"\xff", False))
    steps.tell(have(OTHER, 1, size=CHUNKS + 1), HaveReceived(LinkId(OTHER), KEY, 0, b"", True))
    assert steps.link(OTHER).theirs == {}


def test_completion_is_reported_to_every_link_that_is_not_complete() -> None:
    steps = relay()
    steps.tell(WantReceived(LinkId(OTHER), KEY), WantReceived(LinkId(LEFT), KEY), have(LEFT, complete=True))
    for index in range(CHUNKS):
        steps.chunk(ORIGIN, index)
    assert steps.wait(0.2) == [told(OTHER, *range(CHUNKS))]
    actions = steps.tell(VersionFinished(KEY))
    haves = [one for one in actions if isinstance(one, SendHave)]
    assert haves == [SendHave(LinkId(link), KEY, CHUNKS, b"", True) for link in (ORIGIN, LEFT, RIGHT, OTHER)]


def parent(*, lists: tuple[str, ...] = ("left",)) -> Steps:
    steps = Steps()
    steps.tell(plan(neighbour("left"), neighbour("right"), lists=lists))
    return steps


def test_children_get_announcement_and_list_as_soon_as_the_list_is_here() -> None:
    steps = parent()
    steps.up(LEFT, "left")
    steps.up(RIGHT, "right")
    assert steps.tell(EncodingKnown(KEY, CHUNKS, announced=False)) == []
    introduced = [SendAnnouncement(LinkId(LEFT), Version(1)), SendChunkList(LinkId(LEFT), KEY)]
    assert steps.list_comes(RIGHT)[1:] == introduced
    assert steps.tell(EncodingKnown(KEY, CHUNKS, announced=True, listed=True)) == []


def test_the_announcement_goes_once_for_all_encodings_of_a_version() -> None:
    steps = parent()
    steps.up(LEFT, "left")
    steps.receive(CHUNKS, key_of(1, 0))
    known = EncodingKnown(key_of(1, 1), CHUNKS, listed=True)
    assert steps.tell(known)[1:] == [SendChunkList(LinkId(LEFT), key_of(1, 1))]


def test_a_new_child_learns_of_the_newest_two() -> None:
    steps = parent()
    for version in (1, 2, 3):
        steps.hold(CHUNKS, key_of(version))
    expected = [
        one
        for version in (2, 3)
        for one in (SendAnnouncement(LinkId(LEFT), Version(version)), SendChunkList(LinkId(LEFT), key_of(version)))
    ]
    assert steps.up(LEFT, "left") == expected
