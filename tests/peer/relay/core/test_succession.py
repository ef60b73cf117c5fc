"""Test where chunks go past a relay that fails: which peers take its place, when, and for how long."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from peer.relay.core.state.actions import Action, SendChunk, SendCredit
from peer.relay.core.state.events import BroadcastStarted, CreditReceived, LinkDown, LinkId
from rollcast.wire.ids import PeerId
from tests.peer.relay.relay_steps import KEY, Steps, neighbour, plan, push

ORIGIN, A, B, C, D = 1, 2, 3, 4, 5  # links
NAMES = {A: "a", B: "b", C: "c", D: "d"}
STRIPE = 7
CHUNKS = 200


def origin() -> Steps:
    """Return an origin with one root, A, whose heirs are B and C."""
    steps = Steps("origin")
    others = [neighbour(NAMES[one]) for one in (A, B, C)]
    steps.tell(plan(*others, stripes={STRIPE: ("a",)}, heirs={STRIPE: (("a", "b"), ("a", "c"))}))
    for one in (A, B, C):
        steps.up(one, NAMES[one])
    steps.hold(CHUNKS)
    return steps


def relay(*, heirs: bool = True, adopted: bool = False) -> Steps:
    """Return a relay with the children A and B in a stripe; C may be A's heir, and D be adopted from the origin."""
    steps = Steps()
    others = [neighbour("origin", "origin"), *(neighbour(NAMES[one]) for one in (A, B, C, D))]
    pairs = {STRIPE: (("a", "c"),)} if heirs else {}
    siblings = {STRIPE: ("d",)} if adopted else {}
    steps.tell(plan(*others, stripes={STRIPE: ("a", "b")}, heirs=pairs, adopted=siblings, guardian="origin"))
    steps.up(ORIGIN, "origin", "origin")
    for one in (A, B, C, D):
        steps.up(one, NAMES[one])
    steps.receive(CHUNKS)
    return steps


def credit(steps: Steps, link: int, *indices: int) -> list[Action]:
    return steps.tell(CreditReceived(LinkId(link), KEY, indices))


def receivers(actions: Sequence[Action]) -> set[int]:
    return {one.link for one in actions if isinstance(one, SendChunk)}


def sent_all(steps: Steps) -> list[Action]:
    """Let every chunk in transport leave, and those that follow."""
    actions: list[Action] = []
    while waiting := [int(link.link) for link in steps.state.links.values() if link.in_transport]:
        actions += steps.sent(*waiting)
    return actions


def test_heirs_are_given_nothing_while_the_root_reports() -> None:
    steps = origin()
    actions = steps.tell(BroadcastStarted(KEY))
    for index in range(40):
        steps.now += 0.02
        actions += sent_all(steps) + credit(steps, A, index)
    assert receivers(actions) == {A}


def test_heirs_take_the_place_of_a_root_that_keeps_chunks() -> None:
    steps = origin()
    steps.tell(BroadcastStarted(KEY))
    steps.now += 0.05
    sent_all(steps)
    credit(steps, A, 0)
    sent_all(steps)
    assert receivers(steps.ticks(0.45)) == set()
    actions = steps.ticks(0.3) + sent_all(steps)
    assert receivers(actions) == {B, C}
    assert push(B, 1, STRIPE) in actions, "what the root kept comes first"


def test_heirs_take_the_place_of_a_root_whose_link_is_lost() -> None:
    steps = origin()
    steps.tell(BroadcastStarted(KEY))
    assert receivers(steps.tell(LinkDown(LinkId(A), "gone")) + sent_all(steps)) == {B, C}


def test_an_heir_that_reports_nothing_does_not_hold_back_the_other() -> None:
    steps = origin()
    steps.tell(BroadcastStarted(KEY))
    steps.now += 0.05
    sent_all(steps)
    credit(steps, A, 0)
    first = steps.tell(LinkDown(LinkId(A), "gone"))
    got = [one.index for one in first if isinstance(one, SendChunk) and one.link == B]
    for _ in range(60):
        actions = steps.wait(0.05) + sent_all(steps)
        got += [one.index for one in actions if isinstance(one, SendChunk) and one.link == B]
        actions = credit(steps, B, *got)
        got += [one.index for one in actions if isinstance(one, SendChunk) and one.link == B]
    assert len(got) > 50


