"""Test when a chunk that was not pushed is requested."""

from __future__ import annotations

import pytest

from peer.relay.core.pulling.late import stalled_after_s
from peer.relay.core.state.actions import (
    Action,
    BeginStore,
    SendHave,
    SendRequest,
)
from peer.relay.core.state.events import (
    EncodingKnown,
    HaveReceived,
    LinkId,
    StoreReady,
)
from tests.peer.relay.core.pulling.pull_steps import (
    CHUNKS,
    ORIGIN,
    STRIPE,
    A,
    B,
    has,
    peer,
    push_all,
    request,
    want,
)
from tests.peer.relay.relay_steps import CHUNK_BYTES, KEY, Steps, bitmap, key_of, neighbour, plan


def test_what_was_never_pushed_is_requested_once_a_source_holds_everything() -> None:
    """Chunks usually come 2 s late here, so for 3 s the missing ones may still be on their way."""
    steps = peer()
    push_all(steps, [*range(1, 96)])
    steps.now += 2.0
    steps.chunk(B, 0, STRIPE)
    has(steps, A, *range(96), complete=False)
    assert not [one for one in steps.ticks(0.6) if isinstance(one, SendRequest)]
    assert request(A, 96, 97, 98, 99) in has(steps, A, complete=True)


def test_nothing_is_requested_while_chunks_are_pushed() -> None:
    steps = peer()
    for start in range(0, CHUNKS - 10, 10):
        assert push_all(steps, range(start, start + 10)) + steps.wait(0.0) == []


def test_a_chunk_far_behind_the_newest_is_requested() -> None:
    steps = peer()
    push_all(steps, [index for index in range(45) if index != 7])
    assert steps.wait(0.0) == []
    push_all(steps, range(45, 60))
    assert steps.wait(0.0) == [want(ORIGIN), want(A), want(B)]
    assert has(steps, A, 7, 99) == [request(A, 7)]
    assert steps.chunk(A, 7) == []


def test_a_slow_parent_does_not_teach_patience() -> None:
    """Chunk 1 came 20 s late; nevertheless chunk 3 is requested a second after newer ones came."""
    steps = peer()
    push_all(steps, [0, 2], every_s=0.05)
    steps.now += 20.0
    steps.chunk(A, 1, STRIPE)
    assert steps.state.encodings[KEY].lag_s > 15.0
    push_all(steps, [*range(4, 40)])
    has(steps, B, 3)
    actions = steps.ticks(30.0)
    assert want(B) in actions


def test_chunks_that_a_peer_has_all_of_are_requested_although_others_are_still_pushed() -> None:
    steps = peer()
    push_all(steps, [*range(94)])
    steps.state.encodings[KEY].lag_s = 3.0
    steps.wait(0.0)
    has(steps, A, complete=True)
    asked: list[Action] = []
    for index in range(94, 98):
        steps.chunk(B, index, STRIPE)
        asked += steps.ticks(0.15)
    assert any(isinstance(one, SendRequest) for one in asked)


def test_chunks_that_come_out_of_order_get_more_time() -> None:
    steps = peer(400)
    order = [index for start in range(0, 300, 60) for index in (*range(start + 1, start + 60), start)]
    push_all(steps, order)
    push_all(steps, range(301, 360))
    assert steps.wait(0.0) == [], "chunk 300 is no later than chunks 60 and 120 were"
    push_all(steps, range(360, 399))
    assert steps.wait(0.0) != []


def test_without_pushes_for_a_while_the_rest_is_requested() -> None:
    steps = peer()
    push_all(steps, range(60))
    assert steps.ticks(0.35) == []
    assert steps.ticks(0.1) == [want(ORIGIN), want(A), want(B)]
    assert has(steps, B, *range(80)) == [request(B, 60, 61, 62, 63)]


def test_a_joiner_without_pushes_keeps_requesting() -> None:
    steps = peer()
    steps.ticks(0.5)
    has(steps, A, complete=True)
    steps.now += 0.02
    assert steps.chunk(A, 0) == [request(A, 4, 5)]
    steps.now += 0.02
    assert steps.chunk(A, 1) == [request(A, 6)]


def test_near_the_end_late_chunks_are_requested_at_once() -> None:
    steps = peer()
    push_all(steps, [index for index in range(CHUNKS) if index != 98], every_s=0.001)
    assert steps.wait(0.06) == [want(ORIGIN), want(A), want(B)]


