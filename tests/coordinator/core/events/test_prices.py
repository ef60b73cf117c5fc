from __future__ import annotations

from coordinator.core.events.prices import FREE, Price, price_of

WHO = {"peer_id": "12D3", "name": "anna-gpu", "hardware": "8 cores, RTX 4090", "region": "eu"}


def test_the_first_price_that_matches_holds() -> None:
    special = Price(peer_id="12D3", usd_per_hour=9.0)
    cards, anna = Price(hardware="*RTX 4090*", usd_per_hour=0.4), Price(name="anna-*", region="eu", usd_per_hour=0.1)
    assert price_of((special, cards, anna), **WHO) is special
    assert price_of((anna, cards), **WHO) is anna
    assert price_of((Price(name="anna", usd_per_hour=1.0), cards), **WHO) is cards


def test_a_peer_without_a_price_is_donated() -> None:
    assert price_of((Price(region="us", usd_per_hour=1.0),), **WHO) is FREE
