"""Test the origin: which root is given which chunk, and what follows if a root does not pass it on."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from peer.links.neighbours import EncodingKey
from peer.relay.core.state.actions import Action, SendChunk, SendHave
from peer.relay.core.state.events import (
    BroadcastStarted,
    ChunkSent,
    CreditReceived,
    EncodingKnown,
    HaveReceived,
    LinkDown,
    LinkId,
    RequestReceived,
    StoreReady,
    VersionsRemoved,
    WantReceived,
)
from rollcast.wire.ids import PeerId
from rollcast.wire.links.frames import DIRECT_STRIPE
from tests.peer.relay.relay_steps import CHUNK_BYTES, KEY, Steps, bitmap, key_of, neighbour, plan, push

A, B, C = 1, 2, 3  # links, and the stripes whose roots they are
NAMES = {A: "a", B: "b", C: "c"}


def origin(chunks: int = 100, *, roots: Sequence[int] = (A, B), direct: bool = False) -> Steps:
    """Return an origin that holds a version; each root passes on the stripe of its number."""
    steps = Steps("origin")
    others = [neighbour(NAMES[one]) for one in roots]
    steps.tell(plan(*others, stripes={one: (NAMES[one],) for one in roots}, direct=direct))
    for one in roots:
        steps.up(one, NAMES[one])
    steps.hold(chunks)
    return steps


def start(steps: Steps, key: EncodingKey = KEY) -> list[Action]:
    return steps.tell(BroadcastStarted(key))


def credit(steps: Steps, link: int, *indices: int, key: EncodingKey = KEY) -> list[Action]:
    return steps.tell(CreditReceived(LinkId(link), key, indices))


def chunks_sent(actions: Sequence[Action]) -> list[tuple[int, int]]:
    """Return (link, index) of each chunk sent."""
    return [(one.link, one.index) for one in actions if isinstance(one, SendChunk)]


def owned(steps: Steps, link: int) -> list[int]:
    return [one.index for one in steps.link(link).owned]


# ---------------------------------------------------------------- whom a chunk is given


def test_chunks_go_to_the_roots_in_turn_and_only_a_few_wait_at_the_origin() -> None:
    steps = origin()
    assert start(steps) == [push(A, 0, A), push(B, 1, B)]
    assert (owned(steps, A), owned(steps, B)) == ([0, 2], [1, 3])
    assert steps.sent(A) == [push(A, 2, A)]
    assert owned(steps, A) == [0, 2, 4]


def test_chunks_that_the_store_has_found_are_given_out_at_once() -> None:
    steps = Steps("origin")
    steps.tell(plan(neighbour("a"), stripes={A: ("a",)}))
    steps.up(A, "a")
    steps.tell(EncodingKnown(KEY, 4, CHUNK_BYTES, announced=False, listed=True))
    assert start(steps) == []
    assert chunks_sent(steps.tell(StoreReady(KEY, bitmap(4, 0, 1)))) == [(A, 0)]


def test_chunks_are_given_out_in_order_as_they_arrive() -> None:
    steps = Steps("origin")
    steps.tell(plan(neighbour("a"), stripes={A: ("a",)}))
    steps.up(A, "a")
    steps.up(9, "learner", "learner")
    steps.receive(4, found=(0,))
    assert start(steps) == [push(A, 0, A)]
    steps.sent(A)
    assert chunks_sent(steps.chunk(9, 2)) == [], "the next one is not here"
    assert chunks_sent(steps.chunk(9, 1)) == [(A, 1)]
    assert chunks_sent(steps.sent(A)) == [(A, 2)]
    steps.sent(A)
    assert chunks_sent(steps.chunk(9, 3)) == [(A, 3)]
    assert not steps.state.broadcasts, "all of it is given out"


def test_a_root_has_no_more_than_its_window() -> None:
    steps = origin(roots=(A,))
    start(steps)
    for _ in range(10):
        steps.sent(A)
    assert owned(steps, A) == [0, 1, 2, 3]
    assert chunks_sent(credit(steps, A, 0)) == [(A, 4)]


def test_a_root_that_passes_chunks_on_faster_is_given_more() -> None:
    steps = origin(400)
    start(steps)
    given = Counter[int]()
    for turn in range(400):
        steps.now += 0.01
        done = [A] if turn % 4 else [A, B]
        for link in done:
            actions = steps.sent(link)
            actions += credit(steps, link, *owned(steps, link)[:1])
            given.update(link for link, _ in chunks_sent(actions))
    assert given[A] >= 2.5 * given[B]


def test_a_stripe_with_two_roots_gives_each_chunk_to_both() -> None:
    steps = Steps("origin")
    steps.tell(plan(neighbour("a"), neighbour("b"), stripes={7: ("a", "b")}))
    steps.up(A, "a")
    steps.up(B, "b")
    steps.hold(1)
    assert start(steps) == [push(A, 0, 7), push(B, 0, 7)]


def test_each_chunk_is_given_once_and_then_the_broadcast_is_over() -> None:
    steps = origin(9)
    given = chunks_sent(start(steps))
    for _ in range(20):
        for link in (A, B):
            given += chunks_sent(steps.sent(link)) + chunks_sent(credit(steps, link, *owned(steps, link)))
    assert sorted(index for _, index in given) == list(range(9))
    assert steps.state.broadcasts == {}


def test_only_what_is_held_is_broadcast_and_once() -> None:
    steps = origin()
    assert start(steps, key_of(2)) == []
    start(steps)
    assert start(steps) == []


def test_a_version_that_all_neighbours_have_is_not_sent_again() -> None:
    """Check an origin that was restarted: the learner sends it a version that it has broadcast before."""
    steps = origin()
    steps.tell(HaveReceived(LinkId(A), KEY, 100, b"", True))
    assert chunks_sent(start(steps)) == [(A, 0), (B, 1)]
    assert steps.tell(HaveReceived(LinkId(B), KEY, 100, b"", True)) == []
    steps.sent(A, B)
    assert (owned(steps, A), owned(steps, B)) == ([0, 2], [1, 3])
    assert steps.state.broadcasts == {}


def test_the_newest_version_goes_before_the_rest_of_an_older_one() -> None:
    steps = origin(roots=(A,))
    start(steps)
    steps.hold(2, key_of(2))
    start(steps, key_of(2))
    sent = [steps.sent(A) + credit(steps, A, *owned(steps, A)[:1], key=key) for key in (KEY, KEY, KEY, KEY, KEY)]
    newest = [one.index for each in sent for one in each if isinstance(one, SendChunk) and one.key == key_of(2)]
    assert newest == [0, 1]
    assert owned(steps, A)[-1] > 3


def test_near_the_end_a_slow_root_is_given_nothing_more() -> None:
    steps = origin(40)
    start(steps)
    for _ in range(200):
        steps.now += 0.01
        steps.sent(A), steps.sent(B)
        credit(steps, A, *owned(steps, A))
        if owned(steps, B) and steps.now - steps.link(B).owned[0].given_at_s > 0.3:
            last_of_b = owned(steps, B)[0]
            credit(steps, B, last_of_b)
    assert last_of_b <= 37


def test_a_root_that_never_answered_does_not_delay_the_last_chunks() -> None:
    steps = origin(60, roots=(A, B, C))
    start(steps)
    given: list[tuple[int, int]] = []
    for _ in range(60):
        steps.now += 0.01
        for link in (A, B, C):
            given += chunks_sent(steps.sent(link))
        for link in (A, B):
            late = [one.index for one in steps.link(link).owned if steps.now - one.given_at_s >= 0.05]
            given += chunks_sent(credit(steps, link, *late))
    assert not steps.state.broadcasts, "all given out, some to the silent one"
    assert len(owned(steps, C)) <= 4


# ---------------------------------------------------------------- copies from the origin itself


def test_without_a_free_root_copies_go_to_all_neighbours() -> None:
    steps = origin(roots=(A, B), direct=True)
    start(steps)
    for _ in range(3):
        steps.sent(A, B)
    steps.sent(A)
    actions = steps.sent(B)
    assert [(one.link, one.stripe) for one in actions if isinstance(one, SendChunk)] == [
        (A, DIRECT_STRIPE),
        (B, DIRECT_STRIPE),
    ]
    assert steps.state.counters.chunks_direct == 1


def test_a_slow_uplink_that_large_chunks_fill_is_given_no_copies() -> None:
    """One of a megabyte takes half a second of an uplink of 100 Mbit/s that six links share."""
    steps = origin(400, roots=(A, B), direct=True)
    start(steps)
    for _ in range(20):
        for link in (A, B):
            steps.ticks(0.5)
            steps.sent(link)
            credit(steps, link, owned(steps, link)[0])
    assert steps.state.counters.chunks_direct == 0


def test_copies_are_sent_only_while_a_link_takes_them() -> None:
    steps = origin(400, roots=(A, B), direct=True)
    start(steps)
    steps.sent(A, B)
    steps.ticks(10.0)  # neither link takes anything any more
    assert steps.state.counters.chunks_direct == 0


def test_without_direct_copies_in_the_plan_nothing_is_copied() -> None:
    steps = origin(roots=(A,))
    start(steps)
    for _ in range(6):
        steps.sent(A)
    assert steps.sent(A) == []


# ---------------------------------------------------------------- roots that fail


def test_chunks_of_a_dead_root_go_to_another() -> None:
    steps = origin(4)
    start(steps)
    steps.tell(LinkDown(LinkId(A), "gone"))
    for _ in range(4):
        steps.sent(B)
        credit(steps, B, *owned(steps, B))
    assert steps.state.broadcasts == {}
    assert steps.state.counters.chunks_given_again == 2


def test_a_finished_broadcast_continues_when_a_root_dies() -> None:
    steps = origin(2)
    start(steps)
    steps.sent(A, B)
    credit(steps, B, 1)
    assert steps.state.broadcasts == {}
    assert steps.tell(LinkDown(LinkId(A), "gone")) == [push(B, 0, B)]


def test_a_chunk_that_a_root_keeps_goes_to_another_and_the_root_starts_small_again() -> None:
    steps = origin(2)
    start(steps)
    steps.sent(A, B)
    credit(steps, B, 1)
    assert steps.wait(3.0) == [], "nothing is known of it yet"
    assert steps.wait(100.0) == [push(B, 0, B)]
    window = steps.state.windows[PeerId("a"), CHUNK_BYTES]
    assert window.chunks == 1
    assert credit(steps, A, 0) == [], "too late to count"


def test_a_root_that_was_late_once_is_given_chunks_again_where_the_others_have_no_room() -> None:
    steps = origin(12)
    start(steps)
    steps.sent(A, B, A, B)
    steps.wait(100.0)  # both are late with all that they have
    given: list[int] = []
    for _ in range(40):
        actions = steps.wait(0.05) + steps.sent(A, B) + credit(steps, B, *owned(steps, B))
        given += [index for link, index in chunks_sent(actions) if link == B]
    assert len(given) >= 10, "the other one keeps what it is given"


def test_a_root_that_never_passes_anything_on_is_given_less_and_less() -> None:
    steps = origin(2000)
    start(steps)
    given = Counter[int]()
    for _ in range(400):
        actions = steps.wait(0.05)
        for link in (A, B):
            actions += steps.sent(link)
        actions += credit(steps, B, *owned(steps, B))
        given.update(link for link, _ in chunks_sent(actions))
    assert given[A] <= 8
    assert given[B] >= 400


def test_roots_that_do_not_read_do_not_delay_the_others() -> None:
    steps = origin(500, roots=(A, B, C))
    start(steps)
    given = Counter[int]()
    for _ in range(100):
        actions = steps.wait(0.05) + steps.sent(C) + credit(steps, C, *owned(steps, C))
        given.update(link for link, _ in chunks_sent(actions))
    assert given[C] >= 90


def test_many_requests_do_not_stop_the_broadcast() -> None:
    askers = range(10, 20)
    steps = origin(500, roots=(A, B))
    for link in askers:
        steps.up(link, f"asker-{link}")
        steps.tell(RequestReceived(LinkId(link), KEY, tuple(range(400))))
    assert chunks_sent(start(steps)) == [(A, 0), (B, 1)]
    assert (owned(steps, A), owned(steps, B)) == ([0, 2], [1, 3])


# ---------------------------------------------------------------- what roots say


def test_credits_for_chunks_that_were_not_given_change_nothing() -> None:
    steps = origin()
    start(steps)
    assert credit(steps, A, 1, 77, 99999) == []
    assert credit(steps, A, 0, key=key_of(9)) == []
    assert steps.tell(CreditReceived(LinkId(9), KEY, (0,))) == []
    assert (owned(steps, A), owned(steps, B)) == ([0, 2], [1, 3])


def test_a_chunk_counts_once_however_often_it_is_credited() -> None:
    steps = origin()
    start(steps)
    credit(steps, A, 0, 0, 0)
    credit(steps, A, 0)
    assert 0 not in owned(steps, A)
    assert 2 in owned(steps, A)


def test_a_removed_version_takes_no_room_in_windows() -> None:
    steps = origin()
    start(steps)
    steps.tell(VersionsRemoved((KEY,)))
    assert (owned(steps, A), owned(steps, B)) == ([], [])
    assert steps.sent(A, B) == []
    assert steps.state.broadcasts == {}
    steps.hold(8, key_of(2))
    assert len(chunks_sent(start(steps, key_of(2)))) == 2


def test_windows_are_remembered_from_one_version_to_the_next() -> None:
    steps = origin(200, roots=(A,))
    start(steps)
    for _ in range(20):
        steps.sent(*[A] * 10)
        steps.now += 0.05
        credit(steps, A, *owned(steps, A))
    before = steps.state.windows[PeerId("a"), CHUNK_BYTES].chunks
    assert before > 4
    steps.hold(200, key_of(2))
    start(steps, key_of(2))
    for _ in range(20):
        steps.sent(A)
    assert len(owned(steps, A)) == before


# ---------------------------------------------------------------- whatever happens


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 1 << 30), st.integers(1, 60))
def test_every_chunk_is_passed_on_or_reaches_a_live_peer_whatever_roots_do(seed: int, chunks: int) -> None:
    random = Random(seed)
    steps = origin(chunks, roots=(A, B, C))
    got: dict[int, set[int]] = {A: set(), B: set(), C: set()}
    silent = random.choice([None, A, B])
    passed_on: set[int] = set()

    def pass_on(link: int, most: int) -> None:
        if link != silent:
            passed_on.update(owned(steps, link)[:most])
            note(credit(steps, link, *owned(steps, link)[:most]))

    def note(actions: Sequence[Action]) -> None:
        for link, index in chunks_sent(actions):
            got[link].add(index)

    note(start(steps))
    for _ in range(60):
        link = random.choice(sorted(got))
        note(steps.tell(ChunkSent(LinkId(link))))
        match random.randrange(4):
            case 0:
                pass_on(link, random.randrange(3))
            case 1 if random.random() < 0.1 and len(got) > 1 and link != C:
                del got[link]
                note(steps.tell(LinkDown(LinkId(link), "gone")))
            case 2:
                claimed = bitmap(chunks, *(index for index in got[link] if random.random() < 0.5))
                note(steps.tell(HaveReceived(LinkId(link), KEY, chunks, claimed, False)))
            case 3:
                note(steps.wait(0.05))
    for _ in range(150):
        for link in sorted(got):
            note(steps.sent(link))
            pass_on(link, chunks)
        note(steps.wait(0.2))
    assert passed_on.union(*(got[link] for link in got if link != silent)) == set(range(chunks))


# ---------------------------------------------------------------- stripes with several roots


def _one_stripe(relays: int = 3) -> Steps:
    """Return an origin whose stripe has three children, of which the first ``relays`` pass its chunks on."""
    steps = Steps("origin")
    names = tuple(NAMES.values())
    steps.tell(plan(*map(neighbour, names), stripes={9: names}, relays=relays))
    for link, name in NAMES.items():
        steps.up(link, name)
    steps.hold(100)
    start(steps)
    return steps


def test_a_root_that_does_not_pass_on_its_chunks_holds_back_no_other() -> None:
    steps = _one_stripe()
    for _ in range(100):
        steps.sent(*(link for link in NAMES if steps.link(link).in_transport))
        for link in (B, C):
            credit(steps, link, *owned(steps, link))
    assert not steps.state.broadcasts
    assert owned(steps, A) == [0, 1, 2, 3]


def test_a_chunk_that_other_roots_of_the_stripe_passed_on_is_not_given_again() -> None:
    steps = _one_stripe()
    assert owned(steps, A)[:2] == [0, 1]
    steps.tell(LinkDown(LinkId(A), "lost"))
    assert steps.state.counters.chunks_given_again == 0
    assert steps.state.broadcasts[KEY].again == deque()


def test_leaves_that_the_origin_serves_itself_neither_hide_nor_hold_back_the_relay() -> None:
    steps = _one_stripe(relays=1)
    for _ in range(10):
        steps.sent(*(link for link in NAMES if steps.link(link).in_transport))
    assert owned(steps, A) == [0, 1, 2, 3]  # as many as its window allows
    assert owned(steps, B) == owned(steps, C) == []
    assert steps.state.broadcasts[KEY].given == 4  # no more before it has passed on some
    sent = chunks_sent(credit(steps, A, 0, 1))
    assert {index for _, index in sent} == {4}


def _crossed_stripes(**settings: int) -> Steps:
    """Return an origin with two stripes: the relay of each is a leaf of the other, and served by the origin itself."""
    steps = Steps("origin", **settings)
    steps.tell(plan(neighbour("a"), neighbour("b"), stripes={1: ("a", "b"), 2: ("b", "a")}, relays=1))
    steps.up(A, "a")
    steps.up(B, "b")
    steps.hold(100)
    return steps


def test_copies_that_are_passed_on_leave_the_origin_before_those_for_leaves() -> None:
    steps = _crossed_stripes()
    assert chunks_sent(start(steps)) == [(A, 0), (B, 0)]  # b has a copy for a leaf in transport
    assert [index for _, index in chunks_sent(steps.sent(B))] == [1]  # stripe 2's, of which b is the relay


def test_copies_for_leaves_that_wait_take_no_place_from_those_that_are_passed_on() -> None:
    steps = _crossed_stripes(pushes_most=4)
    start(steps)
    for _ in range(40):  # a takes nothing more, b is fast
        if steps.link(B).in_transport:
            steps.sent(B)
        credit(steps, B, *owned(steps, B))
    assert steps.state.counters.chunks_skipped > 0
    assert [push.index for push in steps.link(A).copies() if push.relayed] == owned(steps, A)


# ---------------------------------------------------------------- requests


def test_nothing_can_be_requested_of_an_origin_that_gives_chunks_out() -> None:
    steps = origin(6, roots=(A,))
    start(steps)
    wanted = WantReceived(LinkId(A), KEY)
    assert steps.tell(wanted) == [SendHave(LinkId(A), KEY, 6, b"", False)]
    while steps.state.broadcasts:
        credit(steps, A, *owned(steps, A))
        steps.sent(A)
    assert SendHave(LinkId(A), KEY, 6, b"", True) in steps.wait(0.2)


def test_an_origin_that_does_not_get_on_serves_requests() -> None:
    steps = origin(100, roots=(A, B))
    start(steps)
    steps.tell(WantReceived(LinkId(B), KEY))
    assert SendHave(LinkId(B), KEY, 100, b"", True) in steps.ticks(2.0)
