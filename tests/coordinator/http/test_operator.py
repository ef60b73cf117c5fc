"""Orders over HTTP: what becomes of them, and of those that make no sense."""

from __future__ import annotations

from pathlib import Path
from typing import cast

from coordinator.activation_settings import Price
from coordinator.http.operator import OperatorApi, OrderKeeping
from coordinator.operator_events import Order, PeerPinned, PricesChanged, StalenessLimitChanged
from coordinator.orders import ORDERS, Orders
from coordinator.store import RunStore
from rollcast.wire.ids import PeerId
from tests.coordinator.http.serving import Given, served


class FakeRun:
    prices: tuple[Price, ...] = ()
    staleness_limits = range(1, 5)

    def peer_named(self, words: str) -> PeerId | None:
        return PeerId("id-of-a") if words == "a" else None


def given(orders: list[Order]) -> Given:
    async def give(order: Order) -> None:
        orders.append(order)

    return Given(routes=OperatorApi(FakeRun(), give).routes())


async def test_orders_are_carried_out_and_written_down(tmp_path: Path) -> None:
    orders: list[Order] = []
    async with served(tmp_path, given(orders)) as page:
        pinned = await page.post("/api/v1/capacity/pin", {"peer": "a", "pin": "off"})
        assert pinned == (200, {"peer_id": "id-of-a", "pin": "off"})
        await page.post("/api/v1/capacity/pin", {"peer": "a", "pin": "auto"})
        assert await page.post("/api/v1/capacity/price", {"name": "a", "usd_per_hour": 2.0}) == (200, {"prices": 1})
        limit = {"staleness_limit": 3}
        assert await page.post("/api/v1/staleness-limit", limit) == (200, limit)
        assert [row.act for row in await page.audit()] == ["pin", "pin", "price", "staleness limit"]
    assert orders == [
        PeerPinned(PeerId("id-of-a"), "off"),
        PeerPinned(PeerId("id-of-a"), ""),
        PricesChanged((Price(name="a", usd_per_hour=2.0),)),
        StalenessLimitChanged(3),
    ]


async def test_what_makes_no_sense_changes_nothing(tmp_path: Path) -> None:
    orders: list[Order] = []
    async with served(tmp_path, given(orders)) as page:
        for path, values in (
            ("/api/v1/capacity/pin", {"peer": "nobody", "pin": "off"}),
            ("/api/v1/capacity/pin", {"peer": "a", "pin": "sideways"}),
            ("/api/v1/capacity/pin", {"peer": 7, "pin": "on"}),
            ("/api/v1/capacity/pin", ["a", "on"]),
            ("/api/v1/capacity/price", {"usd_per_hour": "much"}),
            ("/api/v1/staleness-limit", {"staleness_limit": 5}),
            ("/api/v1/staleness-limit", {"staleness_limit": "4"}),
        ):
            status, said = await page.post(path, values)
            assert (status, said["code"]) == (400, "RC305"), path
    assert orders == []


async def test_an_order_is_written_down() -> None:
    kept: dict[str, str] = {}

    class FakeLedger:
        async def set_meta(self, key: str, value: str) -> None:
            kept[key] = value

    applied: list[Order] = []
    order = PeerPinned(PeerId("a"), "on")
    await OrderKeeping(applied.append, cast(RunStore, FakeLedger()), Orders()).give(order)
    assert applied == [order]
    assert Orders.from_json(kept[ORDERS]).pins == {"a": "on"}
