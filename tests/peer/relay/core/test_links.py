"""Test links: which peer is dialled when, what is sent on a new link, which links are closed."""

from __future__ import annotations

from dataclasses import replace

from peer.relay.core.state.actions import (
    Accuse,
    CloseLink,
    Dial,
    SendAnnouncement,
    SendChunkList,
    SendHave,
    SendWant,
    Warn,
)
from peer.relay.core.state.events import (
    ChunkCorrupt,
    DialFailed,
    LinkDown,
    LinkId,
    RequestReceived,
    VersionFinished,
    VersionRestored,
    WantReceived,
)
from rollcast.wire.ids import ChunkIndex, PeerId, Version
from tests.peer.relay.relay_steps import CHUNK_BYTES, KEY, Steps, answer, bitmap, key_of, neighbour, plan, push

A, B = neighbour("a", we_dial=True), neighbour("b", we_dial=True)
LINK, SECOND, THIRD = 1, 2, 3


def down(link: int, jitter: float = 1.0) -> LinkDown:
    return LinkDown(LinkId(link), "gone", jitter)


# ---------------------------------------------------------------- dialling


def test_a_plan_opens_the_links_to_dial_before_any_version() -> None:
    steps = Steps()
    hidden = neighbour("behind-nat", we_dial=False)
    assert steps.tell(plan(A, hidden, B, fallbacks=(neighbour("far", we_dial=True),))) == [Dial(A), Dial(B)]
    assert steps.ticks(5.0) == []
    assert steps.up(LINK, "a", dialled=True) == []


def test_an_older_plan_changes_nothing() -> None:
    steps = Steps()
    steps.tell(plan(A, plan_id=5))
    assert steps.tell(plan(B, plan_id=4)) == []
    assert steps.tell(plan(A, B, plan_id=5)) == [Dial(B)]


def test_a_failed_dial_is_retried_after_ever_longer_waits() -> None:
    steps = Steps()
    steps.tell(plan(A))
    waits = []
    for _ in range(9):
        steps.tell(DialFailed(A.peer_id, "nobody there", jitter=1.0))
        before = steps.now
        while steps.wait(0.01) != [Dial(A)]:
            assert steps.now < before + 11.0
        waits.append(round(steps.now - before, 1))
    assert waits == [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0, 10.0]


def test_a_link_that_ends_at_once_is_dialled_less_and_less_often() -> None:
    """A peer that accepts and closes must not be dialled five times a second."""
    steps = Steps()
    steps.tell(plan(A))
    dials = 0
    for link in range(1, 2000):
        steps.up(link, "a", dialled=True)
        steps.tell(down(link))
        dials += 1
        while steps.wait(0.05) != [Dial(A)]:
            pass
        if steps.now > 160.0:
            break
    assert dials <= 14


def test_a_link_that_lasted_is_dialled_again_soon() -> None:
    steps = Steps()
    steps.tell(plan(A))
    for _ in range(6):
        steps.tell(DialFailed(A.peer_id, "nobody there"))
    steps.up(LINK, "a", dialled=True)
    steps.wait(11.0)
    steps.tell(down(LINK))
    assert steps.wait(0.25) == [Dial(A)]


def test_a_dial_that_took_long_is_not_repeated_at_once() -> None:
    steps = Steps()
    steps.tell(plan(A))
    steps.now += 6.0  # of the handshake's ten seconds, on a full line
    steps.tell(DialFailed(A.peer_id, "no answer", jitter=1.0))
    assert steps.ticks(5.9) == []
    assert steps.wait(0.2) == [Dial(A)]


def test_jitter_spreads_the_redials_of_a_lost_peer() -> None:
    early, late = Steps(), Steps()
    for steps, jitter in ((early, 0.0), (late, 1.0)):
        steps.tell(plan(A))
        steps.tell(DialFailed(A.peer_id, "nobody there", jitter))
    assert (early.wait(0.15), late.wait(0.15)) == ([Dial(A)], [])


