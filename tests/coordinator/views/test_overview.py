"""Test views of the run as a whole: the overview, its history, and the registry that makes all views."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.core.events.events import BatchRequested, LearnerStatusChanged, Tick
from coordinator.core.events.operator_events import PeerBanned, PeerDrained
from coordinator.core.events.prices import Price
from coordinator.core.status.turns import at_once
from coordinator.views.alerts import STARTS_S, Alert, Health
from coordinator.views.history import COARSE_S, FINE_KEPT_S, SAMPLE_S, History, merged
from coordinator.views.overview import build_overview, count_workers, limits, waiting_view
from coordinator.views.registry import ViewedRun, ViewRegistry
from coordinator.views.samples import SERIES, Name, Point
from rollcast.wire.ids import PeerId, Step
from tests.coordinator.core_world import World, joined
from tests.coordinator.views.viewed import core, facts, status, world

POINTS = st.builds(
    lambda values, who: Point(values[0], values[1], who),
    st.tuples(st.none() | st.floats(-1e6, 1e6), st.none() | st.floats(-1e6, 1e6)),
    st.sampled_from(["a", "b"]),
)


def sample(value: float, who: str = "a") -> dict[Name, Point]:
    return dict.fromkeys(SERIES, Point(value, value + 1.0, who))


def test_the_newest_sample_is_shown_in_few_digits() -> None:
    history = History()
    assert history.newest() is None
    history.add(10.0, sample(1 / 3))
    newest = history.newest()
    assert newest is not None
    assert (newest.time_unix_s, newest.values["tokens_per_s"]) == (10.0, (0.33333, 1.3333, "a"))


def test_a_view_holds_the_requested_span() -> None:
    history = History()
    for number in range(20):
        history.add(number * SAMPLE_S, sample(float(number), f"p{number}"))
    view = history.view(30.0, 95.0)
    assert view.times_unix_s == tuple(65.0 + SAMPLE_S * number for number in range(7))
    series = view.series["version_lag"]
    assert (series.unit, series.mean[0], series.worst[-1], series.worst_who[-1]) == ("steps", 13.0, 20.0, "p19")
    assert History().view(60.0, 0.0).times_unix_s == ()


def test_beyond_an_hour_samples_are_merged_and_none_counts_twice() -> None:
    history, samples = History(), round((FINE_KEPT_S + 1200.0) / SAMPLE_S)
    for number in range(samples):
        history.add(number * SAMPLE_S, sample(float(number)))
    view = history.view(86_400.0, samples * SAMPLE_S)
    times = view.times_unix_s
    assert list(times) == sorted(set(times))
    assert times[0] < 2 * COARSE_S
    assert times[1] - times[0] == COARSE_S
    assert times[-1] - times[-2] == SAMPLE_S
    assert len(times) == 720 + 10


@given(st.lists(POINTS, min_size=1, max_size=5))
def test_merged_samples_keep_the_worst_with_its_name(points: list[Point]) -> None:
    found = merged([dict.fromkeys(SERIES, one) for one in points])
    worst = [one.worst for one in points if one.worst is not None]
    means = [one.mean for one in points if one.mean is not None]
    for name, (_, which) in SERIES.items():
        point = found[name]
        if which == "most":
            assert point.worst == max(worst, default=None)
        else:
            assert point.worst == min(worst, default=None)
        assert (point.mean is None) == (not means)
        assert point.worst is None or (point.worst, point.who) in {(one.worst, one.who) for one in points}


def test_every_worker_is_counted_once() -> None:
    run = world("a", "b", "c", "d", "e")
    members = run.core.state.members
    for name, state in {"a": "idle", "b": "generating"}.items():
        member = members.get(PeerId(name))
        assert member is not None
        member.facts = facts(name, state=state)
    members.reputation(PeerId("c")).standby = "off: too dear"
    run.handle(PeerDrained(PeerId("d"), "to be moved", "d"))
    run.handle(PeerBanned(PeerId("e"), "", "e"))
    counts = count_workers(run.core.state)
    assert (counts.on, counts.idle, counts.standby, counts.drained, counts.banned) == (2, 1, 1, 1, 1)
    assert counts.total == counts.on + counts.standby + counts.drained + counts.quarantined
    members.leave(PeerId("b"), "lost", "silent")
    counts = count_workers(run.core.state)
    assert (counts.on, counts.lost) == (1, 1)


def test_the_overview_is_the_status_without_members_and_more() -> None:
    found = core("a")
    view = build_overview(found.state, status(found), (), None, accepted_per_s=None, unix_s=7.0)
    plain = msgspec.to_builtins(view)
    assert "peers" not in plain
    assert {"step", "t_bcast_s", "staleness", "activation"} <= set(plain)
    assert (plain["workers"]["on"], plain["alerts"], plain["at_unix_s"], plain["ended"]) == (1, (), 7.0, "")
    assert (plain["usd_per_hour"], plain["spent_usd"], plain["usd_per_accepted_rollout"]) == (None, None, None)


def test_money_is_that_of_rented_workers_or_of_prices() -> None:
    found = core("a")
    spending = {"usd_per_hour": 4.0, "spent_usd": 2.0, "usd_per_accepted_rollout": 0.1}
    view = build_overview(found.state, status(found), (), spending, accepted_per_s=1.0, unix_s=0.0)
    assert (view.usd_per_hour, view.spent_usd, view.usd_per_accepted_rollout) == (4.0, 2.0, 0.1)
    found.state.prices = (Price(name="a", usd_per_hour=3.6),)
    view = build_overview(found.state, status(found), (), None, accepted_per_s=2.0, unix_s=0.0)
    assert (view.usd_per_hour, view.spent_usd) == (3.6, None)
    assert view.usd_per_accepted_rollout == pytest.approx(0.0005)


def test_a_wait_is_mentioned_only_when_it_costs_something() -> None:
    found = core("a")
    view = waiting_view(found.state, status(found, 112.0))
    assert view["for"].startswith("the learner")
    assert view["since_s"] == 12.0
    assert view["sentence"] == "Healthy: training step 1."
    late = waiting_view(found.state, status(found, 140.0))
    assert late["sentence"].startswith("The run has waited 40 s for the learner")
    slow = replace(status(found, 140.0), t_train_s=20.0)
    assert waiting_view(found.state, slow)["sentence"] == "Healthy: training step 1."
    evaluates = replace(status(found), learner_phase="evaluating", learner_detail="held-out problems before RL")
    assert waiting_view(found.state, evaluates)["sentence"] == "Healthy: evaluating, held-out problems before RL."


def test_a_warm_start_is_shown_with_its_progress() -> None:
    run = World().core
    run.handle(joined("origin", role="origin"), 1.0)
    run.handle(LearnerStatusChanged("warm_start", "step 1 of at most 400", {}), 10.0)
    run.handle(LearnerStatusChanged("warm_start", "step 37 of at most 400", {}), 50.0)
    assert waiting_view(run.state, status(run, 55.0))["sentence"] == (
        "The learner's warm start has been running for 45 s: step 37 of at most 400. "
        "Next: the learner publishes its first version."
    )


def step_report(step: int, *, busy_s: float) -> dict[str, float]:
    return {"step_s": 10.0, "train_s": busy_s, "wait_s": 10.0 - busy_s}


def test_the_sentence_says_what_limits_the_run_once_it_is_measured() -> None:
    found = core("a")
    progress = found.state.progress
    for step in range(1, 10):
        progress.step_finished(Step(step), step_report(step, busy_s=9.0))
    assert waiting_view(found.state, status(found))["sentence"] == "Healthy: training step 10."
    for step in range(10, 30):
        progress.step_finished(Step(step), step_report(step, busy_s=9.0))
    assert limits(found.state) == " The learner sets the pace: it computes 90% of the time."
    for step in range(30, 50):
        progress.step_finished(Step(step), step_report(step, busy_s=6.0))
        progress.waits.append({"generate": 3.0, "store": 0.5})
    said = "The learner computes 60% of the time and mostly waits for rollouts that workers generate."
    now = replace(status(found), phase="training", step=49, steps=100)
    assert waiting_view(found.state, now)["sentence"] == f"Healthy: training step 50. {said}"
    progress.waits.extend([{"store": 0.1}] * 20)
    assert "packing and transferring batches take most" in limits(found.state)


def test_a_cell_with_workers_is_healthy_without_a_step() -> None:
    found = core("a", is_cell=True)
    said = "Healthy: members generate for the head, which forms the batches."
    assert waiting_view(found.state, status(found))["sentence"] == said


def test_a_pause_counts_neither_as_a_limit_nor_as_the_learners_time() -> None:
    found = core("a")
    progress = found.state.progress
    for step in range(1, 30):
        progress.step_finished(Step(step), step_report(step, busy_s=9.0))
        progress.waits.append({"store": 0.1})
    progress.step_finished(Step(30), {"step_s": 1010.0, "train_s": 9.0, "wait_s": 1001.0})
    progress.waits.append({"paused": 1000.0, "store": 0.1})
    assert limits(found.state) == " The learner sets the pace: it computes 90% of the time."


def test_a_run_with_alerts_is_not_called_healthy() -> None:
    found = core("a")
    alert = Alert("lost", "warning", "", "", 0.0, "workers", "")
    told = replace(alert, severity="info")
    assert waiting_view(found.state, status(found), [told])["sentence"].startswith("Healthy")
    assert waiting_view(found.state, status(found), [alert])["sentence"] == "Running with 1 alert: training step 1."


def test_wait_for_a_batch_costs_something_after_a_moment() -> None:
    run = world("a")
    run.handle(BatchRequested(Step(0)))
    view = waiting_view(run.core.state, status(run.core, 103.0))
    assert (view["for"][:13], view["sentence"]) == ("prompt groups", "Healthy: training step 1.")
    assert waiting_view(run.core.state, status(run.core, 106.0))["sentence"].startswith("The run has waited 6.0 s for")


def test_a_run_without_workers_or_over_never_counts_as_healthy() -> None:
    found = core()
    assert "a peer to join" in waiting_view(found.state, status(found))["sentence"]
    over = replace(status(found), phase="finished", waiting_for="", next="the run is over: finished")
    assert waiting_view(found.state, over)["sentence"] == "The run is over: finished."


def registry(run: World) -> ViewRegistry:
    return ViewRegistry(ViewedRun(run.core, lambda: run.now, lambda: 1e9 + run.now, lambda: None, lambda: Health()))


def test_alerts_are_found_while_no_page_is_open() -> None:
    run = World()
    views = registry(run)
    run.handle(Tick())
    run.now += STARTS_S
    at_once(views.sample())
    run.now += 30.0
    alerts = {one.id: one.since_s for one in views.overview().alerts}
    assert alerts == {"no_origin": 30.0, "no_workers": 30.0}


def test_rollouts_that_a_new_epochs_skipped_steps_made_too_old_raise_no_alert() -> None:
    run = world("a")
    views, core = registry(run), run.core

    def found_after(stale: int, trained: int = 0, step: int = 0) -> set[str]:
        core.state.accounts.dropped["stale"] += stale
        core.state.accounts.trained += trained
        core.state.progress.step = step or core.state.progress.step
        run.now += 5.0
        at_once(views.sample())
        return {one.id for one in views.overview().alerts}

    found_after(0)
    assert "too_old" not in found_after(500), "the epoch of a restored run began above its rollouts"
    assert "too_old" not in found_after(100, trained=256, step=360), "its first step was done since the last sample"
    assert "too_old" in found_after(200, trained=256, step=361)


def test_a_coordinator_that_starts_again_leaves_its_processes_time_to_start() -> None:
    run = World()
    run.core._elapsed_before_s = 1000.0
    views = registry(run)
    run.handle(Tick())
    run.now += STARTS_S - 1.0
    at_once(views.sample())
    assert views.overview().alerts == ()


def test_rates_are_those_of_the_last_minutes() -> None:
    run = world("a")
    views = registry(run)
    assert views.overview().rollouts_per_s is None
    at_once(views.sample())
    run.now += 10.0
    run.core.state.accounts.accepted += 40
    at_once(views.sample())
    assert views.overview().rollouts_per_s == pytest.approx(4.0)
    newest = views.history.newest()
    assert newest is not None
    assert newest.time_unix_s == 1e9 + run.now


def test_every_view_is_made_of_the_same_run() -> None:
    views = registry(world("a", "b"))
    assert [row[1] for row in at_once(views.workers()).rows] == ["origin", "a", "b"]
    assert at_once(views.broadcast()).peers_holding.total == 2
    assert [one.name for one in at_once(views.capacity(())).workers] == ["a", "b"]
