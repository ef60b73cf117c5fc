"""What the operator orders while a run goes on, and what of it outlives a coordinator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from capacity.workers import Pin
from coordinator.activation_settings import Price
from coordinator.events import PeerPinned, PricesChanged, StalenessLimitChanged
from rollcast.runtime.errors import MalformedMessage
from rollcast.wire.ids import PeerId

ORDERS = "orders"  # in the ledger's meta: Orders as JSON
PRICES_MAX = 256
PINS_MAX = 4096

Order = PeerPinned | PricesChanged | StalenessLimitChanged


class Orders(msgspec.Struct):
    """The orders in force; what was never ordered is as configured."""

    pins: dict[str, Pin] = {}
    prices: tuple[Price, ...] | None = None
    staleness_limit: int | None = None

    def take(self, order: Order) -> None:
        """One more."""
        match order:
            case PeerPinned(peer_id, pin):
                self.pins.pop(peer_id, None)
                if pin:
                    self.pins[peer_id] = pin
                while len(self.pins) > PINS_MAX:
                    del self.pins[next(iter(self.pins))]
            case PricesChanged(prices):
                self.prices = prices
            case StalenessLimitChanged(limit):
                self.staleness_limit = limit

    def events(self, limits: range) -> list[Order]:
        """Them all again, for a coordinator that starts; ``limits``: S that the configuration allows now."""
        found: list[Order] = [PeerPinned(PeerId(peer_id), pin) for peer_id, pin in self.pins.items()]
        if self.prices is not None:
            found.append(PricesChanged(self.prices))
        if self.staleness_limit is not None and self.staleness_limit in limits:
            found.append(StalenessLimitChanged(self.staleness_limit))
        return found

    def to_json(self) -> str:
        return msgspec.json.encode(self).decode()

    @classmethod
    def from_json(cls, text: str) -> Orders:
        return msgspec.json.decode(text, type=cls)


def with_price(prices: tuple[Price, ...], price: Price) -> tuple[Price, ...]:
    """Of the same peers as before, in its place; of others, before all: the first that matches holds.

    Raises:
        MalformedMessage: there are too many.
    """
    patterns = [(one.peer_id, one.name, one.hardware, one.region) for one in prices]
    wanted = (price.peer_id, price.name, price.hardware, price.region)
    if wanted in patterns:
        place = patterns.index(wanted)
        return (*prices[:place], price, *prices[place + 1 :])
    if len(prices) >= PRICES_MAX:
        raise MalformedMessage(f"there are {PRICES_MAX} prices already", fix="change one of them")
    return (price, *prices)


class _Priced(msgspec.Struct, forbid_unknown_fields=True):
    """Of Price, with limits."""

    usd_per_hour: float
    peer_id: str = "*"
    name: str = "*"
    hardware: str = "*"
    region: str = "*"
    egress_usd_per_gb: float = 0.0
    preemptions_per_hour: float = 0.0


def price_from(values: Mapping[str, Any]) -> Price:
    """One price.

    Raises:
        MalformedMessage: a field is missing, unknown, of the wrong type or out of range.
    """
    try:
        priced = msgspec.convert(values, type=_Priced)
    except msgspec.ValidationError as error:
        raise MalformedMessage("this is no price", cause=str(error)) from None
    rates = (priced.usd_per_hour, priced.egress_usd_per_gb, priced.preemptions_per_hour)
    if not all(0.0 <= rate <= 1e6 for rate in rates):
        raise MalformedMessage("a price is 0 to 1e6 $/h")
    return Price(**msgspec.structs.asdict(priced))
