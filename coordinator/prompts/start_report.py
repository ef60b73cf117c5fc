"""Report what a starting coordinator waits for, in the run folder and in the log."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

import structlog

from rollcast.runtime.run_folder import RunFolder
from rollcast.runtime.start_deadline import StartReport
from rollcast.runtime.waits import cancel_and_wait

WRITTEN_EVERY_S = 1.0
LOGGED_EVERY_S = 10.0

log = structlog.get_logger()


@asynccontextmanager
async def start_reported(folder: RunFolder, progress: Callable[[], str]) -> AsyncIterator[None]:
    """Report inside, from the first second on, what ``progress`` returns; nothing is left in the folder afterwards."""
    reporting = asyncio.create_task(_report(folder, progress))
    try:
        yield
    finally:
        await cancel_and_wait(reporting)
        with suppress(OSError):
            folder.starting.unlink(missing_ok=True)


async def _report(folder: RunFolder, progress: Callable[[], str]) -> None:
    log_at_s = 0.0
    while True:
        await asyncio.sleep(WRITTEN_EVERY_S)
        doing = progress()
        if time.monotonic() >= log_at_s:
            log_at_s = time.monotonic() + LOGGED_EVERY_S
            log.info("starting", doing=doing)
        with suppress(OSError):  # a full disk is no reason to end: the report is for people only
            await asyncio.to_thread(StartReport.write, folder.starting, doing)
