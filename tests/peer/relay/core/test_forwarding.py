"""Test copies for children, and credits for the origin."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from peer.relay.core.state.actions import SendCancel, SendChunk, SendCredit
from peer.relay.core.state.events import (
    ChunkSent,
    EncodingUnwanted,
    GotReceived,
    LinkDown,
    LinkId,
    RequestReceived,
    VersionsRemoved,
    WantReceived,
)
from peer.relay.core.state.relay_state import LinkState
from rollcast.wire.links.frames import DIRECT_STRIPE, NO_STRIPE
from tests.peer.relay.core.linked_relay import CHUNKS, LEFT, MINE, ORIGIN, OTHER, RIGHT, credit, have, relay
from tests.peer.relay.relay_steps import KEY, Steps, answer, key_of, push

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