# ---------------------------------------------------------------- what a new link is told


def test_a_reconnected_neighbour_is_sent_what_is_held() -> None:
    steps = Steps()
    steps.tell(plan(neighbour("a"), lists=("a",)))
    steps.receive(2)
    steps.up(SECOND, "b")
    steps.chunk(SECOND, 0)
    steps.chunk(SECOND, 1)
    steps.tell(VersionFinished(KEY))
    assert steps.up(LINK, "a") == [
        SendAnnouncement(LinkId(LINK), Version(1)),
        SendChunkList(LinkId(LINK), KEY),
        SendHave(LinkId(LINK), KEY, 2, b"", True),
    ]
    assert steps.up(THIRD, "stranger") == []


def test_a_neighbour_that_comes_back_is_asked_while_chunks_are_missing() -> None:
    steps = Steps()
    steps.tell(plan(neighbour("a")))
    steps.receive(2)
    assert steps.up(LINK, "a") == [SendWant(LinkId(LINK), KEY, False)]


def test_a_neighbour_that_connects_during_a_version_learns_what_it_need_not_send() -> None:
    steps = Steps()
    steps.tell(plan(neighbour("a")))
    steps.receive(3, found=(1,))
    told = SendHave(LinkId(LINK), KEY, 3, bitmap(3, 1), False)
    assert told in steps.up(LINK, "a")
    assert told not in steps.up(SECOND, "stranger")


def test_an_advertised_address_that_no_neighbour_reaches_is_warned_of_once() -> None:
    steps = Steps()
    steps.tell(plan(neighbour("a"), neighbour("b"), neighbour("c", we_dial=True)))
    steps.up(LINK, "c", dialled=True)
    assert steps.ticks(59.0, 1.0) == []
    (warning,) = steps.ticks(120.0, 1.0)
    assert isinstance(warning, Warn)
    assert (warning.code, warning.what) == (
        "RC205",
        "none of 2 that are to dial this process got through in 60 s",
    )


def test_neighbours_with_punched_links_cause_no_such_warning() -> None:
    steps = Steps()
    steps.tell(plan(replace(neighbour("a"), address="punch"), neighbour("c", we_dial=True)))
    assert steps.ticks(120.0, 1.0) == []


def test_one_neighbour_that_dials_prevents_the_warning() -> None:
    steps = Steps()
    steps.tell(plan(neighbour("a"), neighbour("b")))
    steps.up(LINK, "a")
    assert steps.ticks(30.0, 1.0) == []
    steps.tell(LinkDown(LinkId(LINK), "gone", 0.0))
    assert steps.ticks(120.0, 1.0) == []


def test_a_peer_that_dials_all_neighbours_is_not_warned() -> None:
    steps = Steps()
    steps.tell(plan(neighbour("a", we_dial=True)))
    steps.up(LINK, "a", dialled=True)
    assert steps.ticks(120.0, 1.0) == []


def test_a_new_plan_introduces_new_children() -> None:
    steps = Steps()
    steps.up(LINK, "a")
    steps.tell(VersionRestored(KEY, 2, CHUNK_BYTES))
    assert steps.tell(plan(neighbour("a"), lists=("a",))) == [
        SendAnnouncement(LinkId(LINK), Version(1)),
        SendChunkList(LinkId(LINK), KEY),
    ]


def test_a_parent_that_is_lost_in_the_middle_counts_as_a_reparenting() -> None:
    steps = Steps()
    steps.tell(plan(neighbour("a"), parents=("a",)))
    steps.tell(plan(neighbour("b"), parents=("b",), plan_id=2))
    assert steps.state.counters.reparentings == 0
    steps.receive(2)
    steps.tell(plan(neighbour("a"), parents=("a",), plan_id=3))
    assert steps.state.counters.reparentings == 1


