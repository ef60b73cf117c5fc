"""Pairs that punch a hole: how they are matched, ordered and judged; and two that meet at the same moment."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from coordinator.core.events.actions import Note, SendToPeer
from coordinator.core.events.events import PeerLeft, Tick
from coordinator.core.events.operator_events import PeerBanned
from coordinator.core.events.reach_events import PunchEnded, PunchRequested, RecordGiven, SeenAt
from coordinator.core.traversal.matchmaker import DEADLINE_S
from coordinator.core.traversal.rendezvous import FIRST_S, REFRESH_S, SAMPLE
from rollcast.wire.ids import PeerId
from rollcast.wire.proto import rollcast_pb2 as pb
from tests.coordinator.core.traversal.world import ReachWorld
from tests.coordinator.core_world import only

KINDS = ("open", "full-cone", "port-restricted", "symmetric", "firewall", "unknown")


def punch_requested(one: str, other: str) -> PunchRequested:
    return PunchRequested(PeerId(one), PeerId(other))


def world(**kinds: str) -> ReachWorld:
    made = ReachWorld()
    for name, nat in kinds.items():
        made.say(name, nat)
    return made


def refusal(here: ReachWorld, one: str, other: str) -> str:
    """Return why the request is refused; empty if there is a punch."""
    return here.messages_after(punch_requested(one, other))[one].punch.refused


def test_both_are_ordered_at_once_in_fixed_roles() -> None:
    here = world(a="port-restricted", b="port-restricted")
    messages = here.messages_after(punch_requested("b", "a"))
    assert set(messages) == {"a", "b"}
    to_a, to_b = messages["a"].punch, messages["b"].punch
    assert to_a.punch_id == to_b.punch_id > 0
    assert (to_a.peer_id, to_a.address, to_a.serves, to_a.asked) == ("b", here.punch_address("b"), True, False)
    assert (to_b.peer_id, to_b.address, to_b.serves, to_b.asked) == ("a", here.punch_address("a"), False, True)
    assert to_a.deadline_s == to_b.deadline_s == DEADLINE_S
    assert to_a.role == "peer"


def test_a_port_that_cannot_be_known_is_not_dialled() -> None:
    here = world(a="full-cone", b="symmetric")
    messages = here.messages_after(punch_requested("b", "a"))
    assert messages["a"].punch.address == ""
    assert messages["b"].punch.address == here.punch_address("a")


def test_over_ipv6_two_symmetric_routers_are_no_obstacle() -> None:
    here = world(a="symmetric", b="symmetric", c="symmetric")
    for number, name in enumerate("ab", 1):
        here.handle(SeenAt(PeerId(name), f"2001:db8::{number}"))
        here.say(name, "symmetric", punch_address_ipv6=f"[2001:db8::{number}]:9")
    messages = here.messages_after(punch_requested("b", "a"))
    assert (messages["a"].punch.address, messages["a"].punch.address_ipv6) == ("", "[2001:db8::2]:9")
    assert (messages["b"].punch.address, messages["b"].punch.address_ipv6) == ("", "[2001:db8::1]:9")
    assert "between our routers" in refusal(here, "a", "c")


def test_both_versions_of_ip_are_tried_where_both_may_work() -> None:
    here = world(a="port-restricted", b="port-restricted", c="port-restricted")
    for number, name in enumerate("ab", 1):
        here.handle(SeenAt(PeerId(name), f"2001:db8::{number}"))
        here.say(name, "port-restricted", punch_address_ipv6=f"[2001:db8::{number}]:9")
    to_a = here.messages_after(punch_requested("a", "b"))["a"].punch
    assert (to_a.address, to_a.address_ipv6) == (here.punch_address("b"), "[2001:db8::2]:9")
    to_c = here.messages_after(punch_requested("c", "a"))["c"].punch
    assert (to_c.address, to_c.address_ipv6) == (here.punch_address("a"), ""), "it has no IPv6 itself"


@pytest.mark.parametrize(
    ("one", "other", "why"),
    [
        ("a", "s", "between our routers"),
        ("a", "u", "between our routers"),
        ("a", "absent", "not connected"),
        ("a", "a", "not connected"),
    ],
)
def test_a_refusal_has_its_reason(one: str, other: str, why: str) -> None:
    here = world(a="port-restricted", s="symmetric", u="unknown")
    messages = here.messages_after(punch_requested(one, other))
    assert set(messages) == {one}
    assert messages[one].punch.peer_id == other
    assert why in messages[one].punch.refused


def test_no_peer_dials_the_port_of_an_ended_process() -> None:
    here = world(a="port-restricted", b="port-restricted")
    here.join("b")
    assert "has not reported its address" in refusal(here, "a", "b")
    assert "has not reported its address" in refusal(here, "b", "a")
    here.say("b", "", punch_address=here.punch_address("b"))
    assert refusal(here, "a", "b") == ""


def test_a_banned_peer_gets_no_holes_and_a_quarantined_one_neither() -> None:
    here = world(a="port-restricted", b="port-restricted")
    here.core.state.members.reputation(PeerId("b")).quarantined = "sent 3 corrupt chunks"
    here.core.state.members.worker_count -= 1
    assert "banned or quarantined" in refusal(here, "a", "b")
    assert "banned or quarantined" in refusal(here, "b", "a")
    here.handle(PeerBanned(PeerId("b"), "b", ""))
    assert "not connected" in refusal(here, "a", "b")


def test_a_pair_that_failed_pauses_and_may_retry_later() -> None:
    here = world(a="port-restricted", b="port-restricted")
    punch_id = here.messages_after(punch_requested("a", "b"))["a"].punch.punch_id
    here.handle(PunchEnded(PeerId("a"), punch_id, False, 3.0))
    assert "retry in 600 s" in refusal(here, "a", "b")
    assert "retry in" in refusal(here, "b", "a")
    here.now = 601.0
    here.handle(Tick())
    assert refusal(here, "a", "b") == ""


def test_the_askers_report_decides_and_silence_is_failure() -> None:
    here = world(a="port-restricted", b="port-restricted", c="full-cone")
    failures = here.core.state.reach.failures
    punch_id = here.messages_after(punch_requested("a", "b"))["a"].punch.punch_id
    here.handle(PunchEnded(PeerId("b"), punch_id, False, 3.0))
    assert len(failures) == 0
    here.handle(PunchEnded(PeerId("c"), punch_id, False, 3.0))  # none of its business
    here.handle(PunchEnded(PeerId("a"), punch_id, True, 0.3))
    assert len(failures) == 0
    assert here.core.state.reach.punches.opened == 1
    here.messages_after(punch_requested("c", "a"))
    here.now = 60.0
    noted = only(here.handle(Tick()), Note)
    assert [one.kind for one in noted] == ["punch_failed"]
    assert failures.of(PeerId("a")) == {"c"}


def test_a_member_that_asks_for_too_many_waits() -> None:
    here = ReachWorld()
    for number in range(60):
        here.say(f"p{number:02}", "full-cone")
    answers = [refusal(here, "p00", f"p{number:02}") for number in range(1, 60)]
    assert answers[:16] == [""] * 16
    assert "in progress" in answers[16]
    here.now = 60.0
    here.handle(Tick())
    assert refusal(here, "p00", "p40") == ""


def test_one_member_does_not_fill_all_places_of_another() -> None:
    here = world(a="full-cone", b="full-cone", c="full-cone")
    assert refusal(here, "a", "b") == ""
    for _ in range(30):
        assert "in progress" in refusal(here, "a", "b")
        assert "in progress" in refusal(here, "b", "a")
    assert refusal(here, "c", "b") == ""
    here.now = 60.0
    here.handle(Tick())
    assert here.core.state.reach.punches.failed == 2
    here.now = 3600.0
    here.handle(Tick())
    assert refusal(here, "a", "b") == ""


def test_asking_without_end_is_limited() -> None:
    here = world(a="full-cone", b="full-cone")
    granted = 0
    for _ in range(100):
        answer = here.messages_after(punch_requested("a", "b"))["a"].punch
        granted += not answer.refused
        here.handle(PunchEnded(PeerId("a"), answer.punch_id, True, 0.1))
    assert granted == 32
    assert refusal(here, "a", "b") == "too many requests from this peer"
    here.now += 1.0
    assert refusal(here, "a", "b") == ""


def test_a_punch_of_a_member_that_left_is_no_failure() -> None:
    here = world(a="port-restricted", b="port-restricted")
    here.messages_after(punch_requested("a", "b"))
    here.handle(PeerLeft(PeerId("b"), "bye"))
    here.now = 60.0
    here.handle(Tick())
    here.say("b", "port-restricted")
    assert refusal(here, "a", "b") == ""


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("ask"), st.integers(0, 4), st.integers(0, 4)),
            st.tuples(st.just("end"), st.integers(0, 4), st.integers(0, 30)),
            st.tuples(st.just("leave"), st.integers(0, 4), st.just(0)),
            st.tuples(st.just("wait"), st.integers(0, 900), st.just(0)),
        ),
        max_size=40,
    )
)
@hypothesis_settings(max_examples=60, deadline=None)
def test_nothing_is_left_over_whatever_happens(steps: list[tuple[str, int, int]]) -> None:
    here = world(**{f"p{index}": kind for index, kind in enumerate(KINDS[:5])})
    matchmaker = here.core._traversal.matchmaker
    for what, one, two in steps:
        name = PeerId(f"p{one}")
        if what == "ask":
            here.handle(punch_requested(name, f"p{two}"))
        elif what == "end":
            here.handle(PunchEnded(name, two, two % 2 == 0, 1.0))
        elif what == "leave":
            here.handle(PeerLeft(name, "bye"))
            here.say(name, KINDS[one])
        else:
            here.now += one
            here.handle(Tick())
    figures = here.core.state.reach.punches
    assert figures.opened + figures.failed <= figures.asked
    here.now += 60.0
    here.handle(Tick())
    assert not matchmaker._in_progress
    assert not matchmaker._pairs
    assert not matchmaker._busy


def record(name: str, *addresses: str) -> RecordGiven:
    """Return the event of a peer's record, whose signature counts as checked."""
    payload = pb.PeerRecord(run_id="run", peer_id=name, addresses=addresses).SerializeToString()
    return RecordGiven(PeerId(name), pb.Signed(payload=payload).SerializeToString())


