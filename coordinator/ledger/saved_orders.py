"""Apply an operator's orders to a running coordinator, and save them for its successor.

Orders take effect at once, and are durable before the operator is answered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar, assert_never

import msgspec

from capacity.model.workers import Pin
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
from coordinator.ledger.store import RunStore
from rollcast.runtime.errors import MalformedMessage
from rollcast.runtime.waits import deadline
from rollcast.wire.ids import PeerId

ORDERS = "orders"  # in the ledger's meta: Orders as JSON
APPLIED = "fleet_applied"  # in the meta of a shared store: the workers that operators asked for, JSON
PRICES_MAX = 256
PEERS_MAX = 16384  # each: pinned, drained, and banned peers
LEDGER_DEADLINE_S = 30.0
APPLIED_AT_ONCE = 32  # orders; then everything else has its turn

_ValueT = TypeVar("_ValueT")


class OperatorNote(msgspec.Struct, frozen=True):
    """The operator's reason for an order, the name that the peer had, and its invite if that was banned."""

    reason: str = ""
    name: str = ""
    invite: str = ""


class Orders(msgspec.Struct):
    """The orders in force; whatever was never ordered is as configured."""

    pins: dict[str, Pin] = {}
    drained: dict[str, OperatorNote] = {}
    banned: dict[str, OperatorNote] = {}
    prices: tuple[Price, ...] | None = None
    staleness_limit: int | None = None
    publish_every_steps: int | None = None
    budget: Budget | None = None
    paused: OperatorNote | None = None
    finishing: RunFinishing | None = None

    def check(self, order: Order) -> None:
        """Check that an order fits within the limits; beyond them the oldest pins and drained peers are discarded.

        Raises:
            MalformedMessage: PEERS_MAX identities are banned; a ban is never discarded.
        """
        if isinstance(order, PeerBanned) and order.peer_id not in self.banned and len(self.banned) >= PEERS_MAX:
            raise MalformedMessage(f"{PEERS_MAX} identities are banned already", fix="enable one of them")

    def take(self, order: Order) -> None:
        """Add an order."""
        match order:
            case PeerPinned(peer_id, pin):
                self.pins.pop(peer_id, None)
                if pin:
                    _keep(self.pins, peer_id, pin)
            case PeerDrained(peer_id, reason, name):
                _keep(self.drained, peer_id, OperatorNote(reason, name))
            case PeerBanned(peer_id, reason, name, invite):
                _keep(self.banned, peer_id, OperatorNote(reason, name, invite))
            case PeerEnabled(peer_id):
                self.drained.pop(peer_id, None)
                self.banned.pop(peer_id, None)
            case PricesChanged(prices):
                self.prices = prices
            case StalenessLimitChanged(limit):
                self.staleness_limit = limit
            case PublishPeriodChanged(period):
                self.publish_every_steps = period
            case BudgetChanged(budget):
                self.budget = budget
            case RunPaused(reason):
                self.paused = OperatorNote(reason)
            case RunResumed():
                self.paused = None
            case RunFinishing():
                self.finishing = self.finishing or order
            case _:
                assert_never(order)

    def events(self, rules: StalenessRules) -> list[Order]:
        """Return the orders as events for a starting coordinator; those that do not fit its rules are left out."""
        found: list[Order] = [PeerPinned(PeerId(peer_id), pin) for peer_id, pin in self.pins.items()]
        found += [PeerDrained(PeerId(one), note.reason, note.name) for one, note in self.drained.items()]
        banned = self.banned.items()
        found += [PeerBanned(PeerId(one), note.reason, note.name, note.invite) for one, note in banned]
        if self.prices is not None:
            found.append(PricesChanged(self.prices))
        if self.budget is not None:
            found.append(BudgetChanged(self.budget))
        if self.finishing is not None:
            found.append(self.finishing)
        elif self.paused is not None:
            found.append(RunPaused(self.paused.reason))
        return found + self._changed_rules(rules)

    def _changed_rules(self, rules: StalenessRules) -> list[Order]:
        """Return the orders about S and kappa, each compatible with the rules before it."""
        limit = rules.limit if self.staleness_limit is None else self.staleness_limit
        period = rules.publish_every_steps if self.publish_every_steps is None else self.publish_every_steps
        if period > limit + 1:
            return []  # the configuration was changed since, and one of them does not fit it
        limits: list[Order] = [] if self.staleness_limit is None else [StalenessLimitChanged(limit)]
        periods: list[Order] = [] if self.publish_every_steps is None else [PublishPeriodChanged(period)]
        return limits + periods if limit > rules.limit else periods + limits

    def to_json(self) -> str:
        return msgspec.json.encode(self).decode()

    @classmethod
    def from_json(cls, text: str) -> Orders:
        return msgspec.json.decode(text, type=cls)


def _keep(book: dict[str, _ValueT], peer_id: str, value: _ValueT) -> None:
    """Put the newest value last; beyond PEERS_MAX the oldest are discarded."""
    book.pop(peer_id, None)
    book[peer_id] = value
    while len(book) > PEERS_MAX:
        del book[next(iter(book))]


def with_price(prices: tuple[Price, ...], price: Price) -> tuple[Price, ...]:
    """Return the prices with this one added.

    It replaces the price with the same patterns; otherwise it comes first, because the first match counts.

    Raises:
        MalformedMessage: there are too many prices.
    """
    patterns = [(one.peer_id, one.name, one.hardware, one.region) for one in prices]
    wanted = (price.peer_id, price.name, price.hardware, price.region)
    if wanted in patterns:
        place = patterns.index(wanted)
        return (*prices[:place], price, *prices[place + 1 :])
    if len(prices) >= PRICES_MAX:
        raise MalformedMessage(f"there are {PRICES_MAX} prices already", fix="change one of them")
    return (price, *prices)


class OrderRecorder:
    """Applies orders and records them.

    Args:
        apply: passes an order to the core.
        orders: the orders in force.
    """

    def __init__(self, apply: Callable[[Order], None], ledger: RunStore, orders: Orders) -> None:
        self._apply = apply
        self._ledger = ledger
        self._orders = orders

    async def give(self, *orders: Order) -> None:
        """Apply orders and return once they are durable; the first APPLIED_AT_ONCE take effect at once.

        Raises:
            MalformedMessage: an order is beyond the limits; those before it are in force.
            StoreError, WaitTimedOut: the ledger cannot store them.
        """
        try:
            for number, order in enumerate(orders, 1):
                self._orders.check(order)
                self._apply(order)
                self._orders.take(order)
                if number % APPLIED_AT_ONCE == 0:
                    await asyncio.sleep(0)
        finally:
            async with deadline(LEDGER_DEADLINE_S, "the ledger to store an order"):
                await self._ledger.set_meta(ORDERS, self._orders.to_json())
