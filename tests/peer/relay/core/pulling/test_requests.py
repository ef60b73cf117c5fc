"""Test which chunks are requested of which source, and how many at once."""

from __future__ import annotations

from peer.relay.core.state.actions import (
    SendGot,
    SendRequest,
)
from peer.relay.core.state.events import (
    DeclineReceived,
    LinkId,
)
from tests.peer.relay.core.pulling.pull_steps import (
    CHUNKS,
    NEAR,
    ORIGIN,
    STRIPE,
    A,
    B,
    C,
    has,
    peer,
    push_all,
    request,
    want,
)
from tests.peer.relay.relay_steps import KEY, Steps, neighbour, plan


def test_near_sources_come_first_and_the_origin_last() -> None:
    steps = peer(12, pushed=False)
    steps.tell(plan(neighbour("origin", "origin"), neighbour("a"), NEAR, plan_id=2))
    assert steps.up(C, "c") == [want(C)]
    for link in (ORIGIN, A, C):
        has(steps, link, chunks=12)
    steps.chunk(B, 0, STRIPE)
    has_all = [has(steps, link, chunks=12, complete=True) for link in (C, A, ORIGIN)]
    assert has_all == [[request(C, 1, 2, 3, 4)], [request(A, 5, 6, 7, 8)], [request(ORIGIN, 9, 10, 11)]]


def joiner(*holders: tuple[int, str, float]) -> Steps:
    """Return a peer that receives a keyframe which nobody pushes, with links to holders at these round trips."""
    steps = Steps()
    steps.tell(plan(neighbour("origin", "origin"), neighbour("a"), neighbour("b"), NEAR))
    for link, name, rtt_s in holders:
        steps.up(link, name, "origin" if name == "origin" else "peer", rtt_s=rtt_s)
    steps.receive(CHUNKS, pushed=False)
    return steps


def test_a_peer_that_joins_asks_holders_with_short_round_trips_and_then_farther_ones() -> None:
    steps = joiner((ORIGIN, "origin", 0.001), (A, "a", 0.08), (B, "b", 0.02))
    for link in (ORIGIN, A, B):
        has(steps, link, complete=True)
        steps.tell(DeclineReceived(LinkId(link), KEY, tuple(range(CHUNKS))))
    asked = [one.link for one in steps.ticks(0.4) if isinstance(one, SendRequest)]
    assert asked == [B], "how fast the nearest holder is, is not known yet"
    asked = []
    for _ in range(45):  # it answers, slowly
        open_requests = list(steps.state.encodings[KEY].sources[LinkId(B)].requested)
        steps.now += 0.25
        asked += [one.link for one in steps.chunk(B, open_requests[0]) if isinstance(one, SendRequest)]
    assert [link for place, link in enumerate(asked) if link not in asked[:place]] == [B, A]


def test_a_peer_that_joins_at_a_site_with_a_full_copy_asks_no_other_site() -> None:
    steps = joiner((ORIGIN, "origin", 0.001), (A, "a", 0.08), (C, "c", 0.0004))
    assert has(steps, A, complete=True) == [request(A, 0, 1, 2, 3)]
    assert has(steps, C, complete=True) == [request(C, 4, 5, 6, 7)]
    steps.chunk(A, 0)
    for index in range(1, 4):
        assert all(not isinstance(one, SendRequest) for one in steps.chunk(A, index))
    assert has(steps, ORIGIN, complete=True) == []
    assert steps.chunk(C, 4) == [request(C, 8, 9)]
    steps.ticks(3.2)
    assert A in steps.state.encodings[KEY].sources
    assert steps.state.encodings[KEY].sources[LinkId(A)].requested, "the holder nearby fell silent"


def test_each_chunk_is_asked_of_one_and_a_source_has_no_more_than_its_window() -> None:
    steps = peer(pushed=False)
    has(steps, A, complete=True)
    assert has(steps, B, *range(6)) == [request(B, 4, 5)]
    steps.now += 0.01
    assert steps.chunk(A, 0) == [request(A, 6, 7)]


