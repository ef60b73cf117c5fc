"""Previews of an operator's action or other settings, as the capacity model computes them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from capacity.model.demand import Conduct, Demand
from capacity.model.topologies import Topology
from capacity.model.workers import Speed, Worker
from capacity.replan.corrections import Corrections
from capacity.replan.events import ReplanSettings
from coordinator.core.activation.preview import (
    ROLLOUTS_MODELLED,
    Change,
    Known,
    Question,
    preview,
    question_of,
    thinned,
)
from coordinator.core.staleness.policy import StalenessRules
from rollcast.wire.ids import PeerId
from tests.coordinator.core_world import World, heartbeat

DEMAND = Demand(
    rollouts_per_step=48,
    t_train_s=20.0,
    staleness_limit=3,
    publish_every_steps=1,
    update_bytes=2e7,
    learner_upload_bytes_per_second=2e7,
    topology=Topology("stripes", 8),
)


def worker(name: str, *, per_s: float = 0.8, **changes: Any) -> Worker:
    values: dict[str, Any] = {
        "worker_id": name,
        "speeds": (Speed(4, per_s, 8.0, 5.0),) if per_s else (),
        "usd_per_hour": 0.5,
        "upload_bytes_per_second": 2e6,
        "download_bytes_per_second": 2e7,
        "active": True,
    }
    return Worker(**(values | changes))


def question(*workers: Worker, **changes: Any) -> Question:
    values: dict[str, Any] = {
        "mode": "off",
        "demand": DEMAND,
        "known": tuple(Known(one, True, 2) for one in workers),
        "conduct": Conduct(samples_per_group=2),
        "replan": ReplanSettings(),
        "rules": StalenessRules(3, 1),
        "t_bcast_s": 4.0,
        "t_bcast_p95_s": 6.0,
        "t_gen_p90_s": 8.0,
        "step_period_s": 20.0,
        "utilisation": None,
    }
    return Question(**(values | changes))


def change(**changes: Any) -> Change:
    return Change(**({"staleness_limit": 3, "publish_every_steps": 1} | changes))


FOUR = tuple(worker(name) for name in "abcd")


def test_fewer_workers_keep_the_learner_less_busy() -> None:
    found = preview(question(*FOUR), change(act="drain", peers=frozenset({PeerId("a"), PeerId("b")})))
    assert (found.now.workers_on, found.then.workers_on) == (4, 2)
    assert found.now.utilisation is not None
    assert found.then.utilisation is not None
    assert found.then.utilisation < 0.8 * found.now.utilisation
    assert found.then.steps_per_hour == pytest.approx(found.then.utilisation * 180.0)
    assert (found.now.usd_per_hour, found.then.usd_per_hour) == (2.0, 1.0)
    assert found.now.t_bcast_s == pytest.approx(4.0)  # as it was measured
    assert found.sentence.startswith("Draining 2 workers is expected to keep the learner busy")
    assert "2 workers on instead of 4 for 1 $/h instead of 2 $/h" in found.sentence
    assert "4 rollouts in flight are finished first" in found.warnings


def test_a_ban_of_all_workers_leaves_none() -> None:
    found = preview(question(*FOUR), change(act="ban", peers=frozenset(map(PeerId, "abcdx"))))
    assert found.then.utilisation == 0.0
    assert any("no worker would be left" in one for one in found.warnings)
    assert any("8 rollouts in flight are reassigned" in one for one in found.warnings)
    assert "1 of the workers are not connected" in found.warnings


def test_an_enabled_peer_works_again() -> None:
    known = (Known(FOUR[0], True, 0), Known(FOUR[1], False, 0))
    found = preview(question(known=known), change(act="enable", peers=frozenset({PeerId("b")})))
    assert (found.now.workers_on, found.then.workers_on) == (1, 2)
    assert found.then.utilisation is not None
    assert found.now.utilisation is not None
    assert found.then.utilisation > found.now.utilisation


def test_pins_switch_where_no_model_does() -> None:
    known = [FOUR[0], replace(FOUR[1], active=False)]
    on = preview(question(*known), change(act="pin_on", peers=frozenset({PeerId("b")})))
    off = preview(question(*known), change(act="pin_off", peers=frozenset({PeerId("a")})))
    assert (on.then.workers_on, off.then.workers_on) == (2, 0)
    auto = preview(question(*known), change(act="pin_auto", peers=frozenset({PeerId("a")})))
    assert auto.sentence.startswith("Leaving 1 worker to the capacity model is expected to keep")


def test_a_model_that_differs_from_what_was_measured_is_told() -> None:
    modelled = preview(question(*FOUR), change()).now.utilisation
    assert modelled is not None
    for measured, told in ((None, False), (modelled, False), (modelled - 0.2, True)):
        warnings = preview(question(*FOUR, utilisation=measured), change()).warnings
        assert any(one.startswith("the learner was busy") for one in warnings) is told


def test_a_smaller_s_is_warned_of() -> None:
    slow = tuple(worker(name, per_s=0.8, speeds=(Speed(32, 0.8, 55.0, 40.0),)) for name in "abcd")
    found = preview(question(*slow), change(staleness_limit=1))
    assert found.then.staleness_needed is not None
    assert found.then.staleness_needed > 1
    assert any(one.startswith("rollouts would take longer than S = 1 allows") for one in found.warnings)


def test_kappa_that_follows_broadcasts_is_found_for_the_s_that_would_be() -> None:
    slow = question(*FOUR, t_bcast_s=50.0, t_bcast_p95_s=50.0)
    found = preview(slow, change(staleness_limit=3, publish_every_steps=0))
    fixed = preview(slow, change(staleness_limit=3, publish_every_steps=1))
    assert found.then.staleness_needed == fixed.then.staleness_needed  # S leaves room for no larger kappa
    wide = preview(slow, change(staleness_limit=9, publish_every_steps=0))
    assert wide.then.staleness_needed == 6  # ceil((50 + 8) / 20 + kappa), with kappa = ceil(50 / 20)


def test_where_the_model_acts_it_chooses_the_set() -> None:
    workers = [worker(str(one), usd_per_hour=0.5 + 0.1 * one) for one in range(8)]
    found = preview(question(*workers, mode="act"), change(usd_per_hour_max=100.0))
    assert found.then.workers_on is not None
    assert found.then.workers_on < 8
    too_little = preview(question(*workers, mode="act"), change(usd_per_hour_max=0.7))
    assert any(one.startswith("no set of workers is sufficient") for one in too_little.warnings)
    advice = preview(question(*workers, mode="advise"), change(usd_per_hour_max=0.7))
    assert advice.then.workers_on == 8
    assert any("switches no worker off for the budget" in one for one in advice.warnings)
    assert any("the limit is 0.7 $/h" in one for one in advice.warnings)


def test_workers_without_a_measurement_are_mentioned() -> None:
    found = preview(question(FOUR[0], worker("new", per_s=0.0)), change(staleness_limit=2))
    assert "1 of the workers that are on were not measured yet: their rollouts are left out" in found.warnings
    early = preview(question(*FOUR, demand=None), change(act="ban", peers=frozenset({PeerId("a")})))
    assert early.now.workers_on == 4
    assert early.then.utilisation is None
    assert early.sentence == "No preview yet: waiting for the first timed step."
    assert early.warnings == ["2 rollouts in flight are reassigned to other workers, which start them again"]


@pytest.mark.parametrize(
    ("workers", "at_once", "per_step"), [(4, 64, 4000), (64, 32, 22000), (1000, 8, 17000), (3, 1, 6)]
)
def test_large_runs_are_modelled_small(workers: int, at_once: int, per_step: int) -> None:
    fleet = [(one, one.speeds[0]) for one in (worker(str(number)) for number in range(workers))]
    fleet = [(one, replace(speed, concurrency=at_once)) for one, speed in fleet]
    thin, kept, most = thinned(replace(DEMAND, rollouts_per_step=per_step), fleet)
    modelled = thin.rollouts_per_step * min(1.0, most / workers)
    assert modelled <= max(per_step / at_once / max(1, workers / most) * 1.5, 2.5 * ROLLOUTS_MODELLED)
    share = thin.rollouts_per_step / per_step
    rate = sum(speed.rollouts_per_second for _, speed in kept) / sum(speed.rollouts_per_second for _, speed in fleet)
    assert share == pytest.approx(rate, rel=0.1)


def test_speeds_are_those_measured_where_the_planner_keeps_none() -> None:
    world = World()
    world.start("a")
    state = world.core.state
    state.forecast.slots_per_s = lambda peer_id, now: 0.5 if peer_id == "a" else None  # type: ignore[method-assign]
    (seen,) = question_of(state, None, world.now).known
    assert state.settings.activation.mode == "off"
    assert seen.worker.speeds[0].rollouts_per_second == 0.5


def test_the_run_is_seen_as_it_is() -> None:
    world = World()
    world.start("a", "b")
    world.handle(heartbeat("b", state="paused", active=0))
    seen = question_of(world.core.state, Corrections(rate=0.5), world.now)
    assert [(one.worker.worker_id, one.usable) for one in seen.known] == [("a", True), ("b", False)]
    assert seen.demand is None  # no step was timed yet
    assert seen.conduct.samples_per_group == 2
    assert world.core.preview_question(world.now) == question_of(world.core.state, None, world.now)