def test_chunks_follow_the_new_plan_at_once() -> None:
    steps = Steps()
    steps.tell(plan(neighbour("a"), neighbour("b"), stripes={4: ("a",)}))
    steps.up(LINK, "a")
    steps.up(SECOND, "b")
    steps.up(THIRD, "c")
    steps.receive(9)
    assert steps.chunk(THIRD, 0, 4) == [push(LINK, 0, 4)]
    steps.tell(plan(neighbour("a"), neighbour("b"), stripes={4: ("b",)}, plan_id=2))
    assert steps.chunk(THIRD, 1, 4) == [push(SECOND, 1, 4)]


# ---------------------------------------------------------------- several links of one peer


def test_the_newest_link_of_a_peer_is_used_and_a_third_replaces_the_oldest() -> None:
    steps = Steps()
    steps.tell(plan(neighbour("a"), stripes={4: ("a",)}))
    steps.up(LINK, "a")
    steps.up(9, "b")
    assert steps.up(SECOND, "a") == []
    assert steps.up(THIRD, "a") == [CloseLink(LinkId(LINK), "replaced by a newer link")]
    steps.receive(4)
    assert steps.chunk(9, 0, 4) == [push(THIRD, 0, 4)]
    steps.tell(down(THIRD))
    assert steps.chunk(9, 1, 4) == [push(SECOND, 1, 4)]
    steps.tell(down(SECOND))
    assert steps.chunk(9, 2, 4) == []
    assert steps.state.link_to.keys() == {PeerId("b")}


# ---------------------------------------------------------------- links that are closed


def test_an_unneeded_link_is_closed_after_a_while() -> None:
    steps = Steps()
    steps.up(LINK, "a", dialled=True)
    steps.up(SECOND, "b", dialled=False)
    assert steps.ticks(9.9) == []
    assert steps.ticks(0.3) == [CloseLink(LinkId(LINK), "no longer needed")]
    assert steps.ticks(20.0) == []


def test_links_of_the_plan_and_links_in_use_stay_open() -> None:
    steps = Steps()
    steps.tell(plan(A))
    steps.hold(4)
    steps.up(LINK, "a", dialled=True)
    steps.up(SECOND, "b", dialled=True)
    steps.tell(WantReceived(LinkId(SECOND), KEY))
    assert steps.ticks(15.0) == []
    assert steps.tell(RequestReceived(LinkId(SECOND), KEY, (0,))) == [answer(SECOND, 0)]


def test_a_peer_that_sent_wrong_bytes_has_no_link_for_a_while() -> None:
    steps = Steps()
    steps.tell(plan(A))
    steps.up(LINK, "a", dialled=True)
    steps.receive(4)
    why = "chunk does not match its signed hash"
    assert steps.tell(ChunkCorrupt(LinkId(LINK), KEY, ChunkIndex(2))) == [
        Accuse(LinkId(LINK), A.peer_id, KEY, ChunkIndex(2), why),
    ]
    assert steps.ticks(30.0, 1.0) == []
    assert steps.up(SECOND, "a") == [CloseLink(LinkId(SECOND), "this peer sent wrong bytes lately")]
    assert steps.chunk(SECOND, 1) == []
    steps.now += 29.0
    assert steps.ticks(2.0) == [Dial(A)]
    assert steps.up(THIRD, "a", dialled=True) == [SendWant(LinkId(THIRD), KEY, False)]


# ---------------------------------------------------------------- what is remembered


def test_state_of_peers_that_left_the_run_is_discarded() -> None:
    steps = Steps("origin")
    for number in range(1, 60):
        name = f"peer-{number}"
        steps.tell(plan(neighbour(name), stripes={1: (name,)}, plan_id=number))
        steps.up(number, name)
        steps.hold(4, key_of(number))
        steps.state.window_of(PeerId(name), CHUNK_BYTES)
        steps.tell(down(number))
        steps.now += 1.0
    steps.tell(plan(plan_id=100))
    assert steps.state.windows == {}
    assert len(steps.state.dials) <= 1
    assert steps.state.links == {}
