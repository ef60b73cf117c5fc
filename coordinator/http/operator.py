"""The operator's orders over HTTP: pins, prices, S."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Literal, Protocol

from capacity.workers import Pin
from coordinator.activation_settings import Price
from coordinator.http.routes import Answer, Body, Call, Route
from coordinator.operator_events import Order, PeerPinned, PricesChanged, StalenessLimitChanged
from coordinator.orders import ORDERS, Orders, price_from, with_price
from coordinator.store import RunStore
from rollcast.runtime.errors import MalformedMessage
from rollcast.runtime.waits import deadline
from rollcast.wire.ids import PeerId

LEDGER_DEADLINE_S = 30.0
_PINS: dict[str, Pin] = {"on": "on", "off": "off", "auto": ""}


class Run(Protocol):
    """What orders are about."""

    def peer_named(self, words: str) -> PeerId | None: ...

    @property
    def prices(self) -> tuple[Price, ...]: ...

    @property
    def staleness_limits(self) -> range: ...


class OrderKeeping:
    """Carries orders out, and writes them down for a coordinator after us."""

    def __init__(self, apply: Callable[[Order], None], ledger: RunStore, orders: Orders) -> None:
        self._apply = apply
        self._ledger = ledger
        self._orders = orders

    async def give(self, order: Order) -> None:
        """Returns once the order outlives us.

        Raises:
            MalformedMessage: there is no room for it.
            StoreError, WaitTimedOut: the ledger does not keep it.
        """
        self._orders.check(order)
        self._apply(order)
        self._orders.take(order)
        async with deadline(LEDGER_DEADLINE_S, "the ledger to keep an order"):
            await self._ledger.set_meta(ORDERS, self._orders.to_json())


class PinOrder(Body):
    """A peer's name or id, and where it stays whatever it costs."""

    peer: str
    pin: Literal["on", "off", "auto"]


class StalenessOrder(Body):
    """S in learner steps."""

    staleness_limit: int


class PriceOrder(Body):
    """What matching peers cost; patterns as in file names."""

    usd_per_hour: float
    peer_id: str = "*"
    name: str = "*"
    hardware: str = "*"
    region: str = "*"
    egress_usd_per_gb: float = 0.0
    preemptions_per_hour: float = 0.0


class OperatorApi:
    """Args: give: carries an order out, durably."""

    def __init__(self, run: Run, give: Callable[[Order], Awaitable[None]]) -> None:
        self._run = run
        self._give = give

    def routes(self) -> list[Route]:
        return [
            Route(
                "POST",
                "/api/v1/capacity/pin",
                "operator",
                self._pin,
                "Keep a peer on or off.",
                body=PinOrder,
                act="pin",
            ),
            Route(
                "POST",
                "/api/v1/capacity/price",
                "operator",
                self._price,
                "Say what peers cost.",
                body=PriceOrder,
                act="price",
            ),
            Route(
                "POST",
                "/api/v1/staleness-limit",
                "operator",
                self._staleness_limit,
                "Set S.",
                body=StalenessOrder,
                act="staleness limit",
            ),
        ]

    async def _pin(self, call: Call) -> Answer:
        words, pin = call.body.peer, call.body.pin
        peer_id = self._run.peer_named(words)
        if peer_id is None:
            raise MalformedMessage(f"no peer here is called {words!r}", fix="give its id, or a name that only it has")
        await self._give(PeerPinned(peer_id, _PINS[pin]))
        return {"peer_id": peer_id, "pin": pin}

    async def _price(self, call: Call) -> Answer:
        prices = with_price(self._run.prices, price_from(call.body.model_dump()))
        await self._give(PricesChanged(prices))
        return {"prices": len(prices)}

    async def _staleness_limit(self, call: Call) -> Answer:
        limit, limits = call.body.staleness_limit, self._run.staleness_limits
        if limit not in limits:
            raise MalformedMessage(
                f"S can be set from {limits.start} to {limits.stop - 1} while this run goes on",
                cause="versions are kept for no more than the S that it was started with",
                fix="start the coordinator and the learner again with a larger run.staleness_limit",
            )
        await self._give(StalenessLimitChanged(limit))
        return {"staleness_limit": limit}
