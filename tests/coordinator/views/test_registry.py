from __future__ import annotations

import pytest

from coordinator.views.alerts import Health
from coordinator.views.registry import ViewedRun, ViewRegistry
from tests.coordinator.core_world import World
from tests.coordinator.views.viewed import world


def registry(run: World) -> ViewRegistry:
    return ViewRegistry(ViewedRun(run.core, lambda: run.now, lambda: 1e9 + run.now, lambda: None, lambda: Health()))


def test_alerts_are_noticed_also_while_nobody_looks() -> None:
    run = World()
    views = registry(run)
    views.sample()
    run.now += 30.0
    alerts = {one.id: one.since_s for one in views.overview().alerts}
    assert alerts == {"no_origin": 30.0, "no_workers": 30.0}


def test_rates_are_those_of_the_last_minutes() -> None:
    run = world("a")
    views = registry(run)
    assert views.overview().rollouts_per_s is None
    views.sample()
    run.now += 10.0
    run.core.state.accounts.accepted += 40
    views.sample()
    assert views.overview().rollouts_per_s == pytest.approx(4.0)
    newest = views.history.newest()
    assert newest is not None
    assert newest.time_unix_s == 1e9 + run.now


def test_every_view_is_made_of_the_same_run() -> None:
    views = registry(world("a", "b"))
    assert [row[1] for row in views.workers().rows] == ["origin", "a", "b"]
    assert views.broadcast().peers_holding.total == 2
    assert [one.name for one in views.capacity(()).workers] == ["a", "b"]
