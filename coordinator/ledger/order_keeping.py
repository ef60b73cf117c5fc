"""Orders are carried out at once, and written down for a coordinator after us before whoever gave them is told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from coordinator.core.events.operator_events import Order
from coordinator.ledger.saved_orders import ORDERS, Orders
from coordinator.ledger.store import RunStore
from rollcast.runtime.waits import deadline

LEDGER_DEADLINE_S = 30.0
APPLIED_AT_ONCE = 32  # orders, then everything else has its turn


class OrderKeeping:
    """Args: apply: tells the core. orders: those in force."""

    def __init__(self, apply: Callable[[Order], None], ledger: RunStore, orders: Orders) -> None:
        self._apply = apply
        self._ledger = ledger
        self._orders = orders

    async def give(self, *orders: Order) -> None:
        """Returns once the orders outlive us. The first few are carried out before anybody else has a turn.

        Raises:
            MalformedMessage: there is no room for one; those before it hold.
            StoreError, WaitTimedOut: the ledger does not keep them.
        """
        try:
            for number, order in enumerate(orders, 1):
                self._orders.check(order)
                self._apply(order)
                self._orders.take(order)
                if number % APPLIED_AT_ONCE == 0:
                    await asyncio.sleep(0)
        finally:
            async with deadline(LEDGER_DEADLINE_S, "the ledger to keep an order"):
                await self._ledger.set_meta(ORDERS, self._orders.to_json())
