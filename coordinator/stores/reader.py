"""Read a run's store from beside its coordinator: for the story of an object, reports, pages and commands."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from coordinator.ledger.sql import RunReader
from coordinator.stores import postgres, sqlite
from rollcast.runtime.run_folder import RunFolder, run_folder_error


@contextmanager
def reading(folder: RunFolder) -> Iterator[RunReader]:
    """Open a reader of the run's store; the run may be over or in progress.

    Raises:
        RunFolderError: there is no store.
        StoreError: it cannot be read; also what the statements inside the context raise.
    """
    with postgres.read_only(store_url(folder)) if has_url(folder) else sqlite.read_only(folder.ledger) as connection:
        yield connection


def has_run(folder: RunFolder) -> bool:
    """Return whether a coordinator ever opened a store from this folder."""
    return has_url(folder) or folder.ledger.exists()


def has_url(folder: RunFolder) -> bool:
    """Return whether the run's store is in PostgreSQL."""
    return folder.store_url.exists()


def store_url(folder: RunFolder) -> str:
    """Return the URL of the run's database.

    Raises:
        RunFolderError: the file that names it cannot be read.
    """
    try:
        return folder.store_url.read_text().strip()
    except OSError as error:
        raise run_folder_error(folder.store_url, error) from None
