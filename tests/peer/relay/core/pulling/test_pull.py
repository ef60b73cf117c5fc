"""Test how an encoding without its list, or with sources that do not deliver, is pulled to its end."""

from __future__ import annotations

from peer.relay.core.state.actions import (
    Action,
    AnnounceHeld,
    Dial,
    FinishVersion,
    SendCancel,
    SendHave,
    SendRequest,
    SendWant,
)
from peer.relay.core.state.chunk_set import ChunkSet
from peer.relay.core.state.events import (
    CancelReceived,
    EncodingKnown,
    HaveReceived,
    LinkId,
    VersionFinished,
)
from peer.relay.core.state.window import ServiceWindow
from rollcast.wire.ids import PeerId
from tests.peer.relay.core.pulling.pull_steps import (
    CHUNKS,
    FALLBACK,
    FALLBACK_LINK,
    ORIGIN,
    A,
    B,
    C,
    has,
    peer,
    request,
    want,
)
from tests.peer.relay.relay_steps import CHUNK_BYTES, KEY, Steps, neighbour, plan


def test_a_missing_list_is_requested_from_one_source_at_a_time() -> None:
    steps = peer()
    steps = Steps()
    steps.tell(plan(neighbour("a"), neighbour("b"), parents=("a",)))
    steps.up(A, "a")
    steps.up(B, "b")
    assert steps.tell(EncodingKnown(KEY, CHUNKS, CHUNK_BYTES)) == []
    assert steps.ticks(0.45) == []
    assert steps.ticks(0.1) == [want(A, chunk_list=True)]
    assert steps.ticks(2.9) == []
    assert steps.ticks(0.2) == [want(B, chunk_list=True)]


def test_a_source_without_the_list_is_asked_again() -> None:
    steps = Steps()
    steps.tell(plan(neighbour("a")))
    steps.up(A, "a")
    assert steps.tell(EncodingKnown(KEY, CHUNKS, CHUNK_BYTES)) == [want(A, chunk_list=True)]
    has(steps, A)
    assert steps.ticks(6.5) == [want(A, chunk_list=True)] * 2


def test_a_chunk_that_a_source_does_not_send_is_asked_of_another_as_well() -> None:
    steps = peer(2, pushed=False)
    has(steps, A, chunks=2, complete=True)
    has(steps, B, chunks=2, complete=True)
    assert steps.wait(0.3) == []
    assert steps.wait(0.2) == [request(B, 0, 1)]
    assert steps.ticks(2.0) == [], "every source was asked"
    assert steps.state.counters.chunks_hedged == 2
    steps.chunk(B, 0)
    assert FinishVersion(KEY) in steps.chunk(B, 1)


def test_a_trickle_from_one_source_does_not_hide_the_silence_of_another() -> None:
    steps = peer(pushed=False)
    has(steps, A, complete=True)
    has(steps, B, *range(50))
    actions: list[Action] = []
    for index in range(4, 8):  # what B was asked for, a chunk a second
        actions += steps.ticks(1.0) + steps.chunk(B, index)
    assert want(A) in actions
    assert Dial(FALLBACK) in actions
    steps.up(FALLBACK_LINK, "far", dialled=True)
    asked = [one.link for one in has(steps, FALLBACK_LINK, complete=True) if isinstance(one, SendRequest)]
    assert asked == [FALLBACK_LINK]


def test_a_source_is_not_given_up_for_being_as_slow_as_all_chunks_are() -> None:
    steps = peer(64, pushed=False)
    has(steps, A, chunks=64, complete=True)
    for index in range(20):
        steps.now += 0.5
        steps.chunk(A, index)
    asked_again = [want(A), Dial(FALLBACK)]
    assert not any(one in asked_again for one in steps.ticks(8.0)), "16 chunks usually take eight seconds"
    assert want(A) in steps.ticks(4.1)


def test_a_source_that_never_sends_what_it_claims_comes_last() -> None:
    """Check two peers that claim everything and send nothing; the origin is honest, and asked last."""
    steps = peer(3, pushed=False)
    for link in (A, B, ORIGIN):
        has(steps, link, chunks=3, complete=True)
    asked: list[Action] = []
    for _ in range(80):
        actions = steps.wait(0.05)
        asked += actions
        for one in actions:
            if isinstance(one, SendWant):
                asked += has(steps, one.link, chunks=3, complete=True)
    of_origin = [one.indices for one in asked if isinstance(one, SendRequest) and one.link == ORIGIN]
    assert {index for indices in of_origin for index in indices} == {0, 1, 2}


def test_a_source_that_lost_its_chunks_is_not_waited_for() -> None:
    steps = peer(pushed=False)
    has(steps, B, *range(4))
    has(steps, A, *range(4))
    assert has(steps, B, 0) == [request(A, 1, 2, 3)]


def test_haves_that_do_not_fit_claim_nothing() -> None:
    steps = peer(pushed=False)
    assert steps.tell(HaveReceived(LinkId(A), KEY, 3, b"\xe0", False)) == []
    assert steps.tell(HaveReceived(LinkId(A), KEY, 3, b"", False)) == []
    assert steps.tell(HaveReceived(LinkId(A), KEY, CHUNKS, b"\xff" * 50, False)) == []


def test_a_source_that_is_asked_for_more_than_fits_a_request_is_asked_in_parts() -> None:
    steps = peer(5000, pushed=False)
    has(steps, A, chunks=5000)
    steps.state.encodings[KEY].sources[LinkId(A)].window = ServiceWindow(4000.0)
    actions = has(steps, A, chunks=5000, complete=True)
    assert [len(one.indices) for one in actions if isinstance(one, SendRequest)] == [1024]
    steps.now += 1.0
    has(steps, B, chunks=5000, complete=True)
    assert all(len(one.indices) <= 1024 for one in steps.wait(0.3) if isinstance(one, SendRequest))


def test_requests_end_when_the_encoding_is_complete() -> None:
    steps = peer(2, pushed=False)
    has(steps, A, chunks=2, complete=True)
    steps.chunk(A, 0)
    assert steps.chunk(A, 1) == [FinishVersion(KEY)]
    assert steps.ticks(5.0) == []
    assert steps.tell(CancelReceived(LinkId(A), KEY, "late")) == []
    assert steps.tell(VersionFinished(KEY))[0] == AnnounceHeld(KEY)
    assert steps.state.encodings[KEY].sources == {}


def test_a_source_outside_the_plan_learns_of_the_completion() -> None:
    steps = Steps()
    steps.tell(plan(fallbacks=(FALLBACK,)))
    steps.receive(1)
    steps.up(FALLBACK_LINK, "far", dialled=True)
    has(steps, FALLBACK_LINK, chunks=1, complete=True)
    steps.chunk(FALLBACK_LINK, 0)
    done = SendHave(LinkId(FALLBACK_LINK), KEY, 1, b"", True)
    assert steps.tell(VersionFinished(KEY)) == [AnnounceHeld(KEY), done]


def test_floods_of_claims_and_refusals_leave_no_trace() -> None:
    steps = peer(pushed=False)
    for _ in range(50):
        has(steps, A, complete=True)
        steps.tell(CancelReceived(LinkId(A), KEY, "no"))
        has(steps, C, complete=True)
    encoding = steps.state.encodings[KEY]
    assert set(encoding.sources) == {ORIGIN, B}
    assert set(encoding.refused_until_s) == {PeerId("a")}
    assert ChunkSet.full(CHUNKS).complete
    assert SendCancel(LinkId(A), KEY, "no") not in steps.ticks(1.0)
