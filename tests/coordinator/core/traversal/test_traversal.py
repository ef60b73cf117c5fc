"""Help for members to reach each other: how often they get it, which are excluded, and what the status shows."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.core.events.actions import Note, SendPlan, SendToPeer, TryAddress
from coordinator.core.events.events import LinkFacts, PeerLeft, RunEnded, Tick
from coordinator.core.events.operator_events import PeerBanned, PeerEnabled
from coordinator.core.events.reach_events import DialBackEnded, PunchEnded, PunchRequested, ReachabilityTold
from coordinator.core.traversal.bans import COMPARE_EVERY_S
from coordinator.core.traversal.rate_limit import Turns
from coordinator.core.traversal.status import ReachCounts, ReachStatus, build_reach_status
from rollcast.wire import limits
from rollcast.wire.ids import PeerId
from tests.coordinator.core.traversal.world import ReachWorld
from tests.coordinator.core_world import heartbeat, joined, only


def addresses(here: ReachWorld, name: str) -> dict[str, str]:
    """Return the addresses that this member was sent to dial."""
    part = here.core.state.relay.assignment_of(PeerId(name))
    assert part is not None
    return {one.peer_id: one.address for one in part.neighbours if one.we_dial}


def tick(here: ReachWorld, seconds: float) -> list[SendPlan]:
    here.now += seconds
    return only(here.handle(Tick()), SendPlan)


def test_two_behind_routers_are_linked_once_it_is_known_that_they_can_be() -> None:
    here = ReachWorld()
    for name in ("a", "b"):
        here.join(name)
    assert addresses(here, "b") == {"origin": "origin:1"}
    assert only(here.say("a", "port-restricted"), SendPlan) == []
    here.say("b", "port-restricted")
    assert tick(here, 2.0)
    assert addresses(here, "b") == {"origin": "origin:1", "a": "punch"}
    assert addresses(here, "a") == {"origin": "origin:1"}


def test_a_pair_that_fails_is_planned_apart_and_together_again_later() -> None:
    here = ReachWorld()
    for name in ("a", "b"):
        here.say(name, "port-restricted")
    tick(here, 2.0)
    punch_id = here.messages_after(PunchRequested(PeerId("b"), PeerId("a")))["b"].punch.punch_id
    here.handle(PunchEnded(PeerId("b"), punch_id, False, 3.0))
    assert tick(here, 2.0)
    assert addresses(here, "b") == {"origin": "origin:1"}
    tick(here, 700.0)
    tick(here, 2.0)
    assert addresses(here, "b") == {"origin": "origin:1", "a": "punch"}


def at_home(here: ReachWorld, *names: str, site: str = "home", nat: str = "symmetric") -> None:
    for number, name in enumerate(names):
        here.join(name, site=site)
        here.say(name, nat, local_address=f"192.168.1.{number + 2}:7420")
    tick(here, 2.0)


def test_only_two_behind_one_router_receive_each_others_local_addresses() -> None:
    here = ReachWorld()
    at_home(here, "a", "b")
    at_home(here, "x", site="elsewhere")
    assert addresses(here, "b") == {"origin": "origin:1", "a": "192.168.1.2:7420 punch"}
    assert addresses(here, "a") == addresses(here, "x") == {"origin": "origin:1"}
    part = here.core.state.relay.assignment_of(PeerId("origin"))
    assert part is not None
    assert "192.168" not in repr(part)


def test_local_addresses_are_not_sent_where_a_prefix_is_no_local_network() -> None:
    here = ReachWorld(lan_preferred=False)
    at_home(here, "a", "b")
    assert addresses(here, "b") == {"origin": "origin:1"}


def test_two_behind_one_router_that_fail_to_connect_are_planned_apart_for_a_while() -> None:
    here = ReachWorld()
    at_home(here, "a", "b")
    assert here.messages_after(PunchRequested(PeerId("b"), PeerId("a")))["b"].punch.refused  # the next way in its list
    assert tick(here, 2.0)
    assert addresses(here, "b") == {"origin": "origin:1"}
    tick(here, 700.0)
    tick(here, 2.0)
    assert addresses(here, "b") == {"origin": "origin:1", "a": "192.168.1.2:7420 punch"}


def test_two_of_one_site_without_nat_reports_yet_do_not_count_as_failed() -> None:
    here = ReachWorld()
    at_home(here, "a", "b", nat="")
    assert here.messages_after(PunchRequested(PeerId("b"), PeerId("a")))["b"].punch.refused
    assert len(here.core.state.reach.failures) == 0
    for name in ("a", "b"):
        here.say(name, "port-restricted", local_address="192.168.1.2:7420")
    assert not here.messages_after(PunchRequested(PeerId("b"), PeerId("a")))["b"].punch.refused


def test_a_refused_hole_is_no_failure_of_members_without_a_shared_network() -> None:
    here = ReachWorld()
    at_home(here, "a")
    at_home(here, "x", site="elsewhere")
    assert here.messages_after(PunchRequested(PeerId("x"), PeerId("a")))["x"].punch.refused
    assert len(here.core.state.reach.failures) == 0


def test_news_that_change_no_plan_lead_to_none_and_many_to_one() -> None:
    here = ReachWorld()
    for name in "abcdef":
        here.say(name, "port-restricted")
    plans = tick(here, 2.0)
    assert len(plans) == len({one.peer_id for one in plans}) == 7
    assert tick(here, 60.0) == []
    here.say("a", "port-restricted", relay_address="/ip4/198.51.100.1/tcp/4001")
    assert tick(here, 60.0) == []


def test_a_member_that_reports_changes_all_the_time_causes_few_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    here, asked = ReachWorld(), 0
    relaying = here.core._broadcasts
    again = relaying.reachability_changed

    def counted(now: float) -> None:
        nonlocal asked
        asked += 1
        again(now)

    monkeypatch.setattr(relaying, "reachability_changed", counted)
    for name in ("a", "b"):
        here.say(name, "port-restricted")
    tick(here, 2.0)
    for number in range(119):
        here.say("a", ("full-cone", "symmetric")[number % 2])
        tick(here, 1.0)
    assert asked <= 12
    assert here.reach("a").nat == "full-cone"
    tick(here, 60.0)
    tick(here, 2.0)
    assert addresses(here, "b") == {"origin": "origin:1", "a": "punch"}, "what it said last is planned with"


def test_an_address_found_wrong_is_not_planned_with() -> None:
    here = ReachWorld()
    here.join("a", address="{host}:1")
    here.join("b")
    assert addresses(here, "b") == {"origin": "origin:1", "a": "198.51.100.1:1"}
    here.core.state.reach.found(PeerId("a"), dialable=False)
    tick(here, 2.0)
    tick(here, 2.0)
    assert addresses(here, "b") == {"origin": "origin:1"}


@pytest.mark.parametrize("lie", ["http://127.0.0.1:80/x", "203.0.113.9:22", "a.example:1", "/ip4/203.0.113.9/tcp/1"])
def test_an_address_of_a_third_party_is_in_no_plan_and_noted_once(lie: str) -> None:
    here = ReachWorld()
    noted = only(here.join("a", address=lie), Note)
    here.join("b")
    assert [one.detail for one in noted if one.kind == "address_refused"] == [
        f"{lie}: its session comes from 198.51.100.1, and no dial-back has found it there"
    ]
    for _ in range(2):
        actions = here.say("a", "mapped", advertise=lie)
        assert [one.kind for one in only(actions, Note)] == []
    for _ in range(10):
        tick(here, 2.0)
    assert addresses(here, "b") == {"origin": "origin:1"}


def test_a_name_is_planned_with_once_a_dial_back_has_found_the_member_there() -> None:
    here = ReachWorld()
    here.join("a", address="a.example:1")
    here.join("b")
    check = only(here.handle(Tick()), TryAddress)[-1]
    assert (check.address, check.host) == ("a.example:1", "198.51.100.1"), "at once, as plans wait for it"
    here.handle(DialBackEnded(PeerId(""), check.check_id, True, "", "198.51.100.1:1"))
    for _ in range(10):
        tick(here, 2.0)
    assert addresses(here, "b") == {"origin": "origin:1", "a": "a.example:1"}


def test_private_addresses_are_told_to_members_of_private_networks_alone() -> None:
    here = ReachWorld()
    for name, host in (("a", "10.1.0.5"), ("b", "10.2.0.6"), ("c", "8.8.8.8"), ("d", "127.0.0.1"), ("e", "9.9.9.9")):
        here.handle(replace(joined(name, address=f"{host}:1"), host=host))
    told = {name: addresses(here, name).keys() for name in "abcde"}
    assert told["a"] | told["b"] <= {"origin", "a", "b", "c", "e"}
    assert told["c"] | told["e"] <= {"origin", "c", "e"}
    assert "a" in told["b"] | told["d"]
    assert told["d"] >= {"origin"}


def test_an_address_that_was_mapped_later_takes_the_place_of_none() -> None:
    here = ReachWorld()
    here.say("a", "mapped", advertise="198.51.100.1:7400")
    here.join("b")
    tick(here, 2.0)
    assert addresses(here, "b")["a"] == "198.51.100.1:7400"


def test_a_false_address_is_noted_once() -> None:
    here = ReachWorld()
    here.join("a")
    lie = ReachabilityTold(PeerId("a"), "full-cone", "203.0.113.9:22")
    assert [one.kind for one in only(here.handle(lie), Note)] == ["punch_address_refused"]
    assert only(here.handle(lie), Note) == []


def test_events_after_the_end_or_from_strangers_are_ignored() -> None:
    here = ReachWorld()
    here.say("a", "port-restricted")
    assert here.handle(ReachabilityTold(PeerId("stranger"), "open")) == []
    here.handle(RunEnded("done", final=True))
    assert here.handle(PunchRequested(PeerId("a"), PeerId("origin"))) == []
    here.handle(Tick())


def test_a_second_session_of_the_same_peer_keeps_the_reports_of_the_first() -> None:
    here = ReachWorld()
    here.say("a", "port-restricted")
    here.join("a")
    assert here.reach("a").hole == 2
    here.handle(replace(joined("a", address=""), host="198.51.100.77"))
    assert here.reach("a").hole == 0


Bans = dict[str, tuple[list[str], list[str]]]


def bans_sent(sent: list[SendToPeer]) -> Bans:
    """Return the banned and the pardoned identities that each member is sent."""
    messages = {one.peer_id: one.message.banned for one in sent if one.message.WhichOneof("body") == "banned"}
    return {peer_id: (list(one.peer_ids), list(one.pardoned)) for peer_id, one in messages.items()}


def later(here: ReachWorld) -> Bans:
    here.now += COMPARE_EVERY_S
    return bans_sent(only(here.handle(Tick()), SendToPeer))


def test_all_members_receive_bans_and_pardons_soon() -> None:
    here = ReachWorld()
    for name in ("a", "b"):
        here.join(name)
    assert later(here) == {}
    here.handle(PeerBanned(PeerId("b"), "b", "it lies"))
    assert later(here) == {"origin": (["b"], []), "a": (["b"], [])}
    assert later(here) == {}
    assert bans_sent(only(here.join("c"), SendToPeer)) == {"c": (["b"], [])}
    here.handle(PeerEnabled(PeerId("b"), ""))
    assert later(here)["a"] == ([], ["b"])
    assert bans_sent(only(here.join("d"), SendToPeer)) == {}


def test_those_banned_longest_ago_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "BANNED_MAX", 2)
    here = ReachWorld()
    for name in ("x", "y"):
        here.handle(PeerBanned(PeerId(name), name, ""))
    assert later(here) == {"origin": (["x", "y"], [])}
    here.handle(PeerBanned(PeerId("z"), "z", ""))
    assert later(here) == {"origin": (["z"], ["x"])}


def test_a_quarantined_member_still_receives() -> None:
    here = ReachWorld()
    here.join("a")
    here.core.state.members.reputation(PeerId("a")).quarantined = "sent 3 corrupt chunks"
    here.core.state.members.worker_count -= 1
    assert later(here) == {}


A, B = PeerId("a"), PeerId("b")


def test_some_at_once_then_one_now_and_then_and_each_for_itself() -> None:
    turns = Turns(at_once=3, every_s=10.0)
    assert [turns.take(A, 5.0) for _ in range(5)] == [True, True, True, False, False]
    assert turns.take(B, 5.0)
    assert not turns.take(A, 14.9)
    assert turns.take(A, 15.0)
    assert not turns.take(A, 15.0)
    assert [turns.take(A, 100.0) for _ in range(4)] == [True, True, True, False]


def test_a_member_with_all_its_turns_is_discarded() -> None:
    turns = Turns(at_once=2, every_s=1.0)
    for number in range(1000):
        turns.take(PeerId(str(number)), float(number))
    assert len(turns) <= 2


@given(st.lists(st.tuples(st.floats(0, 30), st.sampled_from([A, B])), max_size=60), st.integers(1, 5))
def test_never_more_than_the_rate_allows(steps: list[tuple[float, PeerId]], at_once: int) -> None:
    turns, now, granted = Turns(at_once=at_once, every_s=4.0), 0.0, [0, 0]
    for wait_s, who in steps:
        now += wait_s
        granted[who == B] += turns.take(who, now)
        assert max(granted) <= at_once + now / 4.0 + 1e-6


def link(to: str, transport: str, *, lan: bool = False) -> LinkFacts:
    return LinkFacts(PeerId(to), transport, 0.0, 0, 0, 0.0, "", lan)


def children_of_origin(here: ReachWorld) -> set[tuple[str, ...]]:
    """Return the members to which the origin gives the chunks of each stripe."""
    part = here.core.state.relay.assignment_of(PeerId("origin"))
    assert part is not None
    return {tuple(part.neighbours[index].peer_id for index in stripe.children) for stripe in part.stripes}


def test_a_site_receives_one_copy_once_its_members_were_linked_in_these_sessions() -> None:
    here = ReachWorld()

    def join(name: str, port: int, host: str = "9.9.9.9", site: str = "office") -> None:
        here.handle(replace(joined(name, address=f"{host}:{port}"), host=host, site=site))

    for port, name in enumerate("abc", start=1):
        join(name, port)
    join("x", 1, "8.8.8.8", "home")
    tick(here, 2.0)
    assert children_of_origin(here) == {("a",), ("b",), ("c",), ("x",)}
    for name in "abc":
        links = tuple(link(other, "direct") for other in "abc" if other != name)
        here.handle(heartbeat(name, links=links))
    assert tick(here, 2.0)
    assert len(here.core.state.relay.children_of(PeerId("x"))) <= 1, (
        "one of the three passes its chunks on to the others"
    )
    for name in "abc":
        here.handle(heartbeat(name))
    assert tick(here, 2.0) == [], "a link that ended was possible nevertheless"
    for port, name in enumerate("abc", start=1):
        here.handle(PeerLeft(PeerId(name), "gone"))
        join(name, port)
    assert children_of_origin(here) == {("a",), ("b",), ("c",), ("x",)}


def reach_status(here: ReachWorld) -> ReachStatus:
    counts = ReachCounts()
    for member in here.core.state.members:
        counts.add(here.core.state, [member])
    return build_reach_status(here.core.state, counts)


def test_members_links_and_holes_are_counted() -> None:
    here = ReachWorld()
    here.join("d", address="{host}:1")
    for name, nat in (("a", "port-restricted"), ("b", "port-restricted"), ("s", "symmetric")):
        here.say(name, nat)
    here.handle(heartbeat("a", links=(link("b", "punched"), link("d", "direct"), link("origin", "direct", lan=True))))
    here.handle(heartbeat("s", links=(link("d", "relayed"),)))
    first = here.messages_after(PunchRequested(PeerId("a"), PeerId("b")))["a"].punch.punch_id
    here.handle(PunchEnded(PeerId("a"), first, True, 0.5))
    second = here.messages_after(PunchRequested(PeerId("b"), PeerId("a")))["b"].punch.punch_id
    here.handle(PunchEnded(PeerId("b"), second, False, 3.0))
    here.messages_after(PunchRequested(PeerId("a"), PeerId("s")))
    status = reach_status(here)
    assert status.members == {"dialable": 2, "hole-punchable": 2, "only outwards": 1}
    assert status.link_ends == {
        "LAN": 1,
        "direct": 1,
        "hole-punched": 1,
        "libp2p": 0,
        "relayed": 1,
        "mirror": 0,
    }
    punches = status.punches
    assert (punches.asked, punches.refused, punches.opened, punches.failed) == (2, 1, 1, 1)
    assert (punches.seconds_mean, punches.pairs_left_alone) == (0.5, 1)


def test_an_address_found_wrong_counts_as_none() -> None:
    here = ReachWorld()
    here.join("a", address="{host}:1")
    here.core.state.reach.found(PeerId("a"), dialable=False)
    assert reach_status(here).members["only outwards"] == 1
