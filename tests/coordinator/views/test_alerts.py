from __future__ import annotations

from dataclasses import replace
from typing import Any

from coordinator.core.activation.status import ActivationStatus, PlannedSet
from coordinator.core.core import CoordinatorCore
from coordinator.core.events.events import BatchRequested, PeerAccused, RunEnded, Tick
from coordinator.core.members.mismatch import mismatch_status
from coordinator.views.alerts import (
    LATE_LEAST,
    SKIPPED_LATELY_STEPS,
    STARTS_S,
    Alert,
    AlertBook,
    Found,
    Health,
    Lately,
    Seen,
    find_alerts,
)
from coordinator.views.event_rows import EventView
from rollcast.wire.ids import PeerId, Step, Version
from tests.coordinator.core_world import World, announced
from tests.coordinator.views.viewed import NOW, core, status, world


def seen(found: CoordinatorCore, now: float = NOW, **changes: Any) -> Seen:
    values: dict[str, Any] = {"lately": Lately(), "health": Health(), "spending": None, "up_s": found.up_s(now)}
    return Seen(state=found.state, now=now, **({"status": status(found, now)} | values | changes))


def alerts(found: CoordinatorCore, now: float = NOW, **changes: Any) -> dict[str, Found]:
    return {one.id: one for one in find_alerts(seen(found, now, **changes))}


def test_healthy_run_has_no_alert() -> None:
    assert alerts(core("a", "b")) == {}


def test_missing_roles_are_reported_until_the_run_is_over() -> None:
    found = World().core
    found.handle(Tick(), NOW)
    assert alerts(found, NOW + STARTS_S - 1.0) == {}, "the processes of a run that starts are still loading"
    assert set(alerts(found, NOW + STARTS_S)) == {"no_origin", "no_workers"}
    found.handle(RunEnded("finished", True), NOW + STARTS_S)
    assert alerts(found, NOW + STARTS_S) == {}


def test_waiting_learner_is_a_warning_then_critical() -> None:
    run = world("a")
    run.handle(BatchRequested(Step(0)))
    assert "learner_waits" not in alerts(run.core, NOW + 20.0)
    found = alerts(run.core, NOW + 40.0)["learner_waits"]
    assert (found.severity, found.page) == ("warning", "run")
    assert "has waited 40 s for prompt groups" in found.text
    assert alerts(run.core, NOW + 700.0)["learner_waits"].severity == "critical"


def test_an_s_that_is_too_small_is_reported_with_the_smallest_sufficient_one() -> None:
    found = core("a")
    needs = replace(status(found), staleness_needed=3)
    alert = alerts(found, status=needs)["staleness_too_small"]
    assert alert.text.startswith("S is 1, but")
    assert "Set S to 3 or more on the Settings page" in alert.fix
    late = alerts(found, lately=Lately(ended=100, too_old=20))["too_old"]
    assert late.text.startswith("20% of the rollouts")
    assert "too_old" not in alerts(found, lately=Lately(ended=10, too_old=9))


def test_tokens_of_another_model_are_reported_by_name() -> None:
    values = {"mismatch_kl_k3": 0.1, "mismatch_peers_alarming": 1.0, "kl_k3:a": 0.3}
    found = core("a")
    alert = alerts(found, status=replace(status(found), mismatch=mismatch_status(values, [("a", "a", "cpu")])))
    assert "most for a (cpu)" in alert["mismatch"].text


def test_a_skipped_update_is_critical_at_once_and_a_warning_for_a_while() -> None:
    found = core("a")
    now = replace(status(found), step=12, updates_skipped=1, updates_skipped_at=12)
    alert = alerts(found, status=now)["update_skipped"]
    assert (alert.severity, alert.page) == ("critical", "run")
    assert alert.text == "1 update was skipped because loss or gradient norm was not finite, the last at step 12."
    later = replace(now, step=100, updates_skipped=3, updates_skipped_at=99)
    assert alerts(found, status=later)["update_skipped"].severity == "warning"
    assert "update_skipped" not in alerts(found, status=replace(later, step=99 + SKIPPED_LATELY_STEPS))


