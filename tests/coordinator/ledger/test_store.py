from __future__ import annotations

from pathlib import Path

from coordinator.ledger.sqlite import Ledger
from tests.coordinator.ledger.store_conformance import CompactionConformance


class TestLedger(CompactionConformance):
    async def open_store(self, folder: Path) -> Ledger:
        return Ledger.open(folder / "store.sqlite")
