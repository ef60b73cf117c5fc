"""Test who is asked what it holds: neighbours, fallbacks, mirrors and this disk, and after a refusal or a loss."""

from __future__ import annotations

import pytest

from peer.links.neighbours import EncodingKey
from peer.relay.core.state.actions import (
    Action,
    BeginStore,
    Dial,
    SendRequest,
    SendWant,
)
from peer.relay.core.state.events import (
    CancelReceived,
    DialFailed,
    EncodingKnown,
    HaveReceived,
    LinkDown,
    LinkId,
    StoreReady,
)
from tests.peer.relay.core.pulling.pull_steps import (
    CHUNKS,
    FALLBACK,
    FALLBACK_LINK,
    ORIGIN,
    A,
    B,
    has,
    peer,
    request,
    want,
)
from tests.peer.relay.relay_steps import CHUNK_BYTES, KEY, Steps, bitmap, key_of, neighbour, plan


@pytest.mark.parametrize(("chunk_bytes", "asked"), [(1 << 20, 16), (CHUNK_BYTES, CHUNKS)])
def test_the_learner_gets_a_wide_window(chunk_bytes: int, asked: int) -> None:
    steps = Steps("origin")
    steps.up(A, "learner", "learner")
    known = EncodingKnown(KEY, CHUNKS, chunk_bytes, announced=False, listed=True, holder=LinkId(A))
    assert steps.tell(known) == [BeginStore(KEY), want(A)]
    assert steps.tell(known) == [], "told twice"
    steps.tell(StoreReady(KEY, bitmap(CHUNKS)))
    assert has(steps, A, complete=True) == [request(A, *range(asked))]


def test_one_that_joins_asks_the_nearest_where_there_are_more_than_it_may_ask() -> None:
    steps = Steps()
    steps.tell(plan(*(neighbour(f"peer-{number}") for number in range(24))))
    for number in range(24):
        steps.up(number + 1, f"peer-{number}", rtt_s=0.2 if number < 12 else 0.02)
    steps.receive(CHUNKS, pushed=False)
    assert list(steps.state.encodings[KEY].sources) == [*range(13, 25), 1, 2, 3, 4]


def test_a_source_that_refuses_is_not_asked_for_a_while() -> None:
    steps = Steps()
    steps.tell(plan(neighbour("a")))
    steps.up(A, "a")
    assert steps.tell(EncodingKnown(KEY, CHUNKS, CHUNK_BYTES, listed=True))[0] == BeginStore(KEY)
    steps.tell(StoreReady(KEY, bitmap(CHUNKS)))
    assert steps.tell(CancelReceived(LinkId(A), KEY, "not held here")) == []
    assert steps.ticks(2.9) == []
    assert want(A) in steps.ticks(0.3)


def test_a_fallback_is_dialled_when_the_neighbours_do_not_help() -> None:
    steps = peer(pushed=False)
    has(steps, A), has(steps, B), has(steps, ORIGIN)
    assert steps.ticks(2.9) == []
    actions = steps.ticks(0.2)
    assert actions == [want(ORIGIN), want(A), want(B), Dial(FALLBACK)]
    assert steps.up(FALLBACK_LINK, "far", dialled=True) == [want(FALLBACK_LINK)]
    assert has(steps, FALLBACK_LINK, complete=True) == [request(FALLBACK_LINK, 0, 1, 2, 3)]


MIRROR, DISK = neighbour("mirror", "mirror", we_dial=True), neighbour("disk", "disk", we_dial=True)
FIRST = key_of(0)


def with_mirrors(key: EncodingKey, *, is_base: bool = False, pushed: bool = False) -> tuple[Steps, list[Action]]:
    """Return a peer that begins to receive an encoding, and its actions; there are a mirror and a file on this disk."""
    steps = Steps()
    steps.tell(plan(neighbour("origin", "origin"), parents=("origin",), fallbacks=(MIRROR, DISK)))
    steps.up(ORIGIN, "origin", "origin")
    steps.tell(EncodingKnown(key, CHUNKS, CHUNK_BYTES, listed=True, pushed=pushed, is_base=is_base))
    return steps, steps.tell(StoreReady(key, bitmap(CHUNKS)))


def test_a_keyframe_that_is_not_pushed_is_asked_of_mirrors_at_once() -> None:
    steps, begun = with_mirrors(KEY)
    assert Dial(MIRROR) in begun
    assert Dial(DISK) not in begun, "public weights are version 0's"
    assert SendWant(LinkId(A), KEY, False) in steps.up(A, "mirror", "mirror", dialled=True)
    for key, pushed in ((key_of(1, 1), False), (KEY, True)):
        assert Dial(MIRROR) not in with_mirrors(key, pushed=pushed)[1], "deltas are small; neighbours push a keyframe"
    assert Dial(MIRROR) in with_mirrors(KEY, pushed=True, is_base=True)[0].wait(0.5), "it was pushed long ago"


def test_what_this_disk_has_is_asked_of_no_other_source() -> None:
    steps, begun = with_mirrors(FIRST, pushed=True)
    assert Dial(DISK) in begun
    steps.up(A, "disk", "disk", dialled=True)
    steps.tell(HaveReceived(LinkId(ORIGIN), FIRST, CHUNKS, b"", True))
    asked = steps.tell(HaveReceived(LinkId(A), FIRST, CHUNKS, bitmap(CHUNKS, *range(10)), False))
    assert asked == [SendRequest(LinkId(A), FIRST, tuple(range(10)))]
    from_origin: list[int] = []
    for tick in range(60):
        for one in steps.wait(0.1):
            if isinstance(one, SendRequest) and one.link == ORIGIN:
                from_origin += one.indices
                for index in one.indices:
                    steps.chunk(ORIGIN, index, key=FIRST)
        if tick == 20:
            assert from_origin
            assert min(from_origin) >= 10
    assert 0 in from_origin, "the disk does not answer"


def test_when_a_dial_fails_the_next_one_is_asked() -> None:
    other = neighbour("other", we_dial=True)
    steps = Steps()
    steps.tell(plan(fallbacks=(FALLBACK, other)))
    assert steps.tell(EncodingKnown(KEY, CHUNKS, CHUNK_BYTES)) == [Dial(FALLBACK)]
    assert steps.tell(DialFailed(FALLBACK.peer_id, "nobody there")) == [Dial(other)]
    assert steps.tell(DialFailed(other.peer_id, "nobody there")) == []
    assert Dial(FALLBACK) in steps.ticks(0.5)


def test_requests_to_a_lost_source_go_to_others() -> None:
    steps = peer(pushed=False)
    has(steps, A, complete=True)
    has(steps, B, *range(6))
    assert steps.tell(LinkDown(LinkId(A), "gone")) == [request(B, 0, 1)]
    assert steps.tell(LinkDown(LinkId(B), "gone")) == []
