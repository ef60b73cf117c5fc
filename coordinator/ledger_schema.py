"""Tables of the ledger and the steps between their versions.

The database itself refuses what must never happen: a rollout in two batches, a dropped or unscored rollout in a batch,
a trained rollout dropped, a changed batch, event or announcement.
"""

from __future__ import annotations

import sqlite3

from rollcast.runtime.errors import StoreError

_FIRST = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT, WITHOUT ROWID;

CREATE TABLE groups (
    group_id INTEGER PRIMARY KEY,
    problem_id TEXT NOT NULL,
    prompt_token_ids BLOB NOT NULL,          -- little-endian u32
    mixture_position TEXT NOT NULL,          -- where the prompt source stands after this problem
    problem TEXT NOT NULL                    -- coordinator.tasks.adapter.Problem as JSON
) STRICT;

CREATE TABLE attempts (
    lease_id INTEGER NOT NULL,
    sample_index INTEGER NOT NULL,
    fencing_token INTEGER NOT NULL,
    group_id INTEGER NOT NULL REFERENCES groups,
    seed INTEGER NOT NULL,                   -- 64 bits, two's complement
    peer_id TEXT NOT NULL,
    closed_reason TEXT,                      -- why it was dropped; null while open and when trained
    PRIMARY KEY (lease_id, sample_index)
) STRICT, WITHOUT ROWID;

CREATE TABLE rollouts (
    rollout_id INTEGER PRIMARY KEY,
    lease_id INTEGER NOT NULL,
    sample_index INTEGER NOT NULL,
    peer_id TEXT NOT NULL,
    body BLOB NOT NULL,                      -- rollcast.v1.Rollout
    oldest_version INTEGER NOT NULL,
    accepted_order INTEGER NOT NULL UNIQUE,
    UNIQUE (lease_id, sample_index),
    FOREIGN KEY (lease_id, sample_index) REFERENCES attempts
) STRICT;

CREATE TABLE scores (
    rollout_id INTEGER PRIMARY KEY REFERENCES rollouts,
    reward REAL NOT NULL,
    exact INTEGER NOT NULL,
    error TEXT NOT NULL
) STRICT;

CREATE TABLE batches (
    step INTEGER NOT NULL,
    position INTEGER NOT NULL,
    rollout_id INTEGER NOT NULL UNIQUE REFERENCES scores,
    PRIMARY KEY (step, position)
) STRICT, WITHOUT ROWID;

CREATE TABLE versions (
    epoch INTEGER NOT NULL,
    version INTEGER NOT NULL,
    announcement BLOB NOT NULL,              -- rollcast.v1.VersionAnnouncement
    PRIMARY KEY (epoch, version)
) STRICT;

CREATE TABLE invites (
    token_hash BLOB PRIMARY KEY,
    role TEXT NOT NULL,
    quota INTEGER NOT NULL,
    used INTEGER NOT NULL DEFAULT 0 CHECK (used <= quota),
    expires_unix_s REAL NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE invite_claims (
    token_hash BLOB NOT NULL REFERENCES invites,
    peer_id TEXT NOT NULL,
    PRIMARY KEY (token_hash, peer_id)
) STRICT, WITHOUT ROWID;

CREATE TABLE steps (step INTEGER PRIMARY KEY, figures TEXT NOT NULL) STRICT;  -- figures: JSON object

CREATE TABLE events (
    event_order INTEGER PRIMARY KEY AUTOINCREMENT,
    at_unix_s REAL NOT NULL,
    kind TEXT NOT NULL,
    subject TEXT NOT NULL,
    detail TEXT NOT NULL,
    cause TEXT NOT NULL
) STRICT;

CREATE TRIGGER batch_of_open_attempts BEFORE INSERT ON batches
WHEN EXISTS (
    SELECT 1 FROM rollouts JOIN attempts USING (lease_id, sample_index)
    WHERE rollout_id = NEW.rollout_id AND closed_reason IS NOT NULL
) BEGIN SELECT RAISE(ABORT, 'a dropped rollout cannot be trained on'); END;

CREATE TRIGGER trained_stays_trained BEFORE UPDATE OF closed_reason ON attempts
WHEN EXISTS (
    SELECT 1 FROM rollouts JOIN batches USING (rollout_id)
    WHERE lease_id = NEW.lease_id AND sample_index = NEW.sample_index
) BEGIN SELECT RAISE(ABORT, 'a trained rollout cannot be dropped'); END;

CREATE TRIGGER batches_keep BEFORE UPDATE ON batches BEGIN SELECT RAISE(ABORT, 'batches are never changed'); END;
CREATE TRIGGER batches_stay BEFORE DELETE ON batches BEGIN SELECT RAISE(ABORT, 'batches are never deleted'); END;
CREATE TRIGGER events_keep BEFORE UPDATE ON events BEGIN SELECT RAISE(ABORT, 'events are never changed'); END;
CREATE TRIGGER events_stay BEFORE DELETE ON events BEGIN SELECT RAISE(ABORT, 'events are never deleted'); END;
CREATE TRIGGER versions_keep BEFORE UPDATE ON versions BEGIN SELECT RAISE(ABORT, 'versions are never changed'); END;
"""

# Entry n takes the tables from PRAGMA user_version n to n + 1. Entries are appended, never edited.
MIGRATIONS: tuple[str, ...] = (_FIRST,)


def migrate(connection: sqlite3.Connection, migrations: tuple[str, ...] = MIGRATIONS) -> None:
    """Bring the tables to the newest form, one transaction a step.

    Raises:
        StoreError: the file was written by a newer Rollcast.
        sqlite3.Error: it cannot be read or written.
    """
    (found,) = connection.execute("PRAGMA user_version").fetchone()
    if found > len(migrations):
        raise StoreError(
            "the ledger was written by a newer Rollcast",
            cause=f"its form is {found}, ours is {len(migrations)}",
            fix="upgrade this installation or choose another run_folder",
        )
    for number in range(found, len(migrations)):
        try:
            connection.executescript(
                f"BEGIN IMMEDIATE; {migrations[number]}; PRAGMA user_version = {number + 1}; COMMIT;"
            )
        except sqlite3.Error:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
