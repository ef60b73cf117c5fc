"""Dial-backs: which addresses members are asked to dial, what their results mean, and what is never dialled."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.core.decisions.state import CoreState
from coordinator.core.events.actions import Action, Note, SendToPeer, TryAddress
from coordinator.core.events.reach_events import DialBackEnded, ReachabilityTold, SeenAt
from coordinator.core.reach.dial_settings import DialBackSettings
from coordinator.core.traversal.dial_backs import (
    AGAIN_AFTER_FAILURE_S,
    ANSWER_WITHIN_S,
    DIALABLE_AGAIN_S,
    FIRST_AFTER_S,
    UNDIALABLE_AGAIN_S,
    DialBacks,
    direct_addresses,
)
from rollcast.wire.ids import PeerId
from rollcast.wire.proto import rollcast_pb2 as pb
from tests.coordinator.core_world import joined, settings


class World:
    """Members by name; each is at a host of its own."""

    def __init__(self, **changes: Any) -> None:
        self.state = CoreState(settings(dial_backs=DialBackSettings(**changes)))
        self.part = DialBacks(self.state)
        self.now = 100.0

    def join(self, name: str, host: str, address: str | None = None, role: str = "peer") -> list[Action]:
        advertised = f"{host}:7" if address is None else address
        event = replace(joined(name, role=role, address=advertised), host=host, site=host)
        member = self.state.members.join(event, self.now)
        self.state.reach.joined(member.peer_id, host, advertised)
        return self.part.joined(member, self.now)

    def pass_s(self, seconds: float) -> list[Action]:
        self.now += seconds
        return self.part.tick(self.now)

    def ended(self, name: str, check: int, reached: bool = False, **changes: Any) -> list[Action]:
        return self.part.received(DialBackEnded(PeerId(name), check, reached, **changes), self.now)

    def check(self, reached: dict[str, bool], check: int) -> list[Action]:
        found: list[Action] = []
        for name, through in reached.items():
            found += self.ended(name, check, through, problem="" if through else "refused")
        return found


def asked(actions: list[Action]) -> list[tuple[str, str]]:
    """Return the orders to dial: the dialing member, empty for the coordinator, and the address."""
    found = [("", one.address) for one in actions if isinstance(one, TryAddress)]
    orders = [one for one in actions if isinstance(one, SendToPeer) and one.message.HasField("dial_back")]
    return found + [(one.peer_id, one.message.dial_back.address) for one in orders]


def verdicts(actions: list[Action]) -> list[pb.DialVerdict]:
    orders = [one.message for one in actions if isinstance(one, SendToPeer)]
    return [one.dial_verdict for one in orders if one.HasField("dial_verdict")]


def world_of_five(**changes: Any) -> World:
    world = World(**changes)
    world.join("target", "192.0.2.1")
    for number in range(2, 6):
        world.join(f"helper{number}", f"192.0.2.{number}", "")
    return world


def test_the_coordinator_and_three_others_dial_and_a_majority_counts() -> None:
    world = world_of_five()
    assert not world.pass_s(FIRST_AFTER_S - 0.1)
    actions = world.pass_s(0.1)
    address = "192.0.2.1:7"
    assert asked(actions) == [("", address), ("helper2", address), ("helper3", address), ("helper4", address)]
    assert not world.check({"": True, "helper2": True, "helper3": False}, 1)
    found = world.ended("helper4", 1, True)
    assert verdicts(found) == [pb.DialVerdict(address=address, dialable=True, asked=4, reached=3)]
    reach = world.state.reach.of(PeerId("target"))
    assert (reach.dialable, reach.checked) == (True, "3 of 4 peers that tried could connect to 192.0.2.1:7")
    assert not world.pass_s(DIALABLE_AGAIN_S - 1.0)
    assert [who for who, _ in asked(world.pass_s(1.0))][1:] == ["helper5", "helper2", "helper3"]


def test_an_address_that_two_checks_failed_at_counts_as_none_until_one_succeeds() -> None:
    world = world_of_five()
    nobody = {"": True, "helper2": False, "helper3": False, "helper4": False}
    world.pass_s(FIRST_AFTER_S)
    assert not world.check(nobody, 1)
    assert world.state.reach.of(PeerId("target")).address
    world.pass_s(AGAIN_AFTER_FAILURE_S)
    found = world.check({"": False, "helper5": False, "helper2": False, "helper3": True}, 2)
    assert verdicts(found) == [
        pb.DialVerdict(address="192.0.2.1:7", dialable=False, asked=4, reached=1, problem="refused")
    ]
    assert [one.kind for one in found if isinstance(one, Note)] == ["peer_undialable"]
    assert world.state.reach.of(PeerId("target")).address == ""
    assert world.state.reach.take_changed()
    world.pass_s(UNDIALABLE_AGAIN_S)
    found = world.check({"": True, "helper4": True, "helper5": False, "helper2": False}, 3)
    assert [one.kind for one in found if isinstance(one, Note)] == ["peer_dialable"]
    assert world.state.reach.of(PeerId("target")).address == "192.0.2.1:7"


def test_an_address_that_was_dialable_needs_three() -> None:
    world = World()
    world.join("target", "192.0.2.1")
    world.pass_s(FIRST_AFTER_S)
    world.ended("", 1, True)
    world.pass_s(DIALABLE_AGAIN_S)
    for check, after_s in ((2, AGAIN_AFTER_FAILURE_S), (3, 2 * AGAIN_AFTER_FAILURE_S)):
        assert not world.ended("", check, False)
        assert not world.pass_s(after_s - 1.0)
        assert asked(world.pass_s(1.0))
    assert not verdicts(world.ended("", 4, False))[0].dialable


def test_the_origins_address_stays_in_plans() -> None:
    world = World()
    world.join("origin", "192.0.2.1", role="origin")
    world.pass_s(FIRST_AFTER_S)
    world.ended("", 1, False, problem="refused")
    notes = []
    for check, after_s in ((2, AGAIN_AFTER_FAILURE_S), (3, UNDIALABLE_AGAIN_S)):
        world.pass_s(after_s)
        found = world.ended("", check, False, problem="refused")
        assert not verdicts(found)[0].dialable
        notes += [one.kind for one in found if isinstance(one, Note)]
    assert notes == ["peer_undialable"]
    assert world.state.reach.of(PeerId("origin")).address == "192.0.2.1:7"


def test_members_behind_the_same_router_and_excluded_ones_do_not_help() -> None:
    world = World()
    world.join("target", "192.0.2.1")
    world.join("neighbour", "192.0.2.1", "")
    world.join("banned", "192.0.2.2", "")
    world.state.members.reputation(PeerId("banned")).banned = "by order"
    assert asked(world.pass_s(FIRST_AFTER_S)) == [("", "192.0.2.1:7")]
    assert verdicts(world.ended("", 1, True))[0].asked == 1


def test_members_that_may_not_help_do_not_block_the_others() -> None:
    world = World()
    world.join("target", "192.0.2.1")
    for number in range(70):
        world.join(f"banned{number}", f"198.51.100.{number}", "")
        world.state.members.reputation(PeerId(f"banned{number}")).banned = "by order"
    world.join("helper", "192.0.2.2", "")
    assert asked(world.pass_s(FIRST_AFTER_S)) == [("", "192.0.2.1:7")]
    world.ended("", 1, True)
    assert asked(world.pass_s(DIALABLE_AGAIN_S)) == [("", "192.0.2.1:7"), ("helper", "192.0.2.1:7")]


@pytest.mark.parametrize("address", ["198.51.100.1:7", "127.0.0.1:22", "10.0.0.1:80", "[2001:db8::1]:7"])
def test_no_member_can_have_a_third_party_dialled(address: str) -> None:
    world = World()
    world.join("target", "192.0.2.1", address)
    world.join("helper", "192.0.2.2", "")
    actions = world.pass_s(FIRST_AFTER_S)
    assert not asked(actions)
    (verdict,) = verdicts(actions)
    assert (verdict.asked, verdict.dialable) == (0, True)
    assert "192.0.2.1" in verdict.problem
    assert world.state.reach.of(PeerId("target")).checked == f"not checked: {verdict.problem}"


def test_where_the_session_comes_from_must_be_known() -> None:
    world = World()
    world.join("target", "", "192.0.2.1:7")
    assert not world.pass_s(FIRST_AFTER_S)


def test_what_the_operator_allows_is_dialled() -> None:
    world = World(networks=("198.51.100.0/24",))
    world.join("target", "192.0.2.1", "198.51.100.1:7")
    assert asked(world.pass_s(FIRST_AFTER_S)) == [("", "198.51.100.1:7")]


def test_a_name_is_looked_up_before_others_are_asked() -> None:
    world = World()
    world.join("target", "192.0.2.1", "peer.example:7")
    world.join("helper", "192.0.2.2", "")
    actions = world.pass_s(FIRST_AFTER_S)
    assert actions == [TryAddress(1, PeerId("target"), "peer.example:7", "192.0.2.1")]
    assert asked(world.ended("", 1, True, address="192.0.2.1:7")) == [("helper", "192.0.2.1:7")]
    assert verdicts(world.ended("helper", 1, True))[0].reached == 2


def test_a_name_that_leads_elsewhere_is_not_dialled() -> None:
    world = World()
    world.join("target", "192.0.2.1", "peer.example:7")
    world.pass_s(FIRST_AFTER_S)
    (verdict,) = verdicts(world.ended("", 1, tried=False, problem="it leads elsewhere"))
    assert (verdict.asked, verdict.dialable, verdict.problem) == (0, True, "it leads elsewhere")


def test_answers_that_do_not_come_do_not_count() -> None:
    world = world_of_five()
    world.pass_s(FIRST_AFTER_S)
    world.ended("helper2", 1, True)
    world.part.left(PeerId("helper3"), world.now)
    assert not world.pass_s(ANSWER_WITHIN_S - 0.1)
    assert verdicts(world.pass_s(0.1))[0].asked == 1
    world = world_of_five()
    world.pass_s(FIRST_AFTER_S)
    assert not verdicts(world.pass_s(ANSWER_WITHIN_S))
    assert world.state.reach.dial_backs.unanswered == 1
    assert asked(world.pass_s(60.0))


def test_only_members_that_were_asked_count_and_each_once() -> None:
    world = world_of_five()
    world.pass_s(FIRST_AFTER_S)
    for name, check in (("helper5", 1), ("target", 1), ("helper2", 2)):
        assert not world.ended(name, check, False)
    world.ended("helper2", 1, True)
    world.ended("helper2", 1, False)
    assert not verdicts(world.check({"": True, "helper3": True}, 1))
    assert verdicts(world.ended("helper4", 1, True))[0].reached == 4


def test_another_address_is_checked_soon_and_not_more_often_than_that() -> None:
    world = World()
    world.join("target", "192.0.2.1")
    world.pass_s(FIRST_AFTER_S)
    world.ended("", 1, True)
    report = ReachabilityTold(PeerId("target"), "mapped", advertise="192.0.2.1:9")
    world.state.reach.reported(report)
    member = world.state.members.get(PeerId("target"))
    assert member is not None
    world.part.reported(member, world.now)
    world.part.reported(member, world.now)
    assert not world.pass_s(9.0)
    assert asked(world.pass_s(1.0)) == [("", "192.0.2.1:9")]
    assert world.state.reach.of(PeerId("target")).dialable is None


def test_a_member_that_changes_its_address_often_has_one_check_at_a_time() -> None:
    world = world_of_five()
    world.pass_s(FIRST_AFTER_S)
    member = world.state.members.get(PeerId("target"))
    assert member is not None
    started = []
    for second in range(60):
        for advertise in ("", f"192.0.2.1:{second + 9}", "nowhere", f"192.0.2.1:{second + 99}"):
            world.state.reach.reported(ReachabilityTold(PeerId("target"), "mapped", advertise=advertise))
            world.part.reported(member, world.now)
        started += [one for one in world.pass_s(1.0) if isinstance(one, TryAddress)]
    assert len(started) == 6, "one in 10 s"
    assert len(world.part._due) < 10


def test_nothing_is_dialled_where_the_operator_disabled_it() -> None:
    world = World(enabled=False)
    world.join("target", "192.0.2.1")
    assert not world.pass_s(FIRST_AFTER_S)


def test_the_direct_addresses_among_several() -> None:
    both = "192.0.2.1:7 /ip4/192.0.2.1/tcp/8 [2001:db8::1]:7 /ip6/2001:db8::1/tcp/8"
    assert direct_addresses(both) == ("192.0.2.1:7", "[2001:db8::1]:7")
    for none in ("", "none", "/ip4/192.0.2.1/tcp/8", "https://example.org/x", "host:99999", ":7", "host:"):
        assert direct_addresses(none) == ()


BOTH = "192.0.2.1:7 [2001:db8::1]:7"
SEEN = SeenAt(PeerId("target"), "2001:db8::1")


def test_the_second_address_is_checked_once_the_first_has_failed() -> None:
    world = World()
    world.join("target", "192.0.2.1", BOTH)
    world.state.reach.seen(SEEN)
    assert asked(world.pass_s(FIRST_AFTER_S)) == [("", "192.0.2.1:7")]
    world.ended("", 1, False, problem="refused")
    assert asked(world.pass_s(AGAIN_AFTER_FAILURE_S)) == [("", "192.0.2.1:7")]
    assert not world.ended("", 2, False, problem="refused")
    assert asked(world.pass_s(10.0)) == [("", "[2001:db8::1]:7")]
    assert verdicts(world.ended("", 3, True))[0].address == "[2001:db8::1]:7"
    assert world.state.reach.of(PeerId("target")).address == BOTH
    assert asked(world.pass_s(DIALABLE_AGAIN_S)) == [("", "[2001:db8::1]:7")]


def test_a_member_is_not_dialable_once_all_its_addresses_have_failed() -> None:
    world = World()
    world.join("target", "192.0.2.1", BOTH)
    world.state.reach.seen(SEEN)
    world.pass_s(FIRST_AFTER_S)
    for check in (1, 2, 3):
        assert not world.ended("", check, False, problem="refused")
        world.pass_s(AGAIN_AFTER_FAILURE_S)
    assert not verdicts(world.ended("", 4, False, problem="refused"))[0].dialable
    assert world.state.reach.of(PeerId("target")).address == ""
    assert asked(world.pass_s(UNDIALABLE_AGAIN_S)) == [("", "192.0.2.1:7")]


def test_an_address_at_which_the_member_is_seen_later_is_checked_after_its_next_report() -> None:
    world = World()
    world.join("target", "192.0.2.1", "[2001:db8::1]:7")
    assert not asked(world.pass_s(FIRST_AFTER_S))
    world.state.reach.seen(SEEN)
    member = world.state.members.get(PeerId("target"))
    assert member is not None
    world.part.reported(member, world.now)
    world.part.reported(member, world.now)
    assert asked(world.pass_s(10.0)) == [("", "[2001:db8::1]:7")]
    assert verdicts(world.ended("", 1, True))[0].dialable


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3), st.integers(1, 6), st.booleans()), max_size=60))
def test_whatever_comes_few_run_at_once_and_every_helper_is_free_again(
    steps: list[tuple[int, int, int, bool]],
) -> None:
    world = World()
    names = [f"peer{number}" for number in range(4)]
    for kind, which, check, reached in steps:
        name, here = names[which], world.state.members.get(PeerId(names[which]))
        if kind == 0 and here is None:
            world.join(name, f"192.0.2.{which}")
        elif kind == 1 and here is not None:
            world.state.members.leave(PeerId(name), "left", "")
            world.part.left(PeerId(name), world.now)
        elif kind == 2:
            world.ended("" if which == 3 else name, check, reached)
        else:
            world.pass_s(float(kind))
        assert len(world.part._running) <= 32
        waited_for = [helper for one in world.part._running.values() for helper in one.asked - one.results.keys()]
        assert all(world.part._helping[helper] == waited_for.count(helper) for helper in waited_for if helper)
    world.now += 1e5
    world.part.tick(world.now)
    world.pass_s(ANSWER_WITHIN_S)
