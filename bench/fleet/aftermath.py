"""Check what a run left behind from its rows and files alone, not from what its coordinator reports of itself."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from coordinator.recovery.replay import incarnations, replay
from coordinator.report.wall_time import CAUSES, account
from coordinator.stores.story import story_of
from rollcast.runtime.errors import RollcastError
from rollcast.runtime.run_folder import RunFolder


def check_run(run_folder: Path, journals: Sequence[Path], *, killed: str) -> dict[str, float]:
    """Return the figures of a run that has ended; ``journals`` are the peers' records (bench.programs.journal_peer).

    ``killed`` is a peer that was killed, whose story must be on record.
    """
    folder = RunFolder(run_folder)
    with closing(sqlite3.connect(f"file:{folder.ledger}?mode=ro", uri=True)) as database:
        return {
            **_kept(database, journals),
            **_counts(database),
            "stories_missing": _stories_missing(database, folder, killed),
            **_replays(folder),
            **_wall_time(folder),
        }


def _kept(database: sqlite3.Connection, journals: Sequence[Path]) -> dict[str, float]:
    """Return how many rollouts were acknowledged, how many of them the ledger lacks, and how many more it has."""
    stored = {tuple(map(int, row)) for row in database.execute("SELECT lease_id, sample_index FROM rollouts")}
    acked = {
        tuple(map(int, line.split())) for path in journals for line in path.read_text().splitlines() if line.strip()
    }
    return {"acked": len(acked), "acked_lost": len(acked - stored), "stored_unacknowledged": len(stored - acked)}


def _counts(database: sqlite3.Connection) -> dict[str, float]:
    def one(question: str) -> int:
        (answer,) = database.execute(question).fetchone()
        return int(answer or 0)

    return {
        "batches": one("SELECT count(*) FROM batches"),
        "trained": one("SELECT count(*) FROM batch_rollouts"),
        "trained_twice": one("SELECT count(*) - count(DISTINCT rollout_id) FROM batch_rollouts"),
        "batches_uneven": one(
            "SELECT count(DISTINCT n) - 1 FROM (SELECT count(*) AS n FROM batch_rollouts GROUP BY step)"
        ),
        "unaccounted": one(
            "SELECT count(*) FROM attempts WHERE state <> 'dropped' AND (state <> 'trained' OR NOT EXISTS"
            " (SELECT 1 FROM rollouts JOIN batch_rollouts USING (rollout_id) WHERE rollouts.lease_id ="
            " attempts.lease_id AND rollouts.sample_index = attempts.sample_index))"
        ),
        "age_max": one("SELECT max(step - oldest_version) FROM batch_rollouts JOIN rollouts USING (rollout_id)"),
        "epochs": one("SELECT count(*) FROM epochs"),
        "expired": one("SELECT count(*) FROM attempts WHERE closed_reason = 'lease_expired'"),
        "step_reports_missing": one("SELECT (SELECT count(*) FROM batches) - (SELECT count(*) FROM steps)"),
    }


def _stories_missing(database: sqlite3.Connection, folder: RunFolder, killed: str) -> int:
    """Return how many stories are missing: of a trained rollout, a lease that was lost, and the killed peer."""
    asked = [
        ("rollout {}", "SELECT max(rollout_id) FROM batch_rollouts"),
        # Other peers may finish the lease's work before it expires, so it may end as a late duplicate instead.
        ("lease {}", "SELECT max(lease_id) FROM attempts WHERE closed_reason IN ('lease_expired', 'late_duplicate')"),
    ]
    words = [form.format(database.execute(question).fetchone()[0]) for form, question in asked]
    missing = 0
    for subject in [*words, f"peer {killed}"]:
        try:
            missing += not story_of(folder, subject).lines
        except RollcastError:
            missing += 1
    return missing


def _replays(folder: RunFolder) -> dict[str, float]:
    """Replay every incarnation of the coordinator through a core, and return how many there were and their match."""
    lives = [replay(folder, life) for life in incarnations(folder.record)]
    return {"lives": len(lives), "replay_identical": sum(life.identical for life in lives) / max(1, len(lives))}


def _wall_time(folder: RunFolder) -> dict[str, float]:
    found = account(folder)
    assert found is not None  # its learner has reported
    shares = {share.cause: share.share for share in found.shares}
    return {
        "unaccounted_share": abs(found.unaccounted),
        "replaying_share": shares.get(CAUSES["replay"], 0.0),
        "away_share": shares.get(CAUSES["away"], 0.0),
    }
