"""Run a process whose task hangs and which must end nevertheless; it prints "ends" when its main part is done."""

from __future__ import annotations

import asyncio
import contextlib
import threading

from coordinator.tasks.row_spool import TaskThread


async def main() -> None:
    thread = TaskThread()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(0.2):
            await thread.run(threading.Event().wait)
    thread.close()


asyncio.run(main())
print("ends")
