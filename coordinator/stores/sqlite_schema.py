"""Define the ledger's tables and the migrations between their versions.

The database itself refuses what must never happen: a slot with two rollouts that count, a rollout in two batches, a
dropped or unscored rollout in a batch, a trained rollout dropped, a changed batch, event or announcement, and any
deletion beyond what the row of ``retention`` allows.
"""

from __future__ import annotations

import sqlite3

from coordinator.stores.run_format import check_format

#: Unix time by the wall clock, for people only: no decision depends on it.
NOW_UNIX_S = "((julianday('now') - 2440587.5) * 86400.0)"

_FIRST = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT, WITHOUT ROWID;

CREATE TABLE groups (
    group_id INTEGER PRIMARY KEY,
    problem_id TEXT NOT NULL,
    prompt_token_ids BLOB NOT NULL,          -- little-endian u32
    mixture_position TEXT NOT NULL,          -- where the prompt source stands after this problem
    problem TEXT NOT NULL,                   -- coordinator.tasks.checks.task.Problem as JSON
    over_at_step INTEGER                     -- trained in that step's batch, or dropped before it; null while open
) STRICT;
CREATE INDEX groups_open ON groups (group_id) WHERE over_at_step IS NULL;
CREATE INDEX groups_over ON groups (over_at_step) WHERE over_at_step IS NOT NULL;

CREATE TABLE attempts (
    lease_id INTEGER NOT NULL,
    sample_index INTEGER NOT NULL,
    fencing_token INTEGER NOT NULL,
    group_id INTEGER NOT NULL REFERENCES groups,
    seed INTEGER NOT NULL,                   -- 64 bits, two's complement
    peer_id TEXT NOT NULL,
    state TEXT NOT NULL DEFAULT 'open' CHECK (state IN ('open', 'filled', 'trained', 'dropped')),
    closed_reason TEXT CHECK ((closed_reason IS NOT NULL) = (state = 'dropped')),
    issued_unix_s REAL NOT NULL DEFAULT <now>,
    closed_unix_s REAL,
    PRIMARY KEY (lease_id, sample_index)
) STRICT, WITHOUT ROWID;
CREATE INDEX attempts_of_slot ON attempts (group_id, sample_index);
CREATE UNIQUE INDEX one_rollout_a_slot ON attempts (group_id, sample_index) WHERE state IN ('filled', 'trained');

CREATE TABLE rollouts (
    rollout_id INTEGER PRIMARY KEY,          -- rises in order of acceptance
    lease_id INTEGER NOT NULL,
    sample_index INTEGER NOT NULL,
    peer_id TEXT NOT NULL,
    body BLOB NOT NULL,                      -- rollcast.v1.Rollout
    oldest_version INTEGER NOT NULL,         -- of its segments
    newest_version INTEGER NOT NULL,
    received_unix_s REAL NOT NULL DEFAULT <now>,
    UNIQUE (lease_id, sample_index),
    FOREIGN KEY (lease_id, sample_index) REFERENCES attempts
) STRICT;

CREATE TABLE scores (
    rollout_id INTEGER PRIMARY KEY REFERENCES rollouts,
    reward REAL NOT NULL,
    exact INTEGER NOT NULL,
    error TEXT NOT NULL,
    scored_unix_s REAL NOT NULL DEFAULT <now>
) STRICT;

CREATE TABLE batches (
    step INTEGER PRIMARY KEY,                -- also steps whose batch has no rollout
    recorded_unix_s REAL NOT NULL DEFAULT <now>
) STRICT;

CREATE TABLE batch_rollouts (
    step INTEGER NOT NULL REFERENCES batches,
    position INTEGER NOT NULL,
    rollout_id INTEGER NOT NULL UNIQUE REFERENCES scores,
    PRIMARY KEY (step, position)
) STRICT, WITHOUT ROWID;

CREATE TABLE versions (
    epoch INTEGER NOT NULL,
    version INTEGER NOT NULL,
    announcement BLOB NOT NULL,              -- rollcast.v1.VersionAnnouncement
    announced_unix_s REAL NOT NULL DEFAULT <now>,
    PRIMARY KEY (epoch, version)
) STRICT;

