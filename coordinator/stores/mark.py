"""Keep a high-water mark of the ledger in a file beside it, so that an older or shortened ledger is noticed.

SQLite takes up whatever it finds: without its write-ahead log, or as a copy of yesterday, a ledger opens without a
word, and the run would issue ids again that peers know and train without what it had acknowledged. The mark is written
about once a second without waiting for the disk, so it lags behind the ledger and never leads: what was lost within
the last second may go unnoticed, and nothing is ever refused that was not lost.
"""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from rollcast.runtime.errors import LedgerDamaged

MARK_EVERY_S = 1.0
FILE_BYTES_MAX = 4096
_COUNTED = {"lease_id": "leases", "rollout_id": "rollouts", "batches": "batches"}
_HIGH_WATER = """
SELECT max(coalesce((SELECT max(lease_id) FROM attempts), 0), lease_id),
    max(coalesce((SELECT max(rollout_id) FROM rollouts), 0), rollout_id),
    max(coalesce((SELECT max(step) + 1 FROM batches), 0), horizon_step)
FROM retention
"""


def mark_path(ledger: Path) -> Path:
    """Return the path of a ledger's mark."""
    return ledger.with_name(ledger.name + ".mark")


def check_mark(connection: sqlite3.Connection, ledger: Path) -> None:
    """Compare an opened ledger with its mark, if it has one.

    Raises:
        LedgerDamaged: the ledger holds less than it did, or the mark cannot be read.
        sqlite3.Error: the ledger cannot be read.
    """
    path = mark_path(ledger)
    try:
        if path.stat().st_size > FILE_BYTES_MAX:
            raise ValueError("it is too large")
        mark = json.loads(path.read_bytes())
        held = {key: int(mark[key]) for key in _COUNTED}
    except FileNotFoundError:
        return
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise LedgerDamaged(
            f"the mark {path} cannot be read", cause=str(error), fix="remove it, if the ledger is known to be whole"
        ) from None
    found = high_water(connection)
    lost = [f"{word} up to {held[key]}, now {found[key]}" for key, word in _COUNTED.items() if found[key] < held[key]]
    if lost:
        raise LedgerDamaged(
            f"the ledger {ledger} is older than it was",
            cause=f"it held {'; '.join(lost)}: the file was replaced, or its -wal file was lost",
            fix="restore a backup with `rollcast restore` into a new folder; to go on without what was lost, remove "
            f"{path.name}",
        )


def high_water(connection: sqlite3.Connection) -> dict[str, int]:
    """Return the largest ids that the ledger has ever held, and the number of its batches."""
    return dict(zip(_COUNTED, map(int, connection.execute(_HIGH_WATER).fetchone()), strict=True))


class MarkWriter:
    """Writes the mark after commits, at most once in MARK_EVERY_S seconds."""

    def __init__(self, ledger: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = mark_path(ledger)
        self._clock = clock
        self._next = -float("inf")

    def committed(self, connection: sqlite3.Connection, *, last: bool = False) -> None:
        """Write the mark if it is due, or if this was the last commit. A full disk is the ledger's own matter."""
        now = self._clock()
        if now < self._next and not last:
            return
        self._next = now + MARK_EVERY_S
        temporary = self._path.with_name(f".{self._path.name}.tmp")
        with suppress(OSError):
            temporary.write_text(json.dumps(high_water(connection) | {"at_unix_s": time.time()}))
            os.replace(temporary, self._path)
