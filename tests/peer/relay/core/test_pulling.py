"""Test requests for chunks that pushing did not bring: when, of which peer, and what follows without an answer."""

from __future__ import annotations

from collections.abc import Sequence

from peer.links.neighbours import EncodingKey
from peer.relay.core.actions import (
    Action,
    AnnounceHeld,
    BeginStore,
    Dial,
    FinishVersion,
    SendCancel,
    SendGot,
    SendHave,
    SendRequest,
    SendWant,
)
from peer.relay.core.chunk_set import ChunkSet
from peer.relay.core.events import (
    CancelReceived,
    DeclineReceived,
    DialFailed,
    EncodingKnown,
    HaveReceived,
    LinkDown,
    LinkId,
    StoreReady,
    VersionFinished,
)
from peer.relay.core.window import ServiceWindow
from rollcast.wire.ids import PeerId
from tests.peer.relay.relay_steps import CHUNK_BYTES, KEY, Steps, bitmap, key_of, neighbour, plan

ORIGIN, A, B, C = 1, 2, 3, 4  # links
STRIPE = 9  # not passed on here
CHUNKS = 100
NEAR = neighbour("c", lan=True)
FALLBACK = neighbour("far", we_dial=True)
FALLBACK_LINK = 8


def peer(chunks: int = CHUNKS, *, pushed: bool = True, found: Sequence[int] = ()) -> Steps:
    """Return a peer that is receiving, linked to the origin and two neighbours; a third peer can be dialled."""
    steps = Steps()
    neighbours = [neighbour("origin", "origin"), neighbour("a"), neighbour("b")]
    parents = ("origin", "a", "b") if pushed else ()
    steps.tell(plan(*neighbours, parents=parents, fallbacks=(FALLBACK,)))
    steps.up(ORIGIN, "origin", "origin")
    steps.up(A, "a")
    steps.up(B, "b")
    steps.receive(chunks, found=found)
    return steps


def want(link: int, *, chunk_list: bool = False) -> SendWant:
    return SendWant(LinkId(link), KEY, chunk_list)


def request(link: int, *indices: int) -> SendRequest:
    return SendRequest(LinkId(link), KEY, indices)


def has(steps: Steps, link: int, *indices: int, chunks: int = CHUNKS, complete: bool = False) -> list[Action]:
    """Return the event that the other end reports what it holds."""
    return steps.tell(HaveReceived(LinkId(link), KEY, chunks, bitmap(chunks, *indices), complete))


def push_all(steps: Steps, indices: Sequence[int], every_s: float = 0.01) -> list[Action]:
    actions: list[Action] = []
    for index in indices:
        steps.now += every_s
        actions += steps.chunk(A, index, STRIPE)
    return actions


# ---------------------------------------------------------------- when


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


# ---------------------------------------------------------------- whom


def test_near_sources_come_first_and_the_origin_last() -> None:
    steps = peer(12, pushed=False)
    steps.tell(plan(neighbour("origin", "origin"), neighbour("a"), NEAR, plan_id=2))
    assert steps.up(C, "c") == [want(C)]
    for link in (ORIGIN, A, C):
        has(steps, link, chunks=12)
    steps.chunk(B, 0)
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


def test_a_peer_that_joins_asks_holders_with_short_round_trips_first() -> None:
    steps = joiner((ORIGIN, "origin", 0.001), (A, "a", 0.08), (B, "b", 0.02))
    for link in (ORIGIN, A, B):
        has(steps, link, complete=True)
        steps.tell(DeclineReceived(LinkId(link), KEY, tuple(range(CHUNKS))))
    assert steps.ticks(0.4)[:3] == [request(B, 0, 1, 2, 3), request(A, 4, 5, 6, 7), request(ORIGIN, 8, 9, 10, 11)]


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


def test_a_holder_of_everything_gets_a_wide_window() -> None:
    steps = Steps("origin")
    steps.up(A, "learner", "learner")
    known = EncodingKnown(KEY, CHUNKS, CHUNK_BYTES, announced=False, listed=True, holder=LinkId(A))
    assert steps.tell(known) == [BeginStore(KEY), want(A)]
    assert steps.tell(known) == [], "told twice"
    steps.tell(StoreReady(KEY, bitmap(CHUNKS)))
    assert has(steps, A, complete=True) == [request(A, *range(16))]


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


# ---------------------------------------------------------------- the chunk list


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


# ---------------------------------------------------------------- sources that do not deliver


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
