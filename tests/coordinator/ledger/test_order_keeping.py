from __future__ import annotations

from typing import cast

import pytest

from coordinator.core.events.operator_events import Order, PeerBanned, PeerDrained, PeerPinned
from coordinator.ledger.saved_orders import APPLIED_AT_ONCE, ORDERS, PEERS_MAX, OrderRecorder, Orders
from coordinator.ledger.store import RunStore
from rollcast.runtime.errors import MalformedMessage
from rollcast.wire.ids import PeerId


class FakeLedger:
    """Remembers what is written, and how often."""

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
