"""Test copies for children, credits for the origin, and answers to requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from peer.relay.core.state.actions import (
    SendAnnouncement,
    SendCancel,
    SendChunk,
    SendChunkList,
    SendCredit,
    SendDecline,
    SendHave,
)
from peer.relay.core.state.events import (
    CancelReceived,
    ChunkSent,
    EncodingKnown,
    EncodingUnwanted,
    GotReceived,
    HaveReceived,
    LinkDown,
    LinkId,
    RequestReceived,
    StoreReady,
    VersionFinished,
    VersionsRemoved,
    WantReceived,
)
from peer.relay.core.state.relay_state import LinkState
from rollcast.wire.ids import Version
from rollcast.wire.links.frames import DIRECT_STRIPE, NO_STRIPE
from tests.peer.relay.relay_steps import CHUNK_BYTES, KEY, Steps, answer, bitmap, key_of, neighbour, plan, push

ORIGIN, LEFT, RIGHT, OTHER = 1, 2, 3, 4  # links
MINE = 5  # the stripe that we pass on
CHUNKS = 64


def relay(*children: str) -> Steps:
    """Return a relay that is linked to the origin and to others and is receiving; stripe 5 goes to ``children``."""
    steps = Steps()
    neighbours = [neighbour("origin", "origin"), neighbour("left"), neighbour("right")]
    steps.tell(plan(*neighbours, stripes={MINE: children or ("left", "right")}, parents=("origin",)))
    steps.up(ORIGIN, "origin", "origin")
    steps.up(LEFT, "left")
    steps.up(RIGHT, "right")
    steps.up(OTHER, "other")
    steps.receive(CHUNKS)
    return steps


def credit(*indices: int) -> SendCredit:
    return SendCredit(LinkId(ORIGIN), KEY, indices)


def have(link: int, *indices: int, size: int = CHUNKS, complete: bool = False) -> HaveReceived:
    return HaveReceived(LinkId(link), KEY, size, b"" if complete else bitmap(size, *indices), complete)


def told(link: int, *indices: int, size: int = CHUNKS) -> SendHave:
    return SendHave(LinkId(link), KEY, size, bitmap(size, *indices), False)


# ---------------------------------------------------------------- copies


def test_a_chunk_of_the_own_stripe_goes_to_all_children_and_is_reported_once_both_copies_left() -> None:
    steps = relay()
    assert steps.chunk(ORIGIN, 3, MINE) == [push(LEFT, 3, MINE), push(RIGHT, 3, MINE)]
    assert steps.sent(RIGHT) == []
    assert steps.sent(LEFT) == [credit(3)]


def test_chunks_of_other_stripes_stay_here() -> None:
    steps = relay()
    for index, stripe in enumerate((MINE + 1, DIRECT_STRIPE, NO_STRIPE)):
        assert steps.chunk(ORIGIN, index, stripe) == ([credit(0)] if stripe == MINE + 1 else [])


def test_a_fast_childs_copies_count_for_the_slow_one() -> None:
    """Check that credits follow the uplink, not the slowest child."""
    steps = relay()
    steps.chunk(ORIGIN, 0, MINE)
    steps.chunk(ORIGIN, 1, MINE)
    assert steps.sent(LEFT) == [push(LEFT, 1, MINE)]
    assert steps.sent(LEFT) == [credit(0)]
    assert steps.sent(RIGHT) == [push(RIGHT, 1, MINE)]
    assert steps.sent(RIGHT) == [credit(1)]


def test_a_child_that_is_stuck_is_counted_as_served_and_skipped_in_the_end() -> None:
    steps = relay()
    credits = 0
    for index in range(50):
        actions = steps.chunk(ORIGIN, index, MINE) + steps.sent(LEFT)
        credits += sum(len(one.indices) for one in actions if isinstance(one, SendCredit))
    # Five copies for the stuck child count, though they never leave: at two copies a chunk, so many chunks wait.
    assert credits == 50 - 5
    assert len(steps.link(RIGHT).pushes[KEY]) == steps.state.settings.pushes_most
    assert steps.state.counters.chunks_skipped == 50 - 1 - steps.state.settings.pushes_most


def reported_of_twenty(slow: Sequence[int]) -> int:
    """Return how many of 20 chunks a relay with five children reports; those in ``slow`` take every second copy."""
    children = {RIGHT: "right", **{OTHER + number: f"child-{number}" for number in range(1, 5)}}
    steps = relay(*children.values())
    for link in range(OTHER + 1, OTHER + 5):
        steps.up(link, children[link])
    reported = 0
    for index in range(20):
        actions = steps.chunk(ORIGIN, index, MINE)
        for link in children:
            actions += steps.sent(link) if link not in slow or index % 2 else []
        reported += sum(len(one.indices) for one in actions if isinstance(one, SendCredit))
    return reported


def test_a_child_that_is_behind_reduces_the_work_given_to_this_relay() -> None:
    """Otherwise its unused share would be given to this relay as further chunks, and it would fall behind for good."""
    assert reported_of_twenty([RIGHT]) == 20 - 2, "two chunks' worth: it has ten copies to come"


def test_several_children_that_are_behind_reduce_it_no_more_than_one() -> None:
    """If each counted alone, forty copies behind would withhold eight chunks."""
    assert reported_of_twenty([RIGHT, OTHER + 1, OTHER + 2, OTHER + 3]) >= 20 - 4


def test_copies_for_a_child_that_does_not_read_count_as_sent() -> None:
    steps = relay()
    for index in range(4):
        steps.chunk(ORIGIN, index, MINE)
    assert [steps.sent(LEFT)[-1] for _ in range(3)] == [push(LEFT, 1, MINE), push(LEFT, 2, MINE), push(LEFT, 3, MINE)]
    assert steps.sent(LEFT) == [credit(1)]  # two chunks stay open: the other child has not taken its copies
    for _ in range(8):
        steps.tell(RequestReceived(LinkId(OTHER), KEY, (0,)), ChunkSent(LinkId(OTHER)))
    assert steps.wait(0.05) == [credit(2), credit(3)]
    assert steps.chunk(ORIGIN, 9, MINE) == [push(LEFT, 9, MINE)]
    assert steps.sent(LEFT) == [credit(9)]


def test_any_parent_gets_credits_from_a_relay() -> None:
    steps = relay("right")
    assert steps.chunk(LEFT, 0, MINE) == [push(RIGHT, 0, MINE)]
    assert steps.sent(RIGHT) == [SendCredit(LinkId(LEFT), KEY, (0,))]


def test_a_chunk_that_a_child_has_is_not_sent_to_it() -> None:
    steps = relay()
    steps.tell(have(LEFT, 3))
    assert steps.chunk(ORIGIN, 3, MINE) == [push(RIGHT, 3, MINE)]
    assert steps.sent(RIGHT) == [credit(3)]


def test_a_copy_that_waits_while_the_child_gets_the_chunk_elsewhere_counts_as_sent() -> None:
    steps = relay("left")
    steps.chunk(ORIGIN, 0, MINE)
    steps.chunk(ORIGIN, 1, MINE)
    steps.tell(have(LEFT, 1))
    assert steps.sent(LEFT) == [credit(0), credit(1)]


def test_a_copy_is_not_sent_to_a_child_that_got_the_chunk_elsewhere() -> None:
    steps = relay()
    for index in range(3):
        steps.chunk(ORIGIN, index, MINE)
    steps.tell(GotReceived(LinkId(LEFT), KEY, (1, CHUNKS + 5)))
    assert steps.sent(LEFT) == [credit(0), push(LEFT, 2, MINE)]


def test_a_slow_uplink_serves_few_links_at_a_time() -> None:
    """With a chunk for each of eight children in its queue, its own requests would wait behind all of them."""
    children = {OTHER + number: f"child-{number}" for number in range(1, 9)}
    steps = relay(*children.values())
    for link, name in children.items():
        steps.up(link, name)
    steps.state.uplink.chunk_s = 0.2
    first = [one.link for one in steps.chunk(ORIGIN, 0, MINE)]
    assert len(first) == 5
    steps.now += 0.2
    assert [one.link for one in steps.sent(first[0]) if isinstance(one, SendChunk)] == [OTHER + 6]


def test_an_uplink_that_collapses_is_given_no_more_before_it_shows_how_slow_it_is() -> None:
    children = {OTHER + number: f"child-{number}" for number in range(1, 7)}
    steps = relay(*children.values())
    for link, name in children.items():
        steps.up(link, name)
    steps.state.uplink.chunk_s = 0.005
    assert len(steps.chunk(ORIGIN, 0, MINE)) == 6
    steps.now += 0.05
    assert steps.tell(RequestReceived(LinkId(OTHER), KEY, (0,))) == []
    answers = [one for link in (1, 2, 3) for one in steps.sent(OTHER + link)]
    assert answer(OTHER, 0) in answers


def test_a_link_that_takes_nothing_leaves_its_turn_to_others() -> None:
    children = {OTHER + number: f"child-{number}" for number in range(1, 9)}
    steps = relay(*children.values())
    for link, name in children.items():
        steps.up(link, name)
    steps.state.uplink.chunk_s = 0.2
    steps.chunk(ORIGIN, 0, MINE)
    assert [one.link for one in steps.ticks(10.0) if isinstance(one, SendChunk)] == [OTHER + 6, OTHER + 7, OTHER + 8]


def test_requests_that_would_wait_for_long_are_declined() -> None:
    steps = relay()
    for index in range(20):
        steps.chunk(ORIGIN, index, NO_STRIPE)
    steps.state.uplink.chunk_s = 0.5
    actions = steps.tell(RequestReceived(LinkId(OTHER), KEY, tuple(range(10))))
    assert actions == [SendDecline(LinkId(OTHER), KEY, tuple(range(4, 10))), answer(OTHER, 0)]


def test_a_chunk_does_not_go_back_to_its_sender() -> None:
    steps = relay()
    assert steps.chunk(LEFT, 3, MINE) == [push(RIGHT, 3, MINE)]
    assert steps.chunk(RIGHT, 3, MINE) == [SendCredit(LinkId(RIGHT), KEY, (3,))]
    assert steps.state.counters.chunks_duplicate == 1


def test_a_chunk_given_again_goes_to_children_that_lack_it_and_is_reported() -> None:
    steps = relay("left")
    steps.chunk(RIGHT, 3)
    assert steps.chunk(ORIGIN, 3, MINE) == [push(LEFT, 3, MINE)]
    assert steps.sent(LEFT) == [credit(3)]
    assert steps.chunk(ORIGIN, 3, MINE) == [credit(3)]


def test_a_child_that_dies_holds_nothing_back() -> None:
    steps = relay()
    steps.chunk(ORIGIN, 0, MINE)
    steps.chunk(ORIGIN, 1, MINE)
    steps.sent(LEFT)
    assert steps.tell(LinkDown(LinkId(RIGHT), "gone")) == [credit(0)]
    assert steps.sent(LEFT) == [credit(1)]


def test_the_newest_version_goes_first_and_copies_before_answers() -> None:
    steps = relay("left")
    steps.receive(CHUNKS, key_of(2))
    steps.chunk(ORIGIN, 0, MINE)  # leaves at once, the others wait
    steps.tell(RequestReceived(LinkId(LEFT), KEY, (0,)))
    steps.chunk(ORIGIN, 1, MINE)
    steps.chunk(ORIGIN, 2, MINE, key_of(2))
    assert steps.sent(LEFT)[-1] == push(LEFT, 2, MINE, key_of(2))
    assert steps.sent(LEFT)[-1] == push(LEFT, 1, MINE)
    assert steps.sent(LEFT)[-1] == answer(LEFT, 0)


# ---------------------------------------------------------------- answers


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


# ---------------------------------------------------------------- ahead of the chunks


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


# ---------------------------------------------------------------- forgetting


def test_a_removed_version_leaves_nothing_behind() -> None:
    steps = relay("left")
    steps.tell(WantReceived(LinkId(OTHER), KEY, chunk_list=True), have(OTHER, 1, 2))
    for index in range(6):
        steps.chunk(ORIGIN, index, MINE)
    steps.tell(RequestReceived(LinkId(OTHER), KEY, (0, 1, 2, 3)))
    actions = steps.tell(VersionsRemoved((KEY,)))
    gone = SendCancel(LinkId(OTHER), KEY, "no longer kept")
    assert actions == [credit(0), credit(1), credit(2), credit(3), gone]
    assert KEY not in steps.state.encodings
    for link in steps.state.links.values():
        kept = (link.pushes, link.pulls, link.theirs, link.wants, link.lists_sent, link.owned)
        assert not any(kept), link
    assert steps.sent(LEFT, OTHER) == [credit(4, 5)]


def test_an_abandoned_encoding_is_refused_to_peers_that_waited_for_it() -> None:
    steps = relay()
    steps.tell(WantReceived(LinkId(OTHER), KEY))
    actions = steps.tell(EncodingUnwanted(KEY, "superseded"))
    assert SendCancel(LinkId(OTHER), KEY, "superseded") in actions


# ---------------------------------------------------------------- the account


def uncounted(steps: Steps, upstream: LinkState) -> int:
    """Return the number of copies in the account that neither left nor wait on any link: always 0."""
    waiting = sum(push.upstream == upstream.link for link in steps.state.links.values() for push in link.copies())
    return sum(copies for _, _, copies in upstream.account.copies) - upstream.account.left - waiting


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 1 << 30))
def test_every_chunk_is_reported_exactly_once_whatever_happens_to_the_children(seed: int) -> None:
    random, steps = Random(seed), relay()
    names, links, next_link = {"left", "right"}, {LEFT: "left", RIGHT: "right"}, 10
    reported: list[int] = []
    given_to_us = list(range(CHUNKS)) + random.choices(range(CHUNKS), k=20)
    random.shuffle(given_to_us)

    def note(actions: list[object]) -> None:
        reported.extend(index for one in actions if isinstance(one, SendCredit) for index in one.indices)

    def happen() -> list[object]:
        nonlocal next_link
        link = random.choice(sorted(links)) if links else None
        match random.randrange(6):
            case 0 | 1 if link is not None:
                return list(steps.tell(ChunkSent(LinkId(link))))
            case 2 if link is not None:
                return list(steps.tell(have(link, *random.sample(range(CHUNKS), 5))))
            case 3 if link is not None and random.random() < 0.2:
                del links[link]
                return list(steps.tell(LinkDown(LinkId(link), "gone")))
            case 4 if link is not None:
                return list(steps.tell(RequestReceived(LinkId(link), KEY, (random.randrange(CHUNKS),))))
            case 5 if names - set(links.values()):
                links[next_link] = min(names - set(links.values()))
                next_link += 1
                return list(steps.up(next_link - 1, links[next_link - 1]))
        return []

    for index in given_to_us:
        note(list(steps.chunk(ORIGIN, index, MINE)))
        for _ in range(random.randrange(4)):
            note(happen())
        assert uncounted(steps, steps.link(ORIGIN)) == 0
    for link in list(links) * 200:
        note(list(steps.sent(link)))
    assert sorted(reported) == sorted(given_to_us)
