"""Open the store of a run as its coordinator: SQLite at once, PostgreSQL once this process leads."""

from __future__ import annotations

import asyncio
import os
import socket

from coordinator.config.config import StoreConfig
from coordinator.ledger.store import CompactingStore
from coordinator.stores.leadership import CheckStandby, Leadership, lead
from coordinator.stores.postgres import PostgresEngine, PostgresStore, checked_url
from coordinator.stores.reader import has_url, store_url
from coordinator.stores.sqlite import Ledger
from rollcast.runtime.errors import MigrationError
from rollcast.runtime.run_folder import RunFolder, run_folder_error, write_atomically


async def leadership_of(
    config: StoreConfig,
    folder: RunFolder,
    address: str,
    stop: asyncio.Event,
    check_standby: CheckStandby = lambda connection: True,
) -> Leadership | None:
    """Wait until this process leads; None if the store is SQLite, whose file lock admits one, or if ``stop`` is set.

    Args:
        address: where others reach this coordinator, for people.
        check_standby: see lead.

    Raises:
        ConfigError: the URL cannot be used.
        MigrationError: the run is in the other kind of store.
        StoreError: the database does not answer.
    """
    _check_kind(config, folder)
    if not config.url:
        return None
    url = checked_url(config.url)
    try:
        await asyncio.to_thread(write_atomically, folder.store_url, f"{url}\n".encode(), mode=0o600)
    except OSError as error:
        raise run_folder_error(folder.store_url, error) from None
    holder = f"{socket.gethostname()}:{os.getpid()}"
    leading = asyncio.create_task(
        lead(url, holder, address, outage_max_s=config.outage_max_s, check_standby=check_standby)
    )
    stopped = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait((leading, stopped), return_when=asyncio.FIRST_COMPLETED)
        return await leading if leading.done() else None
    finally:
        for task in (leading, stopped):
            task.cancel()
        await asyncio.gather(leading, stopped, return_exceptions=True)


def _check_kind(config: StoreConfig, folder: RunFolder) -> None:
    """Refuse a store that is not the run's own: the run would begin again, or go on from an old copy."""
    if not config.url and has_url(folder):
        raise MigrationError(
            f"the store of {folder.root} is in PostgreSQL, and store.url is empty",
            cause=f"{folder.store_url.name} names {store_url(folder)}",
            fix="set store.url, or move the run with `rollcast migrate RUN_FOLDER sqlite`",
        )
    if config.url and not has_url(folder) and folder.ledger.exists():
        raise MigrationError(
            f"the store of {folder.root} is in SQLite, and store.url is set",
            cause=f"it has {folder.ledger.name}",
            fix="move the run with `rollcast migrate RUN_FOLDER URL`, or remove store.url",
        )


def open_store(config: StoreConfig, folder: RunFolder, leadership: Leadership | None) -> CompactingStore:
    """Open the store for writing.

    Raises:
        StoreError: SQLite's file is in use or cannot be used.
        LedgerDamaged: it holds less than it did.
    """
    if leadership is None:
        return Ledger.open(folder.ledger, outage_max_s=config.outage_max_s)
    return PostgresStore(PostgresEngine(config.url, leadership.epoch, config.outage_max_s))
