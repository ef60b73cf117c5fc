"""Open the store of a run as its coordinator: SQLite at once, PostgreSQL once this process leads."""

from __future__ import annotations

import asyncio
import os
import socket

from coordinator.config.config import StoreConfig
from coordinator.ledger.store import CompactingStore
from coordinator.stores.leadership import Leadership, lead
from coordinator.stores.postgres import PostgresEngine, PostgresStore, checked_url
from coordinator.stores.sqlite import Ledger
from rollcast.runtime.run_folder import RunFolder, run_folder_error, write_atomically


async def leadership_of(config: StoreConfig, folder: RunFolder, address: str, stop: asyncio.Event) -> Leadership | None:
    """Wait until this process leads; None if the store is SQLite, whose file lock admits one, or if ``stop`` is set.

    Args:
        address: where others reach this coordinator, for people.

    Raises:
        ConfigError: the URL cannot be used.
        StoreError: the database does not answer.
    """
    if not config.url:
        return None
    url = checked_url(config.url)
    try:
        await asyncio.to_thread(write_atomically, folder.store_url, f"{url}\n".encode(), mode=0o600)
    except OSError as error:
        raise run_folder_error(folder.store_url, error) from None
    holder = f"{socket.gethostname()}:{os.getpid()}"
    leading = asyncio.create_task(lead(url, holder, address, outage_max_s=config.outage_max_s))
    stopped = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait((leading, stopped), return_when=asyncio.FIRST_COMPLETED)
        return await leading if leading.done() else None
    finally:
        for task in (leading, stopped):
            task.cancel()
        await asyncio.gather(leading, stopped, return_exceptions=True)


def open_store(config: StoreConfig, folder: RunFolder, leadership: Leadership | None) -> CompactingStore:
    """Open the store for writing.

    Raises:
        StoreError: SQLite's file is in use or cannot be used.
        LedgerDamaged: it holds less than it did.
    """
    if leadership is None:
        return Ledger.open(folder.ledger)
    return PostgresStore(PostgresEngine(config.url, leadership.epoch, config.outage_max_s))
