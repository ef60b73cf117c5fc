"""Refuse a store that another version of Rollcast wrote and that this one cannot continue. Pure.

The format of a run is the version of its store's schema: SQLite keeps it in the file's header, PostgreSQL in a table of
its own. It is written when the store is created and read at every start, before anything in the store is changed.
"""

from __future__ import annotations

from rollcast.runtime.errors import RunFormatError


def check_format(store: str, found: int, oldest: int, newest: int, *, elsewhere: str) -> None:
    """Check the format of a store that is opened for writing.

    Args:
        store: what it is, for the message.
        found: its format; 0 if it is empty.
        oldest: the oldest format that this installation continues; it migrates it to ``newest``.
        elsewhere: where a new run can begin, for the message.

    Raises:
        RunFormatError: an earlier Rollcast wrote it, or a newer one.
    """
    if found == 0 or oldest <= found <= newest:
        return
    which, other = ("a newer", "upgrade this installation") if found > newest else ("an earlier", "")
    other = other or "continue the run with the version of Rollcast that wrote it"
    known = f"format {newest}" if oldest == newest else f"formats {oldest} to {newest}"
    raise RunFormatError(
        f"{store} was written by {which} Rollcast",
        cause=f"it has format {found}, and this installation continues {known}",
        fix=f"{other}, or begin a new run with {elsewhere}",
    )
