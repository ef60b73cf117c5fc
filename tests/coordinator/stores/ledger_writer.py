"""Store rollouts without end and print each id once it is acknowledged; test_sqlite.py runs this as a process."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from coordinator.stores.sqlite import Ledger
from tests.coordinator.stored_work import attempt, group, rollout, store_rollout


async def store_one(ledger: Ledger, number: int) -> None:
    """Issue and store the rollout of this number, then print its id."""
    ledger.record_attempt(attempt(number, number))
    await ledger.store_rollouts([store_rollout(number, rollout(number, number))])
    sys.stdout.write(f"{number}\n")
    sys.stdout.flush()


async def main(path: Path) -> None:
    """Store in waves of 20, so that commits hold several."""
    ledger = Ledger.open(path)
    await ledger.record_group(group(), "{}")
    for wave in range(10_000):
        await asyncio.gather(*(store_one(ledger, wave * 20 + number) for number in range(1, 21)))


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
