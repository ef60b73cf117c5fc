"""Test answers to what the other ends of links ask for."""

from __future__ import annotations

from dataclasses import replace

from peer.relay.core.state.actions import SendCancel, SendChunkList, SendDecline, SendHave
from peer.relay.core.state.events import EncodingKnown, LinkId, RequestReceived, WantReceived
from rollcast.wire.links.frames import NO_STRIPE
from tests.peer.relay.core.linked_relay import CHUNKS, MINE, ORIGIN, OTHER, RIGHT, credit, relay, told
from tests.peer.relay.relay_steps import CHUNK_BYTES, KEY, Steps, answer, key_of, push


def test_requests_that_would_wait_for_long_are_declined() -> None:
    steps = relay()
    for index in range(20):
        steps.chunk(ORIGIN, index, NO_STRIPE)
    steps.state.uplink.chunk_s = 0.5
    actions = steps.tell(RequestReceived(LinkId(OTHER), KEY, tuple(range(10))))
    assert actions == [SendDecline(LinkId(OTHER), KEY, tuple(range(4, 10))), answer(OTHER, 0)]


def test_where_chunks_take_long_more_requests_may_wait() -> None:
    """With one a second, all waits for seconds; a peer with a slow downlink would get nothing."""
    steps = relay()
    for index in range(20):
        steps.now += 1.0
        steps.chunk(ORIGIN, index, NO_STRIPE)
    steps.state.uplink.chunk_s = 0.5
    pace_s = steps.state.encodings[KEY].known_pace_s(steps.now)
    assert 0.9 <= pace_s <= 1.1
    actions = steps.tell(RequestReceived(LinkId(OTHER), KEY, tuple(range(20))))
    assert actions == [answer(OTHER, 0)]


def test_the_list_is_sent_at_every_request() -> None:
    steps = relay()
    for _ in range(2):
        actions = steps.tell(WantReceived(LinkId(OTHER), KEY, chunk_list=True))
        assert actions == [SendChunkList(LinkId(OTHER), KEY), told(OTHER)]


def test_a_requested_list_is_sent_when_it_arrives() -> None:
    steps = Steps()
    steps.up(OTHER, "other")
    steps.tell(EncodingKnown(KEY, CHUNKS, CHUNK_BYTES))
    assert steps.tell(WantReceived(LinkId(OTHER), KEY, chunk_list=True)) == [told(OTHER)]
    assert SendChunkList(LinkId(OTHER), KEY) in steps.list_comes(OTHER)


def test_a_want_for_an_unknown_version_is_answered_once_it_is_known() -> None:
    steps = Steps()
    steps.up(OTHER, "other")
    key = key_of(9)
    actions = steps.tell(WantReceived(LinkId(OTHER), key, chunk_list=True))
    assert actions == [SendHave(LinkId(OTHER), key, 0, b"", False)]
    known = EncodingKnown(key, 8, CHUNK_BYTES, listed=True)
    assert SendChunkList(LinkId(OTHER), key) in steps.tell(known)
    assert steps.wait(0.2)[-1] == SendHave(LinkId(OTHER), key, 8, b"\x00", False)


def test_an_old_version_that_is_not_here_is_refused() -> None:
    steps = relay()
    refusal = SendCancel(LinkId(OTHER), key_of(0), "not held here")
    assert steps.tell(WantReceived(LinkId(OTHER), key_of(0))) == [refusal]
    assert steps.tell(RequestReceived(LinkId(OTHER), key_of(0), (1, 2))) == [refusal]


def test_requested_chunks_are_sent_in_order_and_missing_ones_named() -> None:
    steps = relay()
    for index in (0, 1, 2):
        steps.chunk(ORIGIN, index)
    wanted = RequestReceived(LinkId(OTHER), KEY, (0, 2, 9, 99999))
    assert steps.tell(wanted) == [answer(OTHER, 0), told(OTHER, 0, 1, 2)]
    assert steps.sent(OTHER) == [answer(OTHER, 2)]
    assert steps.sent(OTHER) == []


def test_a_chunk_requested_again_is_sent_again() -> None:
    steps = relay("other")
    assert steps.chunk(ORIGIN, 0, MINE) == [push(OTHER, 0, MINE)]
    assert steps.sent(OTHER) == [credit(0)]
    assert steps.tell(RequestReceived(LinkId(OTHER), KEY, (0,))) == [answer(OTHER, 0)]


def test_a_flood_of_requests_is_bounded() -> None:
    steps = relay()
    for index in range(CHUNKS):
        steps.chunk(ORIGIN, index)
    for _ in range(100):
        steps.tell(RequestReceived(LinkId(OTHER), KEY, tuple(range(CHUNKS))))
    assert sum(map(len, steps.link(OTHER).pulls.values())) <= steps.state.settings.pulls_most


def test_endless_requests_are_refused_until_time_has_passed() -> None:
    steps = relay("left")
    steps.chunk(ORIGIN, 0, MINE)
    request = RequestReceived(LinkId(OTHER), KEY, (0,))
    answers = 0
    while (said := steps.tell(request)) == [answer(OTHER, 0)]:
        answers += 1
        steps.sent(OTHER)
    assert said == [SendCancel(LinkId(OTHER), KEY, "requested too often")]
    assert answers == 8 * CHUNKS + 1, "as much as eight copies, and the debt that ends it"
    steps.now += 300.0 / CHUNKS
    assert steps.tell(request) == [answer(OTHER, 0)]
    steps.sent(OTHER)
    assert steps.tell(replace(request, link=LinkId(RIGHT))) == [answer(RIGHT, 0)], "others are answered as before"


def test_a_flood_of_wants_is_bounded() -> None:
    steps = relay()
    for version in range(100):
        steps.tell(WantReceived(LinkId(OTHER), key_of(version + 2), chunk_list=True))
    assert len(steps.link(OTHER).wants) == steps.state.settings.wants_per_link_most
    asked = steps.tell(WantReceived(LinkId(OTHER), KEY, chunk_list=True))
    assert asked == [SendChunkList(LinkId(OTHER), KEY), told(OTHER)]