def world_of_records(*names: str) -> ReachWorld:
    made = ReachWorld()
    for name in names:
        made.join(name)
        made.handle(record(name, f"{made.reach(name).host}:1"))
    return made


def records_sent(here: ReachWorld, seconds: float) -> dict[str, set[str]]:
    """Return the owners of the records that each member is sent after this time."""
    here.now += seconds
    sent: dict[str, set[str]] = {}
    for one in only(here.handle(Tick()), SendToPeer):
        if one.message.WhichOneof("body") == "peer_records":
            payloads = [signed.payload for signed in one.message.peer_records.records]
            sent[one.peer_id] = {pb.PeerRecord.FromString(payload).peer_id for payload in payloads}
    return sent


def test_a_new_member_receives_records_soon_and_again_later() -> None:
    here = world_of_records("a", "b", "c")
    assert records_sent(here, FIRST_S / 2) == {}
    assert records_sent(here, FIRST_S) == {"origin": {"a", "b", "c"}, "a": {"b", "c"}, "b": {"a", "c"}, "c": {"a", "b"}}
    assert records_sent(here, REFRESH_S / 2) == {}
    assert set(records_sent(here, REFRESH_S)) == {"origin", "a", "b", "c"}


def test_the_newest_record_is_sent_unless_it_has_no_addresses() -> None:
    here = world_of_records("a", "b")
    host = here.reach("b").host
    for event in (record("a"), record("b", f"{host}:1"), record("b", f"{host}:2")):
        here.handle(event)
    here.now += FIRST_S
    sent = {str(one.peer_id): one.message.peer_records.records for one in only(here.handle(Tick()), SendToPeer)}
    assert "b" not in sent
    for name in ("a", "origin"):
        (signed,) = sent[name]
        assert pb.PeerRecord.FromString(signed.payload).addresses == [f"{host}:2"]


