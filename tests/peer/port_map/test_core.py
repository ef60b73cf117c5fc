"""Test rounds, leases and their renewal by the core's actions."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from peer.port_map.core import (
    LOOK_AGAIN_S,
    RENEWED_SOONEST_S,
    ROUND_MOST_S,
    Advertise,
    Ask,
    LogFailure,
    Mapped,
    MappingCore,
    NotMapped,
    Woken,
)

PORTS = ((7420, 7420),)
GOT = Mapped("UPnP", "203.0.113.5", PORTS, 3600.0)


def test_the_second_protocol_is_tried_where_the_first_fails() -> None:
    core = MappingCore()
    assert core.handle(Woken(), 0.0) == [Ask("NAT-PMP")]
    assert core.handle(NotMapped("NAT-PMP", "no answer"), 4.0) == [Ask("UPnP")]
    assert core.handle(GOT, 6.0) == [Advertise("203.0.113.5", PORTS)]
    assert core.wake_at_s == 6.0 + 1800.0


def test_a_mapping_is_renewed_at_half_of_its_lease_with_its_protocol() -> None:
    core = MappingCore()
    core.handle(Woken(), 0.0)
    core.handle(NotMapped("NAT-PMP", "no answer"), 0.0)
    core.handle(GOT, 0.0)
    assert core.handle(Woken(), 1800.0) == [Ask("UPnP")]
    assert core.handle(GOT, 1800.5) == []
    core.handle(Woken(), 3600.0)
    moved = Mapped("UPnP", "203.0.113.9", ((7420, 40001),), 3600.0)
    assert core.handle(moved, 3600.0) == [Advertise("203.0.113.9", ((7420, 40001),))]


def test_a_lease_that_is_not_renewed_holds_until_it_expires() -> None:
    core = MappingCore(["NAT-PMP"])
    core.handle(Woken(), 0.0)
    core.handle(Mapped("NAT-PMP", "203.0.113.5", PORTS, 120.0), 0.0)
    core.handle(Woken(), 60.0)
    assert core.handle(NotMapped("NAT-PMP", "no answer"), 62.0) == [LogFailure(("NAT-PMP: no answer",))]
    assert core.wake_at_s == 120.0
    core.handle(Woken(), 120.0)
    assert core.handle(NotMapped("NAT-PMP", "no answer"), 122.0) == [Advertise("", ())]
    assert core.held is None


def test_a_mapping_without_a_lease_is_checked_regularly() -> None:
    core = MappingCore(["UPnP"])
    core.handle(Woken(), 0.0)
    core.handle(Mapped("UPnP", "203.0.113.5", PORTS, 0.0), 0.0)
    assert core.wake_at_s == LOOK_AGAIN_S
    core.handle(Woken(), LOOK_AGAIN_S)
    assert core.handle(NotMapped("UPnP", "no router"), LOOK_AGAIN_S)[-1] == Advertise("", ())


def test_a_very_short_lease_is_not_renewed_in_a_tight_loop() -> None:
    core = MappingCore(["PCP"])
    core.handle(Woken(), 0.0)
    core.handle(Mapped("PCP", "2a00:1450::7", PORTS, 1.0), 0.0)
    assert core.wake_at_s == RENEWED_SOONEST_S


def test_a_refusal_is_respected_for_as_long_as_the_router_says() -> None:
    core = MappingCore(["PCP"])
    core.handle(Woken(), 0.0)
    core.handle(NotMapped("PCP", "its table is full", 0.0, refused_for_s=1800.0), 0.0)
    assert core.wake_at_s == 1800.0
    core.handle(Woken(), 1800.0)
    core.handle(NotMapped("PCP", "no answer", 0.0), 1800.0)
    assert core.wake_at_s == 1860.0


def test_another_protocol_that_may_work_sooner_sets_the_wait() -> None:
    core = MappingCore(["NAT-PMP", "UPnP"])
    core.handle(Woken(), 0.0)
    core.handle(NotMapped("NAT-PMP", "its table is full", 0.0, refused_for_s=1800.0), 0.0)
    core.handle(NotMapped("UPnP", "no answer", 0.0), 0.0)
    assert core.wake_at_s == 30.0


@given(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=30))
def test_failed_rounds_become_rarer_and_are_logged_once(jitters: list[float]) -> None:
    core, now, said = MappingCore(["NAT-PMP"]), 0.0, 0
    for jitter in jitters:
        assert core.handle(Woken(), now) == [Ask("NAT-PMP")]
        said += sum(isinstance(action, LogFailure) for action in core.handle(NotMapped("NAT-PMP", "no", jitter), now))
        assert 29.9 <= core.wake_at_s - now <= ROUND_MOST_S + 0.1
        now = core.wake_at_s
    assert said == 1
