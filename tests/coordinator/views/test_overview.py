from __future__ import annotations

import msgspec
import pytest

from coordinator.core.events.operator_events import PeerBanned, PeerDrained
from coordinator.core.events.prices import Price
from coordinator.views.overview import build_overview, count_workers, waiting_view
from rollcast.wire.ids import PeerId
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


def test_what_is_waited_for_has_its_sentence() -> None:
    view = waiting_view(status(core("a"), 112.0))
    assert view["for"].startswith("the learner")
    assert view["since_s"] == 12.0
    assert view["sentence"].startswith("For 12 s the run has been waiting for the learner")