def test_a_record_with_an_address_of_a_third_party_is_not_sent() -> None:
    here = world_of_records("a", "b", "c")
    here.handle(record("b", f"{here.reach('b').host}:1", "203.0.113.9:22"))
    here.handle(record("c", "http://127.0.0.1:80/x"))
    assert records_sent(here, FIRST_S) == {"origin": {"a"}, "b": {"a"}, "c": {"a"}}


def test_records_of_absent_or_excluded_members_are_not_sent() -> None:
    here = world_of_records("a", "b", "c")
    assert here.core.state.reach.records == 3
    here.handle(PeerLeft(PeerId("a"), "gone", finished=True))
    assert here.core.state.reach.records == 2
    here.handle(PeerBanned(PeerId("b"), "b", ""))
    assert records_sent(here, FIRST_S) == {"origin": {"c"}}


def test_the_origin_is_in_every_sample_and_all_others_equally_often() -> None:
    names = [f"p{number}" for number in range(3 * SAMPLE)]
    here = world_of_records(*names)
    here.handle(record("origin", "origin:1"))
    samples = records_sent(here, FIRST_S)
    assert set(samples) == {"origin", *names}
    assert all("origin" in samples[name] and SAMPLE - 1 <= len(samples[name]) <= SAMPLE for name in names)
    times = [sum(name in sample for sample in samples.values()) for name in names]
    assert max(times) - min(times) <= 2


def test_a_member_that_rejoins_often_has_one_turn() -> None:
    here = world_of_records("a", "b")
    for _ in range(20):
        here.handle(PeerLeft(PeerId("a"), "gone", finished=True))
        here.join("a")
        here.handle(record("a", f"{here.reach('a').host}:1"))
    assert records_sent(here, FIRST_S)["b"] == {"a"}
