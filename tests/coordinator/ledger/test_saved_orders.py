"""Test that operators' orders outlive the coordinator, and that only the newest of each kind is kept."""

from __future__ import annotations

from typing import cast

import pytest

from coordinator.core.events.operator_events import (
    BudgetChanged,
    Order,
    PeerBanned,
    PeerDrained,
    PeerEnabled,
    PeerPinned,
    PricesChanged,
    PublishPeriodChanged,
    RunFinishing,
    RunPaused,
    RunResumed,
    StalenessLimitChanged,
)
from coordinator.core.events.prices import Budget, Price
from coordinator.core.staleness.policy import StalenessRules
from coordinator.ledger.saved_orders import (
    APPLIED_AT_ONCE,
    ORDERS,
    PEERS_MAX,
    PRICES_MAX,
    OrderRecorder,
    Orders,
    with_price,
)
from coordinator.ledger.store import RunStore
from rollcast.runtime.errors import MalformedMessage
from rollcast.wire.ids import PeerId, Step


def test_orders_in_force_outlive_a_coordinator() -> None:
    orders = Orders()
    price = Price(name="a*", usd_per_hour=2.0)
    for order in (
        PeerPinned(PeerId("a"), "on"),
        PeerPinned(PeerId("b"), "off"),
        PeerPinned(PeerId("a"), ""),
        PricesChanged((price,)),
        StalenessLimitChanged(2),
    ):
        orders.take(order)
    again = Orders.from_json(orders.to_json())
    rules = StalenessRules(4, 1)
    assert again.events(rules) == [PeerPinned(PeerId("b"), "off"), PricesChanged((price,)), StalenessLimitChanged(2)]
    assert StalenessLimitChanged(2) in again.events(StalenessRules(1, 1)), "S may be above the configured one"
    assert Orders.from_json("{}").events(rules) == []


def test_bans_and_budget_outlive_a_coordinator() -> None:
    orders, a, b = Orders(), PeerId("a"), PeerId("b")
    budget = BudgetChanged(Budget(usd_per_hour_max=2.0))
    for order in (
        PeerDrained(a, "too hot", "Anna"),
        PeerBanned(b, "sends rubbish", "Bert"),
        PeerDrained(b, "", "Bert"),
        PublishPeriodChanged(3),
        budget,
    ):
        orders.take(order)
    again = Orders.from_json(orders.to_json())
    assert again.events(StalenessRules(4, 1)) == [
        PeerDrained(a, "too hot", "Anna"),
        PeerDrained(b, "", "Bert"),
        PeerBanned(b, "sends rubbish", "Bert"),
        budget,
        PublishPeriodChanged(3),
    ]
    again.take(PeerEnabled(b))
    again.take(PeerEnabled(a))
    assert again.events(StalenessRules(1, 1)) == [budget]  # kappa = 3 does not fit S = 1


def test_a_pause_and_an_early_end_outlive_a_coordinator() -> None:
    orders, rules = Orders(), StalenessRules(4, 1)
    orders.take(RunPaused("night"))
    assert Orders.from_json(orders.to_json()).events(rules) == [RunPaused("night")]
    orders.take(RunResumed())
    assert Orders.from_json(orders.to_json()).events(rules) == []
    orders.take(RunPaused())
    orders.take(RunFinishing(Step(7), "enough"))
    orders.take(RunFinishing(Step(9)))
    assert Orders.from_json(orders.to_json()).events(rules) == [RunFinishing(Step(7), "enough")]


def test_s_is_restored_as_far_as_kappa_allows() -> None:
    """S = 1 fits the kappa that was ordered, not the configured one."""
    orders = Orders()
    for order in (PublishPeriodChanged(1), StalenessLimitChanged(1)):
        orders.take(order)
    assert orders.events(StalenessRules(4, 4)) == [PublishPeriodChanged(1), StalenessLimitChanged(1)]
    assert Orders(staleness_limit=1).events(StalenessRules(4, 4)) == []
    for order in (StalenessLimitChanged(8), PublishPeriodChanged(9)):
        orders.take(order)
    assert orders.events(StalenessRules(4, 4)) == [StalenessLimitChanged(8), PublishPeriodChanged(9)]


def test_bans_are_never_discarded() -> None:
    orders = Orders()
    for number in range(PEERS_MAX):
        orders.take(PeerBanned(PeerId(str(number))))
    orders.check(PeerBanned(PeerId("0"), "again"))
    with pytest.raises(MalformedMessage, match="banned already"):
        orders.check(PeerBanned(PeerId("one more")))


def test_price_replaces_the_one_with_the_same_patterns() -> None:
    first, second = Price(name="a", usd_per_hour=1.0), Price(hardware="x", usd_per_hour=2.0)
    prices = with_price(with_price((), first), second)
    assert prices == (second, first)
    assert with_price(prices, Price(name="a", usd_per_hour=9.0)) == (second, Price(name="a", usd_per_hour=9.0))
    many = tuple(Price(name=str(number), usd_per_hour=1.0) for number in range(PRICES_MAX))
    with pytest.raises(MalformedMessage, match="prices already"):
        with_price(many, second)


class FakeLedger:
    """Keeps the written values, and counts the writes."""

    def __init__(self) -> None:
        self.kept: dict[str, str] = {}
        self.writes = 0

    async def set_meta(self, key: str, value: str) -> None:
        self.kept[key], self.writes = value, self.writes + 1


async def test_orders_are_carried_out_and_written_down_together() -> None:
    ledger, applied = FakeLedger(), list[Order]()
    orders = [PeerPinned(PeerId("a"), "on"), *(PeerDrained(PeerId(str(one))) for one in range(2 * APPLIED_AT_ONCE))]
    await OrderRecorder(applied.append, cast(RunStore, ledger), Orders()).give(*orders)
    assert applied == orders
    kept = Orders.from_json(ledger.kept[ORDERS])
    assert kept.pins == {"a": "on"}
    assert len(kept.drained) == 2 * APPLIED_AT_ONCE
    assert ledger.writes == 1


async def test_those_before_one_without_room_hold() -> None:
    ledger, applied, full = FakeLedger(), list[Order](), Orders()
    for number in range(PEERS_MAX):
        full.take(PeerBanned(PeerId(f"x{number}")))
    first = PeerPinned(PeerId("a"), "on")
    with pytest.raises(MalformedMessage, match="banned already"):
        await OrderRecorder(applied.append, cast(RunStore, ledger), full).give(first, PeerBanned(PeerId("b")))
    assert applied == [first]
    assert Orders.from_json(ledger.kept[ORDERS]).pins == {"a": "on"}
