from __future__ import annotations

from dataclasses import replace

import pytest

from coordinator.core.events.prices import Price
from coordinator.core.members.mismatch import mismatch_status
from coordinator.views.samples import SERIES, Point, take_sample
from rollcast.wire.ids import PeerId
from tests.coordinator.core_world import announced, held
from tests.coordinator.views.viewed import NOW, core, facts, status, world


def test_each_series_has_its_mean_and_its_worst_member() -> None:
    run = world("a", "b", "c")
    state = run.core.state
    for name, tokens in {"a": 10.0, "b": 20.0, "c": 99.0}.items():
        member = state.members.get(PeerId(name))
        assert member is not None
        member.facts = facts(name, tokens_per_second=tokens, uplink_bytes_per_second=tokens * 1e6)
        member.standing.accepted, member.standing.dropped = 8, {"a": 0, "b": 8, "c": 0}[name]
    state.members.standing(PeerId("c")).standby = "off"
    run.now += 4.0
    run.tell(announced(2))
    run.tell(held("a", 2))
    sample = take_sample(state, status(run.core, run.now), None, now=run.now)
    assert set(sample) == set(SERIES)
    assert sample["tokens_per_s"] == Point(15.0, 10.0, "a")
    assert sample["upload_bytes_per_s"] == Point(15e6, 10e6, "a")
    assert sample["accept_share"] == Point(0.75, 0.5, "b")
    assert sample["version_lag"] == Point(1.0, 2.0, "b")
    assert sample["last_seen_s"] == Point(2.0, 4.0, "b")
    assert sample["t_bcast_s"] == Point(0.0, 0.0, "a")


def test_what_was_not_measured_is_nothing() -> None:
    found = core()
    assert set(take_sample(found.state, status(found), None, now=NOW).values()) == {Point()}


def test_money_and_mismatch() -> None:
    found = core("a")
    found.state.prices = (Price(name="a", usd_per_hour=2.5),)
    values = {"mismatch_kl_k3": 0.01, "kl_k3:a": 0.03, "kl_k3:z": 0.02}
    said = replace(status(found), mismatch=mismatch_status(values, [("a", "a", "cpu")]))
    sample = take_sample(found.state, said, None, now=NOW)
    assert sample["usd_per_hour"] == Point(2.5)
    assert sample["mismatch_kl"] == Point(0.01, 0.03, "a")
    assert take_sample(found.state, said, {"usd_per_hour": 7.0}, now=NOW)["usd_per_hour"].mean == pytest.approx(7.0)