def test_near_the_end_a_chunk_gets_the_time_that_chunks_usually_take() -> None:
    """Check a peer deep in a tree: a request sooner than that would bring what is on its way already."""
    steps = peer()
    push_all(steps, [index for index in range(CHUNKS) if index != 98], every_s=0.001)
    steps.state.encodings[KEY].lag_s = 0.3
    assert steps.wait(0.1) == [want(ORIGIN), want(A), want(B)]
    assert has(steps, A, *range(CHUNKS - 1)) == []
    assert steps.wait(0.15) == []
    assert steps.wait(0.06) == [request(A, 98)]


def test_a_peer_without_parents_requests_at_once() -> None:
    steps = Steps()
    steps.tell(plan(neighbour("a")))
    steps.up(A, "a")
    assert steps.tell(EncodingKnown(KEY, CHUNKS, CHUNK_BYTES)) == [want(A, chunk_list=True)]
    assert steps.list_comes(A) == [BeginStore(KEY)]
    has(steps, A, complete=True)
    assert steps.tell(StoreReady(KEY, bitmap(CHUNKS)))[-1] == request(A, 0, 1, 2, 3)


def test_chunks_found_on_disk_are_neither_sent_nor_requested() -> None:
    steps = Steps()
    steps.tell(plan(neighbour("a")))
    steps.up(A, "a")
    steps.tell(EncodingKnown(KEY, CHUNKS, CHUNK_BYTES))
    steps.list_comes(A)
    has(steps, A, complete=True)
    have = SendHave(LinkId(A), KEY, CHUNKS, bitmap(CHUNKS, 0, 1), False)
    assert steps.tell(StoreReady(KEY, bitmap(CHUNKS, 0, 1))) == [have, request(A, 2, 3, 4, 5)]


def test_a_keyframe_is_requested_from_an_own_start_and_a_delta_in_order() -> None:
    steps = Steps(pull_from=0.98)
    steps.tell(plan(neighbour("a")))
    steps.up(A, "a")
    steps.receive(CHUNKS)
    assert has(steps, A, complete=True) == [request(A, 98, 99, 0, 1)]
    delta = key_of(1, 1)
    steps.receive(CHUNKS, delta)
    complete = HaveReceived(LinkId(A), delta, CHUNKS, b"", True)
    assert steps.tell(complete) == [SendRequest(LinkId(A), delta, (0, 1, 2, 3))]


def test_chunks_found_on_disk_are_not_requested() -> None:
    steps = peer(pushed=False, found=range(90))
    assert has(steps, A, complete=True) == [request(A, 90, 91, 92, 93)]


def test_before_the_announcement_no_peer_is_asked() -> None:
    steps = Steps()
    steps.tell(plan(neighbour("a")))
    steps.up(A, "a")
    steps.receive(CHUNKS, announced=False)
    assert steps.ticks(5.0) == []
    assert steps.chunk(A, 3, STRIPE) == []
    assert steps.tell(EncodingKnown(KEY, CHUNKS, CHUNK_BYTES)) == [want(A)]


def test_chunks_beyond_the_newest_are_requested_however_late_chunks_usually_are() -> None:
    """Check a slow downlink: chunks come seconds late, then none come at all."""
    steps = peer()
    push_all(steps, [*range(1, 50), 0], every_s=0.5)
    asked = steps.ticks(4.0)
    assert want(A) in asked
    assert has(steps, A, complete=True) == [request(A, 50, 51, 52, 53)]
    for _ in range(20):
        steps.ticks(1.0)
        source = steps.state.encodings[KEY].sources.get(LinkId(A))
        for index in list(source.requested) if source else []:
            steps.chunk(A, index)
    assert steps.state.encodings[KEY].phase == "finishing"


def test_where_chunks_take_long_a_source_may_be_silent_for_longer() -> None:
    """A chunk of a megabyte takes seconds through a slow downlink that several sources share."""
    steps = peer(pushed=False)
    has(steps, A, chunks=CHUNKS, complete=True)
    encoding = steps.state.encodings[KEY]
    assert stalled_after_s(steps.state, encoding, steps.now) == 3.0
    for index in range(20):
        steps.now += 0.5
        steps.chunk(A, index)
    assert stalled_after_s(steps.state, encoding, steps.now) == pytest.approx(8.0)
    for index in range(20, 60):
        steps.now += 2.0
        steps.chunk(A, index)
    assert stalled_after_s(steps.state, encoding, steps.now) == 12.0, "at most"
