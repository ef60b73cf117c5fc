"""Orders over HTTP: who may give them, and what becomes of those that make no sense."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import aiohttp

from coordinator.activation_settings import Price
from coordinator.events import PeerPinned, PricesChanged, StalenessLimitChanged
from coordinator.http.operator import OperatorApi, OrderKeeping, operator_key
from coordinator.http.server import HttpApi, HttpServer, HttpViews
from coordinator.join import JoinDesk
from coordinator.orders import ORDERS, Order, Orders
from coordinator.store import RunStore
from rollcast.wire.ids import PeerId

KEY = "secret"


class FakeRun:
    prices: tuple[Price, ...] = ()
    staleness_limits = range(1, 5)

    def peer_named(self, words: str) -> PeerId | None:
        return PeerId("id-of-a") if words == "a" else None


@asynccontextmanager
async def served(orders: list[Order]) -> AsyncIterator[str]:
    async def give(order: Order) -> None:
        orders.append(order)

    views = HttpViews(dict, dict, lambda: "", lambda: b"")
    operator = OperatorApi(KEY, FakeRun(), give)
    api = HttpApi(views, cast(JoinDesk, None), hosts=frozenset({"127.0.0.1"}), operator=operator)
    server = await HttpServer.start(api, host="127.0.0.1", port=0, tls=None)
    yield f"http://127.0.0.1:{server.port}"
    await server.stop()


async def post(url: str, path: str, values: Any, key: str | None = KEY) -> tuple[int, dict[str, Any]]:
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    async with (
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=10)) as client,
        client.post(f"{url}{path}", json=values, headers=headers) as response,
    ):
        return response.status, await response.json()


async def test_orders_are_carried_out() -> None:
    orders: list[Order] = []
    async with served(orders) as url:
        pinned = await post(url, "/api/v1/capacity/pin", {"peer": "a", "pin": "off"})
        assert pinned == (200, {"peer_id": "id-of-a", "pin": "off"})
        await post(url, "/api/v1/capacity/pin", {"peer": "a", "pin": "auto"})
        assert await post(url, "/api/v1/capacity/price", {"name": "a", "usd_per_hour": 2.0}) == (200, {"prices": 1})
        assert await post(url, "/api/v1/staleness-limit", {"staleness_limit": 3}) == (200, {"staleness_limit": 3})
    assert orders == [
        PeerPinned(PeerId("id-of-a"), "off"),
        PeerPinned(PeerId("id-of-a"), ""),
        PricesChanged((Price(name="a", usd_per_hour=2.0),)),
        StalenessLimitChanged(3),
    ]


async def test_nobody_else_gives_any() -> None:
    orders: list[Order] = []
    async with served(orders) as url:
        for key in (None, "", "wrong", "s\u00e9cret"):
            status, said = await post(url, "/api/v1/capacity/pin", {"peer": "a", "pin": "off"}, key)
            assert (status, said["code"]) == (403, "RC302")
    assert orders == []


async def test_what_makes_no_sense_changes_nothing() -> None:
    orders: list[Order] = []
    async with served(orders) as url:
        for path, values in (
            ("/api/v1/capacity/pin", {"peer": "nobody", "pin": "off"}),
            ("/api/v1/capacity/pin", {"peer": "a", "pin": "sideways"}),
            ("/api/v1/capacity/pin", {"peer": 7, "pin": "on"}),
            ("/api/v1/capacity/pin", ["a", "on"]),
            ("/api/v1/capacity/price", {"usd_per_hour": "much"}),
            ("/api/v1/staleness-limit", {"staleness_limit": 5}),
            ("/api/v1/staleness-limit", {"staleness_limit": "4"}),
        ):
            status, said = await post(url, path, values)
            assert (status, said["code"]) == (400, "RC305"), path
    assert orders == []


def test_the_key_is_made_once_and_its_owners_alone(tmp_path: Path) -> None:
    key = operator_key(tmp_path)
    assert len(key) > 32
    assert operator_key(tmp_path) == key
    assert (tmp_path / "operator.key").stat().st_mode & 0o077 == 0


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
