"""Test operators' acts and settings over HTTP: required roles, resulting orders, refused values, the audit log."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from coordinator.api.operator import NO_ONE, ActRoutes
from coordinator.api.settings import SettingsChange, budget_in_force, orders_of, proposed_settings, settings_of
from coordinator.api.wiring import run_over
from coordinator.core.activation.preview import Change, Figures, Preview
from coordinator.core.events.operator_events import (
    BudgetChanged,
    Order,
    PeerBanned,
    PeerDrained,
    PeerEnabled,
    PeerPinned,
    PricesChanged,
    PublishPeriodChanged,
    StalenessLimitChanged,
)
from coordinator.core.events.prices import Budget, Price
from coordinator.core.staleness.policy import RulesInForce, StalenessRules
from rollcast.runtime.errors import MalformedMessage
from rollcast.wire.ids import PeerId
from tests.coordinator.core_world import World, joined
from tests.coordinator.http.serving import KEY, Given, Served, served

PEERS, SETTINGS, PREVIEW = "/api/v1/acts/peers", "/api/v1/acts/settings", "/api/v1/acts/settings/preview"


class Acts:
    """The routes over a real core."""

    def __init__(self, **changes: Any) -> None:
        self.world = World(staleness_limit=3, **changes)
        self.world.handle(joined("origin", role="origin"))
        for name in ("a", "b"):
            self.world.handle(joined(name))
        self.orders: list[Order] = []
        self.asked: list[Change] = []
        self.fleet_limit: float | None = None
        self.routes = ActRoutes(self.world.core, self.give, self, lambda: self.fleet_limit).routes()

    async def give(self, *orders: Order) -> None:
        for order in orders:
            self.orders.append(order)
            self.world.handle(order)

    async def preview(self, change: Change) -> Preview:
        self.asked.append(change)
        return Preview(now=Figures(workers_on=2), then=Figures(workers_on=1), sentence="fewer", warnings=["few"])


@asynccontextmanager
async def acting(folder: Path, **changes: Any) -> AsyncIterator[tuple[Acts, Served]]:
    acts = Acts(**changes)
    async with served(folder, Given(routes=acts.routes)) as page:
        yield acts, page


async def test_a_run_that_has_ended_is_not_changed(tmp_path: Path) -> None:
    acts, over = Acts(), run_over("finished", for_good=True)
    async with served(tmp_path, Given(routes=acts.routes, run_over=over)) as page:
        change, drain = {"staleness_limit": 1}, {"act": "drain", "peers": ["a"]}
        for path, body in ((PEERS, drain), (SETTINGS, change), (PREVIEW, change)):
            status, answer = await page.post(path, body, KEY)
            assert (status, answer["code"], answer["cause"]) == (409, "RC109", "it ended: finished")
            assert "rollcast report" in answer["fix"]
        assert (await page.get("/api/v1/settings"))[0] == 200, "what was in force can still be read"
        outcomes = [one["outcome"] for one in (await page.get("/api/v1/audit", KEY))[1]["rows"]]
        assert outcomes
        assert all(one.startswith("RC109") for one in outcomes)
    assert not acts.orders
    assert not acts.asked


def test_whether_a_run_that_has_ended_goes_on_is_said() -> None:
    assert run_over("", for_good=False) is None
    stopped = run_over("stopped", for_good=False)
    assert stopped is not None
    assert "start the coordinator again" in stopped.fix


async def test_peers_are_drained_banned_pinned_and_enabled(tmp_path: Path) -> None:
    a, b = PeerId("a"), PeerId("b")
    async with acting(tmp_path) as (acts, page):
        assert await page.post(PEERS, {"act": "drain", "peers": ["a", "b", "a"], "reason": "move"}) == (
            200,
            {"done": ["a", "b"], "failed": []},
        )
        assert (await page.post(PEERS, {"act": "ban", "peers": ["b"]}))[1]["done"] == ["b"]
        status, said = await page.post(PEERS, {"act": "enable", "peers": ["a", "b", "nobody"]})
        assert (status, said["done"]) == (200, ["a", "b"])
        assert said["failed"] == [{"peer": "nobody", "error": NO_ONE}]
        for pin in ("on", "off", "auto"):
            await page.post(PEERS, {"act": f"pin_{pin}", "peers": ["a"]})
        rows = [(row.act, row.subject, row.detail, row.outcome) for row in await page.audit()]
    assert acts.orders == [
        PeerDrained(a, "move", "a"),
        PeerDrained(b, "move", "b"),
        PeerBanned(b, "", "b"),
        PeerEnabled(a),
        PeerEnabled(b),
        *(PeerPinned(a, pin) for pin in ("on", "off", "")),
    ]
    assert rows[0] == ("peers", "a, b, a", "drain: move", "done")


async def test_acts_without_effect_are_reported(tmp_path: Path) -> None:
    async with acting(tmp_path) as (acts, page):
        found = (await page.post(PEERS, {"act": "enable", "peers": ["a"]}))[1]["failed"]
        assert found == [{"peer": "a", "error": "it is neither drained, banned nor quarantined"}]
        await page.post(PEERS, {"act": "ban", "peers": ["a"]})
        found = (await page.post(PEERS, {"act": "drain", "peers": ["a"]}))[1]["failed"]
        assert found == [{"peer": "a", "error": "it is banned: enable it first"}]
        assert (await page.post(PEERS, {"act": "drain", "peers": ["origin"]}))[1]["done"] == []
        assert len(acts.orders) == 1


async def test_settings_are_read_and_changed_together(tmp_path: Path) -> None:
    async with acting(tmp_path) as (acts, page):
        acts.fleet_limit = 6.0
        before = (await page.get("/api/v1/settings"))[1]
        assert before["usd_per_hour_max"]["value"] == 6.0
        assert (before["late_policy"], before["planner"]) == ("drop", "off")
        change = {"staleness_limit": 2, "publish_every_steps": 3, "usd_total_max": 40}
        status, after = await page.post(SETTINGS, change)
        assert status == 200
        assert (after["staleness_limit"]["value"], after["publish_every_steps"]["value"]) == (2, 3)
        await page.post(SETTINGS, {"publish_every_steps": "auto"})
    assert acts.orders[:2] == [PublishPeriodChanged(3), StalenessLimitChanged(2)]
    budget = acts.orders[2]
    assert isinstance(budget, BudgetChanged)
    assert (budget.budget.usd_per_hour_max, budget.budget.usd_total_max) == (6.0, 40.0)
    assert acts.orders[3] == PublishPeriodChanged(0)


async def test_a_cell_refuses_another_s_and_takes_a_budget(tmp_path: Path) -> None:
    async with acting(tmp_path, is_cell=True) as (acts, page):
        for change in ({"staleness_limit": 2}, {"publish_every_steps": 2}):
            status, answer = await page.post(SETTINGS, change)
            assert (status, answer["fix"]) == (400, "change them at the head")
        assert (await page.post(SETTINGS, {"usd_total_max": 40}))[0] == 200
        assert (await page.get("/api/v1/settings"))[1]["staleness_limit"]["most"] == 3
    assert len(acts.orders) == 1


async def test_prices_are_set(tmp_path: Path) -> None:
    async with acting(tmp_path) as (acts, page):
        said = await page.post("/api/v1/acts/price", {"name": "a", "usd_per_hour": 2.0})
        assert said == (200, {"prices": 1, "peers_matching": 1, "peers": 2})
    assert acts.orders == [PricesChanged((Price(name="a", usd_per_hour=2.0),))]


async def test_a_preview_changes_nothing(tmp_path: Path) -> None:
    async with acting(tmp_path) as (acts, page):
        status, said = await page.post(PREVIEW, {"act": "drain", "peers": ["a", "who"], "reason": "x"})
        assert (status, said["sentence"], said["then"]["workers_on"]) == (200, "fewer", 1)
        await page.post(PREVIEW, {"staleness_limit": 1, "usd_per_hour_max": None})
        assert (await page.post(PREVIEW, {"staleness_limit": 9_999}))[1]["code"] == "RC305"
        assert (await page.post(PREVIEW, {"act": "drain", "peers": ["who"]}))[1]["code"] == "RC305"
        assert (await page.post(PREVIEW, {"act": "drain"}))[0] == 400
        assert await page.audit() == []
    assert acts.orders == []
    assert acts.asked == [
        Change(staleness_limit=3, publish_every_steps=1, act="drain", peers=frozenset({PeerId("a")})),
        Change(staleness_limit=1, publish_every_steps=1),
    ]


async def test_invalid_acts_change_nothing(tmp_path: Path) -> None:
    async with acting(tmp_path) as (acts, page):
        for path, values in (
            (PEERS, {"act": "sideways", "peers": ["a"]}),
            (PEERS, {"act": "drain", "peers": []}),
            (PEERS, {"act": "drain", "peers": "a"}),
            (PEERS, {"act": "drain", "peers": ["a"], "reason": "x" * 201}),
            (PEERS, ["a"]),
            ("/api/v1/acts/price", {"usd_per_hour": "much"}),
            ("/api/v1/acts/price", {"usd_per_hour": -1.0}),
            ("/api/v1/acts/price", {"usd_per_hour": 1e9}),
            ("/api/v1/acts/price", {"usd_per_hour": 1.0, "colour": "red"}),
            ("/api/v1/acts/price", {}),
            (SETTINGS, {"staleness_limit": 9_999}),
            (SETTINGS, {"staleness_limit": "2"}),
            (SETTINGS, {"publish_every_steps": 0}),
            (SETTINGS, {"usd_per_hour_max": -1}),
            (SETTINGS, {"colour": "red"}),
        ):
            status, said = await page.post(path, values)
            assert (status, said["code"]) == (400, "RC305"), (path, values)
    assert acts.orders == []


async def test_acts_require_a_valid_token(tmp_path: Path) -> None:
    async with acting(tmp_path) as (acts, page):
        for token in (None, "wrong"):
            for path, values in ((PEERS, {"act": "ban", "peers": ["a"]}), (SETTINGS, {"staleness_limit": 1})):
                assert (await page.post(path, values, token))[0] in (401, 403)
    assert acts.orders == []


BUDGET = Budget(usd_per_hour_max=5.0)


def wanted(values: dict[str, Any], *, limit: int = 4, kappa: int = 1, now: int | None = None) -> list[Any]:
    """Return the orders that a change leads to."""
    rules = RulesInForce(StalenessRules(limit, kappa))
    if now is not None:
        rules.change_limit(now, at_step=0)
    return orders_of(proposed_settings(SettingsChange(**values), rules, BUDGET, steps=9), rules.rules, BUDGET)


def test_only_changes_become_orders() -> None:
    assert wanted({}) == []
    assert wanted({"staleness_limit": 4, "usd_per_hour_max": 5.0}) == []
    assert wanted({"publish_every_steps": "auto"}) == [PublishPeriodChanged(0)]
    assert wanted({"usd_total_max": 9.0}) == [BudgetChanged(Budget(usd_per_hour_max=5.0, usd_total_max=9.0))]
    assert wanted({"usd_per_hour_max": None}) == [BudgetChanged(Budget())]


def test_each_order_fits_the_settings_before_it() -> None:
    """kappa may be S + 1 at most at any moment."""
    smaller = wanted({"staleness_limit": 0, "publish_every_steps": 1}, kappa=4)
    assert smaller == [PublishPeriodChanged(1), StalenessLimitChanged(0)]
    larger = wanted({"staleness_limit": 4, "publish_every_steps": 5}, now=1)
    assert larger == [StalenessLimitChanged(4), PublishPeriodChanged(5)]


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"staleness_limit": 10}, "S can be set from 0 to 9"),
        ({"publish_every_steps": 6}, "kappa = 6 does not fit S = 4"),
        ({"staleness_limit": 1, "publish_every_steps": 3}, "kappa = 3 does not fit S = 1"),
        ({"staleness_limit": None}, "must have a value"),
        ({"publish_every_steps": None}, "must have a value"),
    ],
)
def test_invalid_settings_are_refused(values: dict[str, Any], says: str) -> None:
    with pytest.raises(MalformedMessage, match=says):
        wanted(values)


def test_settings_have_their_ranges() -> None:
    core = World(staleness_limit=3, publish_every_steps=2).core
    core.handle(StalenessLimitChanged(2), 0.0)
    found = settings_of(core, Budget(usd_total_max=7.0)).model_dump()
    assert found["staleness_limit"] == {"value": 2, "configured": 3, "least": 1, "most": core.settings.steps}
    assert found["publish_every_steps"] == {"value": 2, "configured": 2, "least": 1, "most": 3, "auto": False}
    assert found["usd_total_max"] == {"value": 7.0, "configured": None, "least": 0, "most": None}
    core.handle(PublishPeriodChanged(0), 0.0)
    assert settings_of(core, Budget()).publish_every_steps.auto


def test_the_tighter_of_two_limits_counts() -> None:
    assert budget_in_force(Budget(usd_per_hour_max=5.0), 3.0).usd_per_hour_max == 3.0
    assert budget_in_force(Budget(usd_total_max=5.0), 3.0) == Budget(usd_per_hour_max=3.0, usd_total_max=5.0)
    assert budget_in_force(Budget(), None) == Budget()
