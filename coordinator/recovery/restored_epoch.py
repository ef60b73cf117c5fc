"""A run restored from a backup goes on above everything that the lost coordinator may have published after it.

Peers may hold versions of which the backup knows nothing. Were their numbers given out again, with other contents, two
peers could hold different weights under one name. So a restored run begins with a new epoch, as many steps further on
as the learner can have done since the backup. How a learner follows: learner/publishing/epochs.py.
"""

from __future__ import annotations

import math
import sqlite3
from itertools import pairwise

from coordinator.core.events.actions import RecordEpoch
from coordinator.ledger.sql_work import count_batches, insert_epoch
from rollcast.wire.ids import Epoch, Step, Version

STEPS_LOOKED_AT = 100  # newest ones; the fastest says how many there can have been
STEPS_SPARE = 16
STEPS_LOST_MAX = 1_000_000
_STEP_S_UNKNOWN = 1.0  # of a run that has done no two steps
_STEP_S_LEAST = 0.05


def open_epoch(connection: sqlite3.Connection, lost_s: float) -> RecordEpoch:
    """Record the epoch with which a restored run begins, ``lost_s`` seconds after its backup was made.

    Raises:
        sqlite3.Error: the ledger cannot be written.
    """
    recorded = count_batches(connection)
    row = connection.execute("SELECT max(version), max(epoch) FROM versions").fetchone()
    (newest_opened,) = connection.execute("SELECT coalesce(max(epoch), 0) FROM epochs").fetchone()
    newest_version, newest_epoch = row[0], max(row[1] or 0, newest_opened)
    epoch = RecordEpoch(
        epoch=Epoch(newest_epoch + 1),
        step_from=Step(recorded),
        step_to=Step(recorded + _steps_lost(connection, lost_s)),
        common_version=None if newest_version is None else Version(newest_version),
    )
    insert_epoch(connection, epoch)
    return epoch


def _steps_lost(connection: sqlite3.Connection, lost_s: float) -> int:
    """No more steps than these can have been done meanwhile."""
    rows = connection.execute(
        "SELECT reported_unix_s FROM steps ORDER BY step DESC LIMIT ?", (STEPS_LOOKED_AT,)
    ).fetchall()
    times = [at for (at,) in rows]
    step_s = min((later - sooner for later, sooner in pairwise(times)), default=_STEP_S_UNKNOWN)
    return min(STEPS_LOST_MAX, math.ceil(max(0.0, lost_s) / max(step_s, _STEP_S_LEAST)) + STEPS_SPARE)