def test_a_failed_root_is_tried_again_later() -> None:
    steps = origin()
    steps.tell(BroadcastStarted(KEY))
    steps.now += 0.05
    sent_all(steps)
    credit(steps, A, 0)
    actions: list[Action] = []
    for _ in range(130):
        actions += steps.wait(0.05) + sent_all(steps)
        for link in (B, C):
            actions += credit(steps, link, *(owned.index for owned in steps.link(link).owned))
    assert A in receivers(actions)


def test_a_new_plan_forgets_failures() -> None:
    steps = origin()
    steps.tell(BroadcastStarted(KEY))
    steps.state.failed_until_s[PeerId("a")] = steps.now + 5.0
    steps.tell(plan(neighbour("a"), neighbour("b"), stripes={STRIPE: ("a",)}, plan_id=2))
    assert steps.state.failed_until_s == {}


def test_a_relay_sends_past_an_inner_child_that_stops_reporting() -> None:
    steps = relay()
    assert receivers(steps.chunk(ORIGIN, 0, STRIPE)) == {A, B}
    steps.now += 0.02
    sent_all(steps)
    credit(steps, A, 0)
    steps.chunk(ORIGIN, 1, STRIPE)
    sent_all(steps)
    steps.ticks(0.6)
    assert receivers(steps.chunk(ORIGIN, 2, STRIPE)) == {B, C}


def test_a_leaf_reports_to_no_relay_and_is_not_missed() -> None:
    """Only A has relays below it, and it is of an earlier release, whose relays report to the origin alone."""
    steps = relay()
    for index in range(20):
        assert receivers(steps.chunk(ORIGIN, index, STRIPE)) == {A, B}
        sent_all(steps)
        steps.ticks(0.5)
    assert not steps.state.failed_until_s


def test_a_relay_reports_to_the_relay_above_it() -> None:
    steps = relay()
    steps.chunk(D, 0, STRIPE)
    assert SendCredit(LinkId(D), KEY, (0,)) in sent_all(steps)


def test_a_leaf_reports_to_the_origin_only() -> None:
    steps = relay()
    assert steps.chunk(D, 0, STRIPE + 1) == []
    assert SendCredit(LinkId(ORIGIN), KEY, (1,)) in steps.chunk(ORIGIN, 1, STRIPE + 1)


def test_an_heir_serves_its_siblings_only_for_chunks_of_its_guardian() -> None:
    steps = relay(adopted=True)
    assert receivers(steps.chunk(C, 0, STRIPE)) == {A, B}
    sent_all(steps)
    actions = steps.chunk(ORIGIN, 1, STRIPE)
    assert [one.link for one in actions if isinstance(one, SendChunk)] == [D, A, B], "siblings first"


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.sampled_from([A, B, C]), st.sampled_from(["credit", "lose", "wait"])), max_size=40))
def test_the_origin_gives_every_chunk_whatever_its_relays_do(steps_of: list[tuple[int, str]]) -> None:
    """Whichever relays report, stop or vanish: while one of root and heirs reports, all chunks are given out."""
    steps = origin()
    given_out = {one.index for one in steps.tell(BroadcastStarted(KEY)) if isinstance(one, SendChunk)}
    for link, what in steps_of:
        actions: list[Action] = []
        if what == "lose" and LinkId(link) in steps.state.links and len(steps.state.links) > 1:
            actions = steps.tell(LinkDown(LinkId(link), "gone"))
        elif what == "credit" and LinkId(link) in steps.state.links:
            actions = credit(steps, link, *(owned.index for owned in steps.link(link).owned))
        actions += steps.wait(0.1) + sent_all(steps)
        given_out |= {one.index for one in actions if isinstance(one, SendChunk)}
    for _ in range(400):
        actions = steps.wait(0.1) + sent_all(steps)
        for link_id in list(steps.state.links):
            actions += credit(steps, link_id, *(owned.index for owned in steps.state.links[link_id].owned))
        given_out |= {one.index for one in actions + sent_all(steps) if isinstance(one, SendChunk)}
    assert given_out == set(range(CHUNKS))