def test_requests_are_shared_in_proportion_to_what_sources_answer_a_second() -> None:
    steps = peer(6, pushed=False)
    assert has(steps, A, 0, chunks=6) == [request(A, 0)]
    assert has(steps, B, 1, chunks=6) == [request(B, 1)]
    steps.now += 0.05
    steps.chunk(A, 0)
    steps.now += 0.1  # B takes three times as long
    steps.chunk(B, 1)
    steps.state.encodings[KEY].sources[LinkId(B)].claimed = steps.state.encodings[KEY].have.bits_of(range(2, 6))
    assert has(steps, A, *range(2, 6), chunks=6) == [request(A, 2, 3, 4), request(B, 5)]


def test_a_source_that_declines_is_spared_for_a_moment_and_others_are_asked() -> None:
    steps = peer(4, pushed=False)
    assert has(steps, A, *range(4), chunks=4) == [request(A, 0, 1, 2, 3)]
    assert has(steps, B, *range(4), chunks=4) == []
    assert steps.tell(DeclineReceived(LinkId(A), KEY, (2, 3))) == [request(B, 2, 3)]
    assert steps.tell(DeclineReceived(LinkId(B), KEY, (2, 3))) == []
    assert steps.wait(0.2) == []
    assert steps.wait(0.2) == [request(B, 2, 3)], "A has two other requests open"


def test_a_source_that_declines_again_is_spared_for_longer_until_it_answers() -> None:
    steps = peer(40, pushed=False)
    for index in range(4, 20):
        steps.now += 0.3  # so slow that a source is spared for up to 2.4 s
        steps.chunk(B, index)
    assert has(steps, A, *range(4), chunks=40) == [request(A, 0, 1, 2, 3)]
    for spared_s in (0.3, 0.6, 1.2):
        assert steps.tell(DeclineReceived(LinkId(A), KEY, (0, 1, 2, 3))) == []
        assert steps.ticks(spared_s - 0.1) == []
        assert steps.wait(0.15) == [request(A, 0, 1, 2, 3)]
    steps.chunk(A, 0)
    steps.tell(DeclineReceived(LinkId(A), KEY, (1, 2, 3)))
    assert steps.ticks(0.2) == []
    assert steps.wait(0.3) == [request(A, 1, 2, 3)]


def test_sources_that_declined_are_asked_again_one_for_each_chunk_that_comes() -> None:
    steps = peer(40, pushed=False)
    for index in range(4, 20):
        steps.now += 1.0
        steps.chunk(B, index)
    has(steps, A, *range(4), chunks=40)
    has(steps, B, *range(4), chunks=40)
    steps.tell(DeclineReceived(LinkId(A), KEY, (0, 1, 2, 3)))
    steps.tell(DeclineReceived(LinkId(B), KEY, (0, 1, 2, 3)))
    asked = [one.link for _ in range(40) for one in steps.ticks(0.05) if isinstance(one, SendRequest)]
    assert len(asked) == 2, "both could be asked again after 0.3 s"
    assert set(asked) == {A, B}


def test_a_source_is_not_spared_for_longer_than_some_chunks_take() -> None:
    steps = peer(200, pushed=False)
    assert has(steps, A, *range(4), chunks=200) == [request(A, 0, 1, 2, 3)]
    for index in range(4, 150):
        steps.chunk(B, index)
    for _ in range(3):
        assert steps.tell(DeclineReceived(LinkId(A), KEY, (0, 1, 2, 3))) == []
        assert request(A, 0, 1, 2, 3) in steps.ticks(0.4)


def test_a_chunk_that_came_is_not_sent_again_by_those_from_which_it_was_expected() -> None:
    steps = peer(2, pushed=False)
    has(steps, A, chunks=2, complete=True)
    has(steps, B, chunks=2, complete=True)
    steps.wait(0.6)
    assert SendGot(LinkId(A), KEY, (0,)) in steps.chunk(B, 0)


def test_parents_that_would_still_push_a_requested_chunk_are_told() -> None:
    steps = peer()
    push_all(steps, [0, 2, 3])
    steps.ticks(1.0)
    has(steps, A, 1)
    steps.chunk(A, 1)
    told = [one.link for one in steps.wait(0.05) if isinstance(one, SendGot)]
    assert told == [ORIGIN, B]
