from __future__ import annotations

from pathlib import Path

from coordinator.ledger import Ledger
from tests.coordinator.store_conformance import CompactionConformance


class TestLedger(CompactionConformance):
    async def open_store(self, folder: Path) -> Ledger:
        return Ledger.open(folder / "store.sqlite")
