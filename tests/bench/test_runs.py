from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from bench.runs import figures_of, trained_twice


def ledger(folder: Path, batches: list[tuple[int, int]]) -> None:
    with closing(sqlite3.connect(folder / "store.sqlite")) as database, database:
        database.execute("CREATE TABLE batch_rollouts (step INTEGER, rollout_id INTEGER)")
        database.executemany("INSERT INTO batch_rollouts VALUES (?, ?)", batches)


def summary(folder: Path) -> dict[str, Any]:
    return {
        "run_folder": str(folder),
        "reward_before": 0.3,
        "reward_after": 0.9,
        "exact_before": 0.29,
        "exact_after": 0.89,
        "warm_start_s": 20.0,
        "wall_s": 80.0,
        "staleness_limit": 4,
        "staleness_max_trained": 3,
        "peer_byte_share": 0.6,
        "learner_utilisation": 0.5,
        "t_bcast_s": {"p50": 0.1, "p95": 0.2},
        "rollouts": {"issued": 10, "trained": 6, "open": 1, "dropped": {"stale": 2}},
    }


def test_rollouts_trained_twice_are_counted_in_the_ledger(tmp_path: Path) -> None:
    ledger(tmp_path, [(0, 1), (0, 2), (1, 2), (1, 3), (2, 3)])
    assert trained_twice(tmp_path) == 2


def test_what_is_unaccounted_for_shows(tmp_path: Path) -> None:
    ledger(tmp_path, [(0, 1)])
    figures = figures_of(summary(tmp_path))
    assert figures["rollouts_unaccounted"] == 1
    assert figures["trained_twice"] == 0
    assert all(isinstance(value, (int, float)) for value in figures.values())
