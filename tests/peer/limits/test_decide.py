"""Test what a peer may do now under the limits of its configuration."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from peer.limits.ceilings import Ceilings
from peer.limits.config import LimitsConfig
from peer.limits.decide import (
    ALL,
    REST_S,
    Allow,
    Allowed,
    FinishAndStop,
    LimitsCore,
    OwnerAsked,
    OwnerRequest,
    ReadingsTaken,
    Rules,
    SaveRequest,
)
from peer.limits.quota import MonthUse, Quota
from peer.limits.readings import Readings
from peer.limits.schedule import Schedule

MONDAY = datetime(2026, 11, 23, 12)

COOL, HOT = ReadingsTaken(Readings(cpu_celsius=50)), ReadingsTaken(Readings(cpu_celsius=90))


def limits_core(
    rules: Rules | None = None, quota: Quota | None = None, asked: OwnerRequest | None = None
) -> LimitsCore:
    return LimitsCore(rules or Rules(), quota or Quota(), asked)


def test_a_change_is_emitted_once() -> None:
    one = limits_core()
    assert one.handle(COOL, 0.0, MONDAY) == [Allow(ALL)]
    assert one.handle(COOL, 1.0, MONDAY) == []


def test_a_pause_stops_everything_and_is_saved() -> None:
    one = limits_core()
    paused = OwnerRequest("pause")
    assert one.handle(OwnerAsked("pause"), 0.0, MONDAY) == [
        SaveRequest(paused),
        Allow(Allowed(False, False, False, "paused", "paused by its owner")),
    ]
    assert one.handle(OwnerAsked("run"), 9.0, MONDAY) == [SaveRequest(OwnerRequest()), Allow(ALL)]


def test_a_pause_for_a_while_ends_by_itself_even_over_a_restart() -> None:
    until = MONDAY + timedelta(hours=2)
    one = limits_core()
    one.handle(OwnerAsked("pause", 7200.0), 0.0, MONDAY)
    assert one.asked == OwnerRequest("pause", until)
    again = limits_core(asked=one.asked)
    assert again.handle(COOL, 0.0, until - timedelta(seconds=1)) == [
        Allow(Allowed(False, False, False, "paused", "paused by its owner until Mon 14:00"))
    ]
    assert again.handle(COOL, 1.0, until) == [SaveRequest(OwnerRequest()), Allow(ALL)]


def test_a_clock_that_is_set_back_does_not_prolong_a_pause() -> None:
    one = limits_core()
    one.handle(OwnerAsked("pause", 7200.0), 0.0, MONDAY)
    back = MONDAY - timedelta(days=400)
    shorter = OwnerRequest("pause", back + timedelta(hours=1))
    save, allow = one.handle(COOL, 3600.0, back)
    assert (save, isinstance(allow, Allow)) == (SaveRequest(shorter), True), "the reason names the time by this clock"
    assert one.handle(COOL, 3601.0, back + timedelta(seconds=1)) == []
    assert one.handle(COOL, 7200.0, back + timedelta(hours=1)) == [SaveRequest(OwnerRequest()), Allow(ALL)]


def test_a_machine_that_slept_resumes_by_its_owners_clock() -> None:
    one = limits_core()
    one.handle(OwnerAsked("pause", 7200.0), 0.0, MONDAY)
    assert one.handle(COOL, 60.0, MONDAY + timedelta(hours=2)) == [SaveRequest(OwnerRequest()), Allow(ALL)]


def test_a_finishing_peer_relays_until_it_stops() -> None:
    until = MONDAY + timedelta(hours=1)
    remember, stop, allow = limits_core().handle(OwnerAsked("finish", 3600.0), 0.0, MONDAY)
    assert (remember, stop) == (SaveRequest(OwnerRequest("finish", until)), FinishAndStop(until))
    assert isinstance(allow, Allow)
    assert (allow.allowed.state, allow.allowed.compute, allow.allowed.send) == ("finishing", True, True)


def test_a_start_after_finishing_works_or_waits_for_the_named_time() -> None:
    until = MONDAY + timedelta(hours=1)
    assert limits_core(asked=OwnerRequest("finish")).asked == OwnerRequest()
    assert limits_core(asked=OwnerRequest("finish", until)).asked == OwnerRequest("pause", until)


def test_a_ceiling_stops_computing_only_and_for_a_while() -> None:
    one = limits_core(Rules(ceilings=Ceilings(cpu_celsius_max=80)))
    one.handle(COOL, 0.0, MONDAY)
    reason = "processor at 90 °C, above 80 °C"
    assert one.handle(HOT, 1.0, MONDAY) == [Allow(Allowed(False, True, True, "resting", reason))]
    assert one.handle(COOL, 2.0, MONDAY) == [], "it would be hot again at once"
    assert one.handle(COOL, 1.0 + REST_S, MONDAY) == [Allow(ALL)]


def test_hours_for_computing_and_for_the_network_are_independent() -> None:
    rules = Rules(compute=Schedule.parse(["22:00-07:00"]), network=Schedule.parse(["13:00-14:00"]))
    (first,) = limits_core(rules).handle(COOL, 0.0, MONDAY)
    assert first == Allow(
        Allowed(
            *(False, False, False, "resting"),
            "outside the hours for computing, next Mon 22:00; outside the hours for the network, next Mon 13:00",
        )
    )
    (second,) = limits_core(rules).handle(COOL, 0.0, MONDAY.replace(hour=23))
    assert isinstance(second, Allow)
    assert (second.allowed.compute, second.allowed.receive, second.allowed.state) == (True, False, "on")


def test_a_spent_upload_stops_relaying_and_nothing_else() -> None:
    one = limits_core(quota=Quota(upload_bytes=100))
    (allow,) = one.handle(ReadingsTaken(Readings(), sent_bytes=100), 0.0, MONDAY)
    reason = "this month's upload is used up until 2026-12-01"
    assert allow == Allow(Allowed(True, False, True, "on", reason))
    assert one.handle(COOL, 1.0, datetime(2026, 12, 1)) == [Allow(ALL)]


@given(
    st.lists(
        st.tuples(
            st.sampled_from(
                [COOL, HOT, OwnerAsked("run"), OwnerAsked("pause"), OwnerAsked("pause", 60.0), OwnerAsked("finish")]
            ),
            st.integers(0, 100),
        ),
        max_size=30,
    )
)
def test_the_emitted_actions_always_match_what_is_allowed(
    events: list[tuple[ReadingsTaken | OwnerAsked, int]],
) -> None:
    one = limits_core(Rules(ceilings=Ceilings(cpu_celsius_max=80)))
    told, asked, now = None, OwnerRequest(), 0.0
    for event, seconds in events:
        now += seconds
        local = MONDAY + timedelta(seconds=now)
        for action in one.handle(event, now, local):
            told = action.allowed if isinstance(action, Allow) else told
            asked = action.asked if isinstance(action, SaveRequest) else asked
        assert told == one.allowed(now, local)
        assert asked == one.asked
        assert told is not None
        assert bool(told.reason) == (told != ALL), "every limit has its reason"


def test_without_limits_everything_is_allowed() -> None:
    rules = LimitsConfig().rules()
    assert rules.compute == rules.network == Schedule()
    assert rules.ceilings == Ceilings()


def test_units_are_those_of_their_names() -> None:
    limits = LimitsConfig(idle_minutes_min=5, memory_free_gib_min=4, upload_gb_month=10, quota_reset_day=7)
    ceilings = limits.rules().ceilings
    assert (ceilings.idle_s_min, ceilings.memory_free_bytes_min) == (300.0, 4 * 2**30)
    quota = limits.quota(MonthUse("2026-11", int(10e9), 0))
    assert quota.use.sent_bytes == int(10e9)


def test_hours_are_checked_at_once() -> None:
    assert LimitsConfig(compute_hours=("mon-fri 22:00-07:00",)).rules().compute.windows
    with pytest.raises(ValidationError, match="no day"):
        LimitsConfig(compute_hours=("someday",))


def test_one_window_needs_no_list_and_none_is_no_window() -> None:
    one = LimitsConfig.model_validate({"compute_hours": "mon-fri 22:00-07:00", "network_hours": None})
    assert (one.compute_hours, one.network_hours) == (("mon-fri 22:00-07:00",), ())
