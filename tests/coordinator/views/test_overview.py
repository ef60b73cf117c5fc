from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from coordinator.core.events.events import BatchRequested
from coordinator.core.events.operator_events import PeerBanned, PeerDrained
from coordinator.core.events.prices import Price
from coordinator.views.overview import build_overview, count_workers, waiting_view
from rollcast.wire.ids import PeerId, Step
from tests.coordinator.views.viewed import core, facts, status, world


def test_every_worker_is_counted_once() -> None:
    run = world("a", "b", "c", "d", "e")
    members = run.core.state.members
    for name, state in {"a": "idle", "b": "generating"}.items():
        member = members.get(PeerId(name))
        assert member is not None
        member.facts = facts(name, state=state)
    members.standing(PeerId("c")).standby = "off: too dear"
    run.tell(PeerDrained(PeerId("d"), "to be moved", "d"))
    run.tell(PeerBanned(PeerId("e"), "", "e"))
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


def test_a_wait_is_spoken_of_only_when_it_costs_something() -> None:
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


def test_a_learner_that_waits_for_its_batch_costs_something_after_a_moment() -> None:
    run = world("a")
    run.tell(BatchRequested(Step(0)))
    view = waiting_view(run.core.state, status(run.core, 103.0))
    assert (view["for"][:13], view["sentence"]) == ("prompt groups", "Healthy: training step 1.")
    assert waiting_view(run.core.state, status(run.core, 106.0))["sentence"].startswith("The run has waited 6.0 s for")


def test_a_run_without_workers_or_over_never_counts_as_healthy() -> None:
    found = core()
    assert "a peer to join" in waiting_view(found.state, status(found))["sentence"]
    over = replace(status(found), phase="finished", waiting_for="", next="the run is over: finished")
    assert waiting_view(found.state, over)["sentence"] == "The run is over: finished."