CREATE TABLE epochs (
    epoch INTEGER PRIMARY KEY,
    step_from INTEGER NOT NULL,              -- the batches from here ...
    step_to INTEGER NOT NULL,                -- ... to before here are empty
    common_version INTEGER                   -- newest version of the epoch before that still counts; null: none
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

CREATE TABLE steps (
    step INTEGER PRIMARY KEY,
    figures TEXT NOT NULL,                   -- JSON object
    reported_unix_s REAL NOT NULL DEFAULT <now>
) STRICT;

CREATE TABLE events (
    event_order INTEGER PRIMARY KEY AUTOINCREMENT,
    at_unix_s REAL NOT NULL,
    kind TEXT NOT NULL,
    subject TEXT NOT NULL,
    detail TEXT NOT NULL,
    cause TEXT NOT NULL CHECK (cause <> '')
) STRICT;

-- What compaction may delete and did delete. Nothing in this row ever falls.
CREATE TABLE retention (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    horizon_step INTEGER NOT NULL,           -- what was over before this step may be deleted
    events_archived INTEGER NOT NULL,        -- events up to this one are in a segment file
    lease_id INTEGER NOT NULL,               -- largest ids deleted so far
    rollout_id INTEGER NOT NULL
) STRICT;
INSERT INTO retention VALUES (1, 0, 0, 0, 0);

-- Deleted rows as counts: accepted, trained; dropped by reason; age (of trained rollouts, in learner steps).
CREATE TABLE compacted (
    kind TEXT NOT NULL, key TEXT NOT NULL, count INTEGER NOT NULL, PRIMARY KEY (kind, key)
) STRICT, WITHOUT ROWID;

CREATE TRIGGER leases_are_new BEFORE INSERT ON attempts
WHEN NEW.lease_id <= (SELECT lease_id FROM retention)
BEGIN SELECT RAISE(ABORT, 'a lease id is never used again'); END;

CREATE TRIGGER batches_are_new BEFORE INSERT ON batches WHEN NEW.step < (SELECT horizon_step FROM retention)
BEGIN SELECT RAISE(ABORT, 'the batch of this step was compacted'); END;
CREATE TRIGGER versions_are_new BEFORE INSERT ON versions WHEN NEW.version < (SELECT horizon_step FROM retention)
BEGIN SELECT RAISE(ABORT, 'a version of this number was compacted'); END;

CREATE TRIGGER attempts_of_open_groups BEFORE INSERT ON attempts
WHEN (SELECT over_at_step FROM groups WHERE group_id = NEW.group_id) IS NOT NULL
BEGIN SELECT RAISE(ABORT, 'the group is over'); END;

CREATE TRIGGER two_attempts_a_slot BEFORE INSERT ON attempts
WHEN (
    SELECT count(*) FROM attempts
    WHERE group_id = NEW.group_id AND sample_index = NEW.sample_index AND state = 'open'
) >= 2
BEGIN SELECT RAISE(ABORT, 'a slot has at most two attempts under way'); END;

CREATE TRIGGER attempts_go_forward BEFORE UPDATE ON attempts
WHEN NOT (
    (OLD.state = 'open' AND NEW.state IN ('filled', 'dropped'))
    OR (OLD.state = 'filled' AND NEW.state IN ('trained', 'dropped'))
)
BEGIN SELECT RAISE(ABORT, 'an attempt that is dropped or trained stays so'); END;

-- The first rollout closes its slot: who else works at it is too late.
CREATE TRIGGER a_rollout_closes_its_slot AFTER INSERT ON rollouts
BEGIN
    UPDATE attempts SET state = 'filled' WHERE lease_id = NEW.lease_id AND sample_index = NEW.sample_index;
    UPDATE attempts SET state = 'dropped', closed_reason = 'late_duplicate', closed_unix_s = <now>
    WHERE state = 'open' AND sample_index = NEW.sample_index AND group_id = (
        SELECT group_id FROM attempts WHERE lease_id = NEW.lease_id AND sample_index = NEW.sample_index
    );
END;

CREATE TRIGGER batched_is_trained AFTER INSERT ON batch_rollouts
BEGIN
    UPDATE attempts SET state = 'trained' WHERE (lease_id, sample_index) = (
        SELECT lease_id, sample_index FROM rollouts WHERE rollout_id = NEW.rollout_id
    );
END;

CREATE TRIGGER groups_end_once BEFORE UPDATE ON groups WHEN OLD.over_at_step IS NOT NULL
BEGIN SELECT RAISE(ABORT, 'a group ends once'); END;

CREATE TRIGGER groups_end_whole BEFORE UPDATE ON groups
WHEN EXISTS (SELECT 1 FROM attempts WHERE group_id = OLD.group_id AND state IN ('open', 'filled'))
BEGIN SELECT RAISE(ABORT, 'a group ends as a whole'); END;

CREATE TRIGGER batches_keep BEFORE UPDATE ON batches BEGIN SELECT RAISE(ABORT, 'batches are never changed'); END;
CREATE TRIGGER batch_rollouts_keep BEFORE UPDATE ON batch_rollouts
BEGIN SELECT RAISE(ABORT, 'batches are never changed'); END;
CREATE TRIGGER rollouts_keep BEFORE UPDATE ON rollouts BEGIN SELECT RAISE(ABORT, 'rollouts are never changed'); END;
CREATE TRIGGER scores_keep BEFORE UPDATE ON scores BEGIN SELECT RAISE(ABORT, 'scores are never changed'); END;
CREATE TRIGGER events_keep BEFORE UPDATE ON events BEGIN SELECT RAISE(ABORT, 'events are never changed'); END;
CREATE TRIGGER versions_keep BEFORE UPDATE ON versions BEGIN SELECT RAISE(ABORT, 'versions are never changed'); END;
CREATE TRIGGER epochs_keep BEFORE UPDATE ON epochs BEGIN SELECT RAISE(ABORT, 'epochs are never changed'); END;

CREATE TRIGGER retention_rises BEFORE UPDATE ON retention
WHEN NEW.horizon_step < OLD.horizon_step OR NEW.events_archived < OLD.events_archived
    OR NEW.lease_id < OLD.lease_id OR NEW.rollout_id < OLD.rollout_id
BEGIN SELECT RAISE(ABORT, 'what was deleted stays deleted'); END;
CREATE TRIGGER retention_stays BEFORE DELETE ON retention BEGIN SELECT RAISE(ABORT, 'retention is never deleted'); END;

-- Rows of a group are deleted from the bottom up (foreign keys), so each asks for the group's end.
CREATE TRIGGER groups_stay BEFORE DELETE ON groups
WHEN OLD.over_at_step IS NULL OR OLD.over_at_step >= (SELECT horizon_step FROM retention)
BEGIN SELECT RAISE(ABORT, 'groups are never deleted before the horizon'); END;
CREATE TRIGGER attempts_stay BEFORE DELETE ON attempts
WHEN (SELECT coalesce(over_at_step >= (SELECT horizon_step FROM retention), 1) FROM groups
      WHERE group_id = OLD.group_id)
BEGIN SELECT RAISE(ABORT, 'attempts are never deleted before the horizon'); END;
CREATE TRIGGER rollouts_stay BEFORE DELETE ON rollouts
WHEN (SELECT coalesce(over_at_step >= (SELECT horizon_step FROM retention), 1)
      FROM groups JOIN attempts USING (group_id)
      WHERE lease_id = OLD.lease_id AND sample_index = OLD.sample_index)
BEGIN SELECT RAISE(ABORT, 'rollouts are never deleted before the horizon'); END;
CREATE TRIGGER scores_stay BEFORE DELETE ON scores
WHEN (SELECT coalesce(over_at_step >= (SELECT horizon_step FROM retention), 1)
      FROM rollouts JOIN attempts USING (lease_id, sample_index) JOIN groups USING (group_id)
      WHERE rollout_id = OLD.rollout_id)
BEGIN SELECT RAISE(ABORT, 'scores are never deleted before the horizon'); END;
CREATE TRIGGER batches_stay BEFORE DELETE ON batches WHEN OLD.step >= (SELECT horizon_step FROM retention)
BEGIN SELECT RAISE(ABORT, 'batches are never deleted before the horizon'); END;
CREATE TRIGGER batch_rollouts_stay BEFORE DELETE ON batch_rollouts
WHEN OLD.step >= (SELECT horizon_step FROM retention)
BEGIN SELECT RAISE(ABORT, 'batches are never deleted before the horizon'); END;
CREATE TRIGGER versions_stay BEFORE DELETE ON versions WHEN OLD.version >= (SELECT horizon_step FROM retention)
BEGIN SELECT RAISE(ABORT, 'versions are never deleted before the horizon'); END;
CREATE TRIGGER events_stay BEFORE DELETE ON events
WHEN OLD.event_order > (SELECT events_archived FROM retention)
BEGIN SELECT RAISE(ABORT, 'events are never deleted before they are archived'); END;
CREATE TRIGGER epochs_stay BEFORE DELETE ON epochs BEGIN SELECT RAISE(ABORT, 'epochs are never deleted'); END;
""".replace("<now>", NOW_UNIX_S)

#: Moving mean and variance of the rewards of each problem's rollouts; they outlive the rollouts.
_PROBLEM_REWARDS = """
CREATE TABLE problem_rewards (
    problem_id TEXT PRIMARY KEY, rollouts INTEGER NOT NULL, mean REAL NOT NULL, variance REAL NOT NULL
) STRICT, WITHOUT ROWID;
"""

#: Tokens of people and programs that use the HTTP API, and what was done with them.
_ACCESS = """
CREATE TABLE tokens (
    token_id INTEGER PRIMARY KEY AUTOINCREMENT,
    token_hash BLOB NOT NULL UNIQUE,
    name TEXT NOT NULL,
    access TEXT NOT NULL CHECK (access IN ('viewer', 'operator', 'admin')),
    made_unix_s REAL NOT NULL,
    expires_unix_s REAL,                     -- null: never
    revoked_unix_s REAL
) STRICT;
CREATE UNIQUE INDEX one_live_token_a_name ON tokens (name) WHERE revoked_unix_s IS NULL;
CREATE TRIGGER tokens_stay BEFORE DELETE ON tokens BEGIN SELECT RAISE(ABORT, 'tokens are never deleted'); END;
CREATE TRIGGER revoked_for_good BEFORE UPDATE ON tokens WHEN OLD.revoked_unix_s IS NOT NULL
BEGIN SELECT RAISE(ABORT, 'a token stays revoked'); END;

CREATE TABLE audit (
    audit_id INTEGER PRIMARY KEY AUTOINCREMENT,
    at_unix_s REAL NOT NULL,
    who TEXT NOT NULL,                       -- name of the token; empty: a stranger
    access TEXT NOT NULL,
    act TEXT NOT NULL,
    subject TEXT NOT NULL,
    detail TEXT NOT NULL,
    outcome TEXT NOT NULL                    -- 'done', or the code and why not
) STRICT;
CREATE TRIGGER audit_keeps BEFORE UPDATE ON audit BEGIN SELECT RAISE(ABORT, 'the audit log is never changed'); END;
CREATE TRIGGER audit_stays BEFORE DELETE ON audit BEGIN SELECT RAISE(ABORT, 'the audit log is never deleted'); END;
"""

_INVITES = """
ALTER TABLE invites ADD COLUMN note TEXT NOT NULL DEFAULT '';
ALTER TABLE invites ADD COLUMN revoked INTEGER NOT NULL DEFAULT 0 CHECK (revoked IN (0, 1));
ALTER TABLE invites ADD COLUMN made_unix_s REAL NOT NULL DEFAULT 0;
CREATE TRIGGER invites_stay_revoked BEFORE UPDATE ON invites WHEN OLD.revoked
BEGIN SELECT RAISE(ABORT, 'an invite stays revoked'); END;
"""

_CLAIMS = "CREATE INDEX claims_of_identity ON invite_claims (peer_id);"

#: BLAKE3 of each rollout's body, 16 bytes; null: stored by a release without it.
_CHECKSUMS = "ALTER TABLE rollouts ADD COLUMN body_blake3 BLOB;"

#: Identities that receipts of their own convict. They stay so until the operator enables them.
_QUARANTINES = """
CREATE TABLE quarantines (
    peer_id TEXT PRIMARY KEY,
    reason TEXT NOT NULL,
    receipt BLOB NOT NULL,                   -- rollcast.v1.Signed of a ChunkReceipt
    quarantined_unix_s REAL NOT NULL DEFAULT <now>
) STRICT, WITHOUT ROWID;
""".replace("<now>", NOW_UNIX_S)

_SCORE_PARTS = """
ALTER TABLE scores RENAME COLUMN error TO detail;
ALTER TABLE scores ADD COLUMN parts TEXT NOT NULL DEFAULT '{}';  -- JSON object: named components of the reward
"""

#: Turns of episodes that go on. The rollout of the whole episode replaces them, as does the end of its group.
_TURNS = """
ALTER TABLE groups ADD COLUMN environment TEXT NOT NULL DEFAULT '';
CREATE TABLE turns (
    group_id INTEGER NOT NULL REFERENCES groups,
    sample_index INTEGER NOT NULL,
    turn INTEGER NOT NULL,
    lease_id INTEGER NOT NULL,               -- of the attempt that made it
    peer_id TEXT NOT NULL,
    observation_role TEXT NOT NULL CHECK (observation_role IN ('', 'tool', 'user')),  -- empty: there was none before it
    observation BLOB NOT NULL,               -- little-endian u32
    body BLOB NOT NULL,                      -- rollcast.v1.Rollout with the turn's segments only
    body_blake3 BLOB NOT NULL,
    PRIMARY KEY (group_id, sample_index, turn),
    FOREIGN KEY (lease_id, sample_index) REFERENCES attempts
) STRICT, WITHOUT ROWID;

CREATE TRIGGER turns_of_open_attempts BEFORE INSERT ON turns
WHEN (SELECT state FROM attempts WHERE lease_id = NEW.lease_id AND sample_index = NEW.sample_index
      AND group_id = NEW.group_id) IS NOT 'open'
BEGIN SELECT RAISE(ABORT, 'the attempt of the turn is not open'); END;
CREATE TRIGGER turns_in_order BEFORE INSERT ON turns
WHEN NEW.turn <> (SELECT count(*) FROM turns WHERE group_id = NEW.group_id AND sample_index = NEW.sample_index)
BEGIN SELECT RAISE(ABORT, 'a turn is missing, or is there already'); END;
CREATE TRIGGER turns_keep BEFORE UPDATE ON turns BEGIN SELECT RAISE(ABORT, 'turns are never changed'); END;
CREATE TRIGGER a_rollout_replaces_its_turns AFTER INSERT ON rollouts
BEGIN
    DELETE FROM turns WHERE sample_index = NEW.sample_index AND group_id = (
        SELECT group_id FROM attempts WHERE lease_id = NEW.lease_id AND sample_index = NEW.sample_index
    );
END;
CREATE TRIGGER a_group_ends_its_turns AFTER UPDATE ON groups
BEGIN DELETE FROM turns WHERE group_id = NEW.group_id; END;
"""

# The Rollouts page and `rollcast samples --problem` ask for the rollouts of one problem.
_BY_PROBLEM = "CREATE INDEX groups_of_problem ON groups (problem_id);"

#: In a game of several agents each has slots of its own: the slot i is of the agent i modulo their number.
_AGENTS = "ALTER TABLE groups ADD COLUMN agents INTEGER NOT NULL DEFAULT 1 CHECK (agents >= 1);"

# From here on, stored rollouts have their token ids as bytes. The tables are the same: rollouts are blobs to SQLite.
_TOKEN_IDS_AS_BYTES = "SELECT 1;"

# Entry n takes the tables from PRAGMA user_version n to n + 1. Entries are appended, never edited. A change of what
# blobs hold appends an entry too, and raises OLDEST to its number if it cannot convert those of earlier versions.
MIGRATIONS: tuple[str, ...] = (
    *(_FIRST, _PROBLEM_REWARDS, _ACCESS, _INVITES),
    *(_CLAIMS, _CHECKSUMS, _QUARANTINES, _SCORE_PARTS, _TURNS, _BY_PROBLEM, _AGENTS),
    _TOKEN_IDS_AS_BYTES,
)
OLDEST = 12  # version of the oldest tables that can be continued


def migrate(connection: sqlite3.Connection, migrations: tuple[str, ...] = MIGRATIONS) -> None:
    """Migrate the tables to the newest version, one transaction per migration.

    Raises:
        RunFormatError: an earlier Rollcast wrote the file, whose rollouts cannot be read, or a newer one.
        sqlite3.Error: it cannot be read or written.
    """
    (found,) = connection.execute("PRAGMA user_version").fetchone()
    check_format("the ledger", found, OLDEST, len(migrations), elsewhere="another run_folder")
    for number in range(found, len(migrations)):
        try:
            connection.executescript(
                f"BEGIN IMMEDIATE; {migrations[number]}; PRAGMA user_version = {number + 1}; COMMIT;"
            )
        except sqlite3.Error:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
