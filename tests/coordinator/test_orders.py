from __future__ import annotations

from typing import Any

import pytest

from coordinator.activation_settings import Price
from coordinator.events import PeerPinned, PricesChanged, StalenessLimitChanged
from coordinator.orders import PRICES_MAX, Orders, price_from, with_price
from rollcast.runtime.errors import MalformedMessage
from rollcast.wire.ids import PeerId


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
    assert again.events(range(5)) == [PeerPinned(PeerId("b"), "off"), PricesChanged((price,)), StalenessLimitChanged(2)]
    assert StalenessLimitChanged(2) not in again.events(range(2))
    assert Orders.from_json("{}").events(range(5)) == []


def test_a_price_takes_the_place_of_the_one_for_the_same_peers() -> None:
    first, second = Price(name="a", usd_per_hour=1.0), Price(hardware="x", usd_per_hour=2.0)
    prices = with_price(with_price((), first), second)
    assert prices == (second, first)
    assert with_price(prices, Price(name="a", usd_per_hour=9.0)) == (second, Price(name="a", usd_per_hour=9.0))
    many = tuple(Price(name=str(number), usd_per_hour=1.0) for number in range(PRICES_MAX))
    with pytest.raises(MalformedMessage, match="prices already"):
        with_price(many, second)


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"usd_per_hour": -1.0},
        {"usd_per_hour": "much"},
        {"usd_per_hour": 1.0, "colour": "red"},
        {"usd_per_hour": 1e9},
    ],
)
def test_what_is_no_price_is_refused(values: dict[str, Any]) -> None:
    with pytest.raises(MalformedMessage):
        price_from(values)
