"""Test keyframes of states computed here: cut up when a peer asks, spared while a peer fetches them."""

from __future__ import annotations

from peer.relay.core.catch_up import spared
from peer.relay.core.state.actions import Action, ListChunks, SendCancel, SendChunkList, SendHave
from peer.relay.core.state.events import (
    BroadcastStarted,
    CancelReceived,
    HaveReceived,
    KeyframeMade,
    LinkDown,
    LinkId,
    RequestReceived,
    VersionsRemoved,
    WantReceived,
)
from tests.peer.relay.relay_steps import KEY, Steps, answer, key_of, neighbour, plan

A, B = 1, 2  # links
CHUNKS = 3


def linked() -> Steps:
    steps = Steps()
    steps.tell(plan(neighbour("a"), neighbour("b")))
    steps.up(A, "a")
    steps.up(B, "b")
    return steps


def want(steps: Steps, link: int, version: int) -> list[Action]:
    return steps.tell(WantReceived(LinkId(link), key_of(version), chunk_list=True))


def nothing_yet(link: int, version: int) -> SendHave:
    return SendHave(LinkId(link), key_of(version), 0, b"", False)


def served(link: int, version: int) -> list[Action]:
    return [SendChunkList(LinkId(link), key_of(version)), SendHave(LinkId(link), key_of(version), CHUNKS, b"", True)]


# ---------------------------------------------------------------- cutting up


def test_a_computed_keyframe_is_cut_up_once_a_peer_asks() -> None:
    steps = linked()
    assert steps.tell(KeyframeMade(KEY)) == []
    assert want(steps, A, 1) == [ListChunks(KEY), nothing_yet(A, 1)]
    assert steps.hold(CHUNKS) == served(A, 1)
    assert want(steps, B, 1) == served(B, 1)


def test_a_request_before_the_state_was_computed_is_answered_too() -> None:
    steps = linked()
    assert want(steps, A, 1) == [nothing_yet(A, 1)]
    assert steps.tell(KeyframeMade(KEY)) == [ListChunks(KEY)]
    assert steps.hold(CHUNKS) == served(A, 1)


def test_a_computed_keyframe_is_served_although_newer_versions_are_held() -> None:
    steps = linked()
    steps.tell(KeyframeMade(KEY))
    steps.hold(CHUNKS, key_of(5, 1))
    assert want(steps, A, 1) == [ListChunks(KEY), nothing_yet(A, 1)]
    assert want(steps, A, 2) == [SendCancel(LinkId(A), key_of(2), "not held here")]


def test_a_peer_that_waits_for_a_removed_keyframe_is_notified() -> None:
    steps = linked()
    steps.tell(KeyframeMade(KEY))
    want(steps, A, 1)
    assert steps.tell(VersionsRemoved((KEY,))) == [SendCancel(LinkId(A), KEY, "no longer kept")]
    steps.hold(CHUNKS, key_of(2))
    assert want(steps, A, 1) == [SendCancel(LinkId(A), KEY, "not held here")]


def test_recorded_states_are_bounded() -> None:
    steps = linked()
    for version in range(1, 101):
        steps.tell(KeyframeMade(key_of(version)))
    assert len(steps.state.made) < 100
    assert key_of(100) in steps.state.made


# ---------------------------------------------------------------- sparing


def test_a_keyframe_is_spared_while_a_peer_fetches_it() -> None:
    steps = linked()
    steps.hold(CHUNKS)
    assert spared(steps.state) == frozenset()
    want(steps, A, 1)
    steps.ticks(8.0)
    assert steps.tell(RequestReceived(LinkId(A), KEY, (0,))) == [answer(A, 0)]
    steps.ticks(8.0)
    assert spared(steps.state) == {KEY}
    steps.ticks(3.0)
    assert spared(steps.state) == frozenset(), "who asks for nothing for so long has gone elsewhere"


def test_a_keyframe_is_spared_before_it_is_cut_up() -> None:
    steps = linked()
    steps.tell(KeyframeMade(KEY))
    want(steps, A, 1)
    assert spared(steps.state) == {KEY}


def test_a_peer_that_is_complete_or_stopped_or_lost_spares_no_keyframe() -> None:
    for ends in (
        HaveReceived(LinkId(A), KEY, CHUNKS, b"", True),
        CancelReceived(LinkId(A), KEY, "a newer version is available"),
        LinkDown(LinkId(A), "gone"),
    ):
        steps = linked()
        steps.hold(CHUNKS)
        want(steps, A, 1)
        steps.tell(ends)
        assert spared(steps.state) == frozenset()


def test_a_keyframe_is_spared_while_it_is_broadcast() -> None:
    steps = Steps("origin")
    steps.tell(plan(neighbour("a"), stripes={1: ["a"]}))
    steps.up(A, "a")
    steps.hold(40)
    steps.tell(BroadcastStarted(KEY))
    assert spared(steps.state) == {KEY}
    steps.tell(HaveReceived(LinkId(A), KEY, 40, b"", True))
    steps.sent(A)
    assert spared(steps.state) == frozenset()


def test_spared_keyframes_are_bounded_to_the_oldest() -> None:
    steps = linked()
    for version in range(1, 6):
        steps.hold(CHUNKS, key_of(version))
        want(steps, A, version)
    steps.hold(CHUNKS, key_of(6, 1))
    steps.tell(WantReceived(LinkId(B), key_of(6, 1)))
    assert spared(steps.state) == {key_of(1), key_of(2)}