def test_members_that_are_quarantined_silent_or_lost() -> None:
    run = world("a", "b", "c", "d", heartbeat_timeout_s=10.0)
    run.handle(PeerAccused(PeerId("b"), PeerId("a"), Version(0), 3, "hash", b"signed by a"))
    found = alerts(run.core)["quarantined"]
    assert (found.subject, found.page) == ("a", "workers")
    assert found.text == "a is quarantined: it sent a corrupt chunk: version 0, index 3, by its own receipt."
    assert alerts(run.core, NOW + 6.0)["silent"].text == "5 workers send no heartbeats, origin for 6.0 s."
    run.core.state.members.leave(PeerId("b"), "lost", "silent")
    lost = alerts(run.core)["lost"]
    assert (lost.severity, lost.subject) == ("warning", "b")
    assert lost.text == "b is lost: no heartbeat for 10 s."


def test_an_identity_that_is_used_twice_is_reported_once() -> None:
    events = tuple(EventView(one, 5.0, "identity_cloned", "a", "ada", f"at 10.0.0.{one}", "peer a") for one in (9, 8))
    alert = alerts(core("a"), cloned=events)["cloned:a"]
    assert (alert.severity, alert.page, alert.subject) == ("warning", "workers", "a")
    assert alert.text == "Two machines use the identity of ada: at 10.0.0.9."


def test_slow_broadcast_raises_an_alert() -> None:
    run = world("a", "b")
    run.now += 10.0
    run.handle(announced(1))
    usual = replace(status(run.core), t_bcast_s=replace(status(run.core).t_bcast_s, p95=2.0))
    assert "broadcast_slow" not in alerts(run.core, run.now + 5.0, status=usual)
    found = alerts(run.core, run.now + 7.0, status=usual)["broadcast_slow"]
    assert (found.page, found.subject) == ("broadcast", "1")
    assert found.text == "Version 1 has been spreading for 7.0 s: 2 workers are without it."


def test_plans_that_fail_or_are_infeasible() -> None:
    found = core("a")
    plan = PlannedSet(1, 2, 0, 0.0, 0.0, 1.0, 2.0, 5.0, 3, 0.5, 0.1, "uploads are too slow", ("S = 5", "2 more"))
    activation = ActivationStatus("act", 1, 0, 0.0, 0, plan, "out of time")
    found_now = alerts(found, status=replace(status(found), activation=activation))
    assert found_now["plan_infeasible"].fix == "S = 5; or 2 more"
    assert "out of time" in found_now["plan_failed"].text


def test_money_and_the_coordinators_own_health() -> None:
    found = core("a")
    spending = {"spent_usd": 95.0, "usd_max": 100.0, "held_back": {"w-1": "the budget is spent"}}
    found_now = alerts(found, spending=spending, health=Health("the disk is almost full"))
    assert found_now["budget"].severity == "warning"
    assert found_now["held_back"].subject == "w-1"
    assert found_now["refusing"].severity == "critical"
    assert "the disk is almost full" in found_now["refusing"].text
    assert alerts(found, spending=spending | {"spent_usd": 100.0})["budget"].severity == "critical"


def test_alerts_have_a_start_and_are_sorted_by_severity() -> None:
    book = AlertBook()
    lost = Found("lost", "info", "b is lost", "nothing", "workers", "b")
    late = Found("too_old", "warning", "late", "raise S", "run")
    assert book.update([lost], 10.0) == (Alert("lost", "info", "b is lost", "nothing", 0.0, "workers", "b"),)
    assert [(one.id, one.since_s) for one in book.update([lost, late], 15.0)] == [("too_old", 0.0), ("lost", 5.0)]
    assert [one.id for one in book.update([late], 20.0)] == ["too_old"]
    assert book.update([lost], 30.0)[0].since_s == 0.0


def test_a_run_that_is_finishing_gets_no_advice_about_its_pace() -> None:
    found = core("a")
    late = Lately(ended=100 * LATE_LEAST, too_old=50 * LATE_LEAST)
    assert "too_old" in alerts(found, lately=late)
    found.state.last_step = Step(3)
    assert "too_old" not in alerts(found, lately=late)
